"""The frame decoder against anything that bytes can be: PeerError or a message, and never more memory than allowed."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windlass._transport.base import HubEvent
from windlass._transport.inbox import Goodbye, Inbox, Scratch
from windlass._transport.pool import MIN_POOLED_BYTES, BufferPool
from windlass._wire.effects import Received
from windlass._wire.frame import (
    HEADER,
    FrameLimits,
    Kind,
    decode_message,
    encode_goodbye,
    encode_message,
    encode_retire,
    encode_segments,
    parse_header,
)
from windlass._wire.messages import Ack, AnyMessage, Done, Push
from windlass.errors import PeerError
from windlass.types import Incarnation, KeyId

LIMITS = FrameLimits(max_meta_bytes=10_000, max_payload_bytes=100_000, max_buffers=50)
SCRATCH = 4096
ACK = Ack(key=KeyId(1), shard=0, clock=2)
PUSH = Push(key=KeyId(1), shard=0, clock=2, since=0, part=0, parts=1, pieces=((0, 1, 2),), hyper={"lr": 0.1})


def frame(message: AnyMessage, *buffers: bytes) -> bytes:
    lengths = list(map(len, buffers))
    return bytes(encode_message(message, lengths, (), sum(lengths))) + b"".join(buffers)


def feed(data: bytes, cuts: list[int] | None = None) -> list[HubEvent]:
    """Give an inbox these bytes as a link would, in pieces cut at these positions, each at most a scratch long."""
    inbox = Inbox(Incarnation(7), LIMITS, BufferPool(1 << 20), None)
    scratch = Scratch(SCRATCH)
    events: list[HubEvent] = []
    bounds = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    at = 0
    for end in bounds[1:]:
        while at < end:
            if inbox.wanted:
                view = inbox.wanted[0]
                nbytes = min(len(view), end - at)
                view[:nbytes] = data[at : at + nbytes]
                inbox.landed(nbytes, events)
            else:
                nbytes = min(SCRATCH, end - at)
                scratch.view[:nbytes] = data[at : at + nbytes]
                inbox.take(scratch, nbytes, events)
            at += nbytes
    return events


def check_hostile(data: bytes, cuts: list[int] | None = None) -> None:
    """Anything but PeerError, a goodbye or events is a failure, and so is much memory."""
    tracemalloc.start()
    try:
        feed(data, cuts)
    except (PeerError, Goodbye):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 << 20


edits = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 1 << 20), max_size=6)
valid = st.sampled_from([
    frame(ACK),
    frame(PUSH, b"x" * 64, b"", b"y" * 3000),
    frame(Done(request=1, detail={"a": [1, 2.5, None, "text"]})),
    frame(ACK, b"z" * 20_000),
    bytes(encode_goodbye("enough")),
    bytes(encode_segments([(1, 4096)])),
    bytes(encode_retire([1, 2])),
    bytes(encode_message(ACK, (), [(1, 0, 100_000)])),
])


@given(sizes=st.lists(st.lists(st.integers(0, 9000), max_size=4), min_size=1, max_size=6), cuts=cuts)
@settings(max_examples=100, deadline=None)
def test_however_a_stream_is_cut_the_same_messages_come_out(sizes: list[list[int]], cuts: list[int]) -> None:
    rng = np.random.default_rng(0)
    sent = [(Ack(key=KeyId(1), shard=0, clock=n), [rng.bytes(size) for size in each]) for n, each in enumerate(sizes)]
    events = feed(b"".join(frame(message, *buffers) for message, buffers in sent), cuts)
    assert all(isinstance(event, Received) for event in events)
    came = [(event.message, [array.tobytes() for array in event.data]) for event in events]  # type: ignore[union-attr]
    assert came == sent


@given(data=st.binary(max_size=3000), cuts=cuts)
@example(data=b"\0" * 16, cuts=[])
@settings(max_examples=150, deadline=None)
def test_random_bytes_raise_peer_error_or_nothing(data: bytes, cuts: list[int]) -> None:
    check_hostile(data, cuts)


@given(meta=st.binary(max_size=200), kind=st.integers(0, 5), payload=st.integers(0, 200))
@settings(max_examples=250, deadline=None)
def test_random_meta_raises_peer_error_or_nothing(meta: bytes, kind: int, payload: int) -> None:
    check_hostile(HEADER.pack(b"WL", 1, kind, len(meta), payload) + meta + bytes(payload))


@given(data=valid, edits=edits, cuts=cuts)
@settings(max_examples=250, deadline=None)
def test_mutated_frames_raise_peer_error_or_nothing(data: bytes, edits: list[tuple[int, int]], cuts: list[int]) -> None:
    changed = bytearray(data)
    for position, value in edits:
        changed[position % len(changed)] = value
    check_hostile(bytes(changed) + frame(ACK), cuts)


@given(data=valid, keep=st.integers(0, 1 << 16), cuts=cuts)
@settings(max_examples=100, deadline=None)
def test_truncated_frames_are_waited_for(data: bytes, keep: int, cuts: list[int]) -> None:
    part = data[: keep % len(data)]
    assert feed(part, cuts) == []


leaves = st.none() | st.booleans() | st.integers(-5, 1 << 63) | st.floats() | st.text(max_size=9)


@given(content=st.recursive(leaves, lambda inner: st.lists(inner, max_size=4), max_leaves=8))
@settings(max_examples=150, deadline=None)
def test_msgpack_that_is_no_message_raises_peer_error(content: object) -> None:
    meta = msgspec.msgpack.encode(content)
    with pytest.raises(PeerError, match="expected"):
        decode_message(bytearray(meta), 0, LIMITS)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"GET / HTTP/1.1\r\n", "expected a frame beginning with b'WL', got b'GE'"),
        (HEADER.pack(b"WL", 2, 0, 1, 0), "expected frame version 1, got 2"),
        (HEADER.pack(b"WL", 1, 9, 1, 0), "expected a frame kind from 0 to 3, got 9"),
        (HEADER.pack(b"WL", 1, 0, 10_001, 0), "expected at most 10000 bytes of meta, got 10001"),
        (HEADER.pack(b"WL", 1, 0, 1, 100_001), "expected at most 100000 bytes of payload, got 100001"),
        (HEADER.pack(b"WL", 1, Kind.GOODBYE, 1, 1), "expected at most 0 bytes of payload, got 1"),
    ],
)
def test_a_bad_header_says_what_was_expected(data: bytes, complaint: str) -> None:
    with pytest.raises(PeerError, match=complaint):
        parse_header(memoryview(data), 0, LIMITS)


@pytest.mark.parametrize(
    ("lengths", "references", "payload", "complaint"),
    [
        ([5, 6], [], 12, "expected buffers of 12 bytes in all, got lengths of 11"),
        ([], [], 12, "expected buffers of 12 bytes in all, got lengths of 0"),
        ([-1, 13], [], 12, "Expected `int` >= 0"),
        ([], [(1, -1, 5)], 0, "Expected `int` >= 0"),
        ([], [(1, 0, 5)], 5, "expected buffers either inline or by reference, got both"),
        ([5], [(1, 0, 5)], 5, "expected buffers either inline or by reference, got both"),
        ([0] * 51, [], 0, "expected at most 50 buffers, got 51"),
        ([], [(1, 0, 1)] * 51, 0, "expected at most 50 buffers, got 51"),
    ],
)
def test_buffers_that_do_not_add_up_are_refused(
    lengths: list[int], references: list[tuple[int, int, int]], payload: int, complaint: str
) -> None:
    meta = encode_message(ACK, lengths, references)[HEADER.size :]
    with pytest.raises(PeerError, match=complaint):
        decode_message(meta, payload, LIMITS)


def test_deep_nesting_is_refused() -> None:
    detail = b"\x91" * 9000 + b"\xc0"
    meta = b"\x93" + b"\x93\xa4Done\x01" + detail + b"\x90\x90"
    with pytest.raises(PeerError, match="expected the meta of a message"):
        decode_message(bytearray(meta), 0, LIMITS)


def test_the_pool_keeps_no_more_than_allowed_and_forgets_the_oldest_size() -> None:
    pool = BufferPool(10 * MIN_POOLED_BYTES)
    small = [pool.take(MIN_POOLED_BYTES) for _ in range(8)]
    pool.give(tuple(small))
    large = pool.take(9 * MIN_POOLED_BYTES)
    where = large.ctypes.data
    pool.give((large,))
    assert pool.kept_bytes == 10 * MIN_POOLED_BYTES
    del large
    assert pool.take(9 * MIN_POOLED_BYTES).ctypes.data == where
    pool.give((np.empty(MIN_POOLED_BYTES, np.uint8),))  # not ours
    assert pool.kept_bytes == MIN_POOLED_BYTES
