"""Memory that goes by reference between processes of one machine."""

from __future__ import annotations

import array
import fcntl
import gc
import itertools
import mmap
import os
import socket

import numpy as np
import pytest

from tests.transport.rig import Node, ack, expect_soon, linked, open_files, private
from windlass._transport.mapping import PAGE, ContiguousViews, map_received
from windlass._transport.options import TransportOptions
from windlass._transport.segments import MAX_FDS, PeerSegments, SegmentLimits, SideChannel
from windlass._transport.shared import SEGMENT_BYTES, Arena
from windlass._wire.effects import LinkDown, Received, Sent
from windlass._wire.frame import HEADER_BYTES, encode_message, encode_segments
from windlass.errors import PeerError, UsageError
from windlass.types import Block

BIG = 256 << 10


def receive(one: Node, two: Node, *data: Block, pins: tuple[int, ...] = ()) -> Received:
    seen = len(two.of(Received))
    one.send(two, ack(seen), *data, pins=pins)
    expect_soon([one, two], lambda: len(two.of(Received)) == seen + 1)
    return two.of(Received)[-1]


def memfds() -> int:
    return sum("memfd" in entry for entry in open_files())


def test_shared_blocks_are_seen_not_copied() -> None:
    with linked("unix") as (one, two):
        blocks = [one.hub.memory.allocate(BIG) for _ in range(3)]
        came = receive(one, two, *blocks, pins=(1, 2, 3))
        assert came.is_shared
        for value, block in enumerate(blocks):
            block.array[:] = value + 1
        assert [set(seen.tolist()) for seen in came.data] == [{1}, {2}, {3}]
        assert not any(seen.flags.writeable for seen in came.data)
        with pytest.raises(ValueError, match=r"cannot set WRITEABLE|read-only"):
            came.data[0].flags.writeable = True
        one.poll(0.01)
        assert one.of(Sent) == []  # the peer releases


def test_a_segment_is_announced_once() -> None:
    with linked("unix") as (one, two):
        before = memfds()
        for _ in range(10):
            assert receive(one, two, one.hub.memory.allocate(BIG)).is_shared
        assert memfds() == before + 2  # the sender's and the receiver's


def test_small_shared_blocks_and_private_ones_travel_by_value() -> None:
    with linked("unix") as (one, two):
        small = one.hub.memory.allocate(1000)
        small.array[:] = 3
        came = receive(one, two, small, pins=(4,))
        assert not came.is_shared
        assert set(came.data[0].tolist()) == {3}
        assert [event.pin for event in one.of(Sent)] == [4]
        assert not receive(one, two, one.hub.memory.allocate(BIG), *private(1)).is_shared


def test_blocks_of_another_arena_travel_by_value() -> None:
    with linked("unix") as (one, two):
        mine = one.hub.memory.allocate(BIG)
        foreign = Arena().allocate(BIG)
        foreign.array[:] = 9
        mine.array[:] = 1
        came = receive(one, two, foreign)
        assert not came.is_shared
        assert set(came.data[0].tolist()) == {9}


def test_over_tcp_everything_travels_by_value() -> None:
    with linked("tcp:127.0.0.1:0") as (one, two):
        came = receive(one, two, one.hub.memory.allocate(BIG), pins=(4,))
        assert not came.is_shared
        assert [event.pin for event in one.of(Sent)] == [4]


def test_received_memory_outlives_the_link_and_is_unmapped_with_its_last_array() -> None:
    before = memfds()
    with linked("unix") as (one, two):
        block = one.hub.memory.allocate(BIG)
        block.array[:] = 7
        seen = receive(one, two, block).data[0][5:10]
        two.events.clear()
    del block, one, two
    gc.collect()
    assert seen.tolist() == [7] * 5
    assert memfds() == before + 1
    del seen
    assert memfds() == before


def test_a_dedicated_block_is_given_back_to_the_system_by_both_sides() -> None:
    with linked("unix") as (one, two):
        before = memfds()
        block = one.hub.memory.dedicated(100 << 20)
        block.array[: 1 << 20] = 1
        came = receive(one, two, block)
        assert came.is_shared
        assert memfds() == before + 2
        two.events.clear()
        del block, came
        one.poll(0)
        expect_soon([one, two], lambda: memfds() == before)
        assert receive(one, two, one.hub.memory.allocate(BIG)).is_shared


def test_many_segments_in_one_message_are_all_announced() -> None:
    with linked("unix") as (one, two):
        blocks = [one.hub.memory.dedicated(PAGE) for _ in range(MAX_FDS + 20)]
        for value, block in enumerate(blocks):
            block.array[:] = value
        came = receive(one, two, *blocks)
        assert came.is_shared
        assert [int(seen[-1]) for seen in came.data] == list(range(MAX_FDS + 20))


# --- one array over several segments --------------------------------------------------------------------------------


def test_parts_of_several_segments_are_viewed_as_one_array() -> None:
    with linked("unix") as (one, two):
        parts = [one.hub.memory.dedicated(3 * PAGE), one.hub.memory.allocate(5 * PAGE), one.hub.memory.allocate(BIG)]
        parts[2] = Block(parts[2].array[:-100], parts[2].segment, parts[2].offset)
        came = receive(one, two, *reversed(parts[:2]), parts[2])
        whole = two.hub.contiguous(came.data)
        assert whole is not None
        assert whole.nbytes == 8 * PAGE + BIG - 100
        assert not whole.flags.writeable
        parts[1].array[:] = 1
        parts[0].array[:] = 2
        parts[2].array[:] = 3
        assert whole.tobytes() == b"\1" * 5 * PAGE + b"\2" * 3 * PAGE + b"\3" * (BIG - 100)


def test_a_contiguous_view_outlives_link_and_parts() -> None:
    with linked("unix") as (one, two):
        blocks = [one.hub.memory.allocate(BIG) for _ in range(2)]
        for block in blocks:
            block.array[:] = 5
        whole = two.hub.contiguous(receive(one, two, *blocks).data)
        two.events.clear()
        del block, blocks
    del one, two
    gc.collect()
    assert whole is not None
    assert set(whole[::1000].tolist()) == {5}


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:windlass" in line for line in maps)


def test_the_same_parts_are_mapped_once() -> None:
    with linked("unix") as (one, two):
        came = receive(one, two, one.hub.memory.allocate(BIG), one.hub.memory.allocate(BIG)).data
        first, again = two.hub.contiguous(came), two.hub.contiguous(came)
        assert first is again
        assert two.hub.contiguous((came[1], came[0])) is not first


def test_a_contiguous_view_is_unmapped_when_its_parts_and_itself_are_gone() -> None:
    with linked("unix") as (one, two):
        before = mapped()
        blocks = [one.hub.memory.dedicated(BIG) for _ in range(2)]
        whole = two.hub.contiguous(receive(one, two, *blocks).data)
        assert mapped() == before + 6  # each block at its owner's, at its reader's, and in the view
        two.events.clear()
        blocks.clear()
        expect_soon([one, two], lambda: mapped() == before + 2)
        del whole
        assert mapped() == before


def test_only_the_last_few_contiguous_views_are_remembered() -> None:
    arena, views = Arena(), ContiguousViews(max_views=2)
    blocks = [arena.dedicated(PAGE).array for _ in range(6)]
    before = mapped()
    for first in range(0, 6, 2):
        assert views.view(blocks[first : first + 2]) is not None
    assert mapped() == before + 4


def test_no_contiguous_view_where_alignment_or_memory_forbids() -> None:
    with linked("unix") as (one, two):
        came = receive(one, two, one.hub.memory.allocate(BIG), one.hub.memory.allocate(BIG)).data
        assert two.hub.contiguous((came[0][:-1], came[1])) is None  # ends within a page
        assert two.hub.contiguous((came[0], came[1][64:])) is None  # begins within a page
        assert two.hub.contiguous((came[0], np.zeros(PAGE, np.uint8))) is None  # private
        assert two.hub.contiguous(()) is None
        assert two.hub.contiguous((came[0], came[1][:-1])) is not None


# --- the arena ------------------------------------------------------------------------------------------------------


def test_blocks_of_a_page_or_more_begin_on_one_and_never_overlap() -> None:
    arena = Arena()
    blocks = [arena.allocate(n) for n in (1, 64, 100, 4095, 4096, 4097, 100_000, 5 << 20, 0, 63)]
    spans = sorted((block.array.ctypes.data, block.array.nbytes) for block in blocks if block.array.nbytes)
    assert all(start + nbytes <= after for (start, nbytes), (after, _) in itertools.pairwise(spans))
    for block in blocks:
        assert block.offset % (PAGE if block.array.nbytes >= PAGE else 64) == 0
        assert arena.segment(block.segment) is not None


def test_freed_blocks_are_used_again_for_like_sizes() -> None:
    arena = Arena()
    block = arena.allocate(1_000_000)
    where = (block.segment, block.offset)
    arena.free(block)
    again = arena.allocate(1_000_100)
    assert (again.segment, again.offset, again.array.nbytes) == (*where, 1_000_100)
    with pytest.raises(UsageError, match="expected a block of this arena"):
        arena.free(Block(again.array, again.segment, again.offset + PAGE))


def test_a_request_beyond_a_segment_gets_one_of_its_own_and_is_reused() -> None:
    arena = Arena()
    big = arena.allocate(SEGMENT_BYTES + 1)
    assert big.array.nbytes == SEGMENT_BYTES + 1
    number = big.segment
    arena.free(big)
    assert arena.allocate(SEGMENT_BYTES + 1).segment == number


def test_untouched_memory_costs_nothing() -> None:
    arena = Arena()
    block = arena.dedicated(10 << 30)
    segment = arena.segment(block.segment)
    assert segment is not None
    assert os.fstat(segment.fd).st_blocks == 0


# --- peers that cheat -----------------------------------------------------------------------------------------------


def segments_of_peer(limits: SegmentLimits | None = None) -> tuple[PeerSegments, socket.socket]:
    ours, theirs = SideChannel.pair()
    return PeerSegments(limits or SegmentLimits(), ours), theirs


def hand(theirs: socket.socket, *fds: int) -> None:
    theirs.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def named(*segments: tuple[int, int]) -> bytearray:
    return encode_segments(segments)[HEADER_BYTES:]


def memfd(nbytes: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_descriptors_that_are_not_what_they_should_be_are_refused_and_closed() -> None:
    before = open_files()
    reader, writer = os.pipe()
    unsealed, short = memfd(PAGE, 0), memfd(PAGE)
    segments, theirs = segments_of_peer()
    for fd, nbytes, complaint in (
        (reader, PAGE, "expected a sealed memfd"),
        (unsealed, PAGE, "expected a memfd sealed against shrinking"),
        (short, PAGE + 1, f"expected a segment of {PAGE + 1} bytes, got one of {PAGE}"),
        (short, 0, "expected a segment of 0 bytes"),
        (short, 1 << 63, "expected at most 1099511627776 bytes"),
    ):
        hand(theirs, fd)
        with pytest.raises(PeerError, match=complaint):
            segments.announce(named((1, nbytes)))
    hand(theirs, short, short)
    with pytest.raises(PeerError, match="expected 1 descriptors with as many segments, got 2"):
        segments.announce(named((1, PAGE)))
    with pytest.raises(PeerError, match="expected descriptors with the announcement"):
        segments.announce(named((1, PAGE)))
    segments.close()
    theirs.close()
    for fd in (reader, writer, unsealed, short):
        os.close(fd)
    assert open_files() <= before  # those of a cluster that an earlier test has closed may go meanwhile


def test_references_must_lie_within_an_announced_segment() -> None:
    segments, theirs = segments_of_peer()
    fd = memfd(4 * PAGE)
    hand(theirs, fd)
    segments.announce(named((7, 4 * PAGE)))
    assert segments.view([(7, PAGE, 3 * PAGE)])[0].nbytes == 3 * PAGE
    for reference in ((7, PAGE, 3 * PAGE + 1), (7, 1 << 62, 1), (8, 0, 1)):
        with pytest.raises(PeerError, match="expected a reference"):
            segments.view([reference])
    hand(theirs, fd)
    with pytest.raises(PeerError, match="expected each segment to be announced once, got segment 7 again"):
        segments.announce(named((7, PAGE)))
    segments.close()
    theirs.close()
    os.close(fd)


def test_a_peer_may_show_only_so_many_segments_and_bytes() -> None:
    fd = memfd(PAGE)
    for limits, complaint in (
        (SegmentLimits(max_segments=2), "at most 2 segments of one peer"),
        (SegmentLimits(max_bytes=2 * PAGE), f"at most {2 * PAGE} bytes in the segments of one peer, got {3 * PAGE}"),
    ):
        segments, theirs = segments_of_peer(limits)
        hand(theirs, fd, fd, fd)
        with pytest.raises(PeerError, match=complaint):
            segments.announce(named((1, PAGE), (2, PAGE), (3, PAGE)))
        segments.close()
        theirs.close()
    os.close(fd)


def test_a_limit_of_segments_closes_the_link_with_a_clear_reason() -> None:
    few = TransportOptions(segments=SegmentLimits(max_segments=1))
    with linked("unix", b=few) as (one, two):
        receive(one, two, one.hub.memory.dedicated(BIG))
        keep = [one.hub.memory.dedicated(BIG) for _ in range(2)]
        one.send(two, ack(1), *keep)
        expect_soon([one, two], lambda: bool(one.of(LinkDown) and two.of(LinkDown)))
        assert "expected at most 1 segments of one peer" in two.of(LinkDown)[0].reason
        assert "you broke protocol" in one.of(LinkDown)[0].reason


def test_references_on_a_tcp_link_are_refused() -> None:
    with linked("tcp:127.0.0.1:0") as (one, two):
        link = one.hub._links[two.me]
        link.outbox.add(encode_message(ack(1), (), [(1, 0, 10)]))
        one.hub._dirty[link] = None
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert "expected inline buffers on this link" in two.of(LinkDown)[0].reason


def test_a_sealed_segment_cannot_shrink_under_its_reader() -> None:
    arena = Arena()
    block = arena.allocate(BIG)
    segment = arena.segment(block.segment)
    assert segment is not None
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, PAGE)
    mapping = map_received(os.dup(segment.fd), segment.nbytes)
    block.array[-1] = 77
    assert mapping.array()[block.offset + BIG - 1] == 77
    assert mmap.PAGESIZE == PAGE
