"""What two hubs promise each other over every kind of socket."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from tests.busy import is_within
from tests.transport.rig import FORMS, Node, ack, expect_soon, linked, node, open_files, private
from windlass._transport.options import TransportOptions
from windlass._wire.effects import LinkDown, LinkUp, Received, Sent
from windlass._wire.frame import FrameLimits
from windlass._wire.messages import Abort, Done, Push
from windlass.errors import UsageError
from windlass.types import MANAGER, Block, Incarnation, KeyId

every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())


@every_form
def test_messages_and_data_go_both_ways(form: str) -> None:
    with linked(form) as (one, two):
        for turn in range(20):
            one.send(two, ack(turn), *private(turn, turn + 1))
            expect_soon([one, two], lambda turn=turn: len(two.messages) == turn + 1)  # type: ignore[misc]
            two.send(one, ack(turn))
            expect_soon([one, two], lambda turn=turn: len(one.messages) == turn + 1)  # type: ignore[misc]
        assert two.messages == one.messages == [ack(turn) for turn in range(20)]
        data = two.of(Received)[7].data
        assert [(array.nbytes, set(array.tolist())) for array in data] == [(64, {7}), (64, {8})]


@every_form
def test_every_field_of_a_message_survives(form: str) -> None:
    pieces = ((0, 1, 2), (3, 4, 5))
    push = Push(key=KeyId(3), shard=1, clock=9, since=1, part=0, parts=2, pieces=pieces, hyper={"lr": 0.5})
    done = Done(request=1, detail={"a": [1, None, "é", 2.5], "b": b"\0\xff"})
    with linked(form) as (one, two):
        one.send(two, push)
        one.send(two, done)
        expect_soon([one, two], lambda: len(two.messages) == 2)
        assert two.messages == [push, done]


@every_form
def test_large_and_small_buffers_of_one_message_arrive_whole_and_separate(form: str) -> None:
    rng = np.random.default_rng(0)
    sent = [rng.integers(0, 256, n, np.uint8) for n in (3_000_001, 0, 1, 70_000, 16_385, 5, 9_000_000, 0)]
    with linked(form) as (one, two):
        one.send(two, ack(1), *map(Block, sent))
        one.send(two, ack(2))
        expect_soon([one, two], lambda: len(two.messages) == 2)
        came = two.of(Received)[0]
        assert not came.is_shared
        assert [array.tobytes() for array in came.data] == [array.tobytes() for array in sent]
        assert all(array.flags.writeable and array.flags.owndata for array in came.data)


@every_form
def test_order_holds_when_a_slow_reader_makes_writes_partial(form: str) -> None:
    blocks = [Block(np.full(300_000, n % 251, np.uint8)) for n in range(100)]
    with linked(form) as (one, two):
        for clock, block in enumerate(blocks):
            one.send(two, ack(clock), block, pins=(clock,))
            one.send(two, ack(1000 + clock))
        one.poll(0)
        assert one.hub.has_unsent
        assert len(one.of(Sent)) < 100
        expect_soon([one, two], lambda: len(two.messages) == 200)
        assert [message.clock for message in two.messages] == [  # type: ignore[union-attr]
            clock for pair in zip(range(100), range(1000, 1100), strict=True) for clock in pair
        ]
        assert all(set(event.data[0][::997]) == {n % 251} for n, event in enumerate(two.of(Received)[::2]))
        expect_soon([one, two], lambda: not one.hub.has_unsent)
        assert [event.pin for event in one.of(Sent)] == list(range(100))


@every_form
def test_a_thousand_messages_queued_at_once_arrive_in_order(form: str) -> None:
    with linked(form) as (one, two):
        for clock in range(3000):
            one.send(two, ack(clock), *private(1))
        expect_soon([one, two], lambda: len(two.messages) == 3000)
        assert [message.clock for message in two.messages] == list(range(3000))  # type: ignore[union-attr]


@every_form
def test_a_meta_longer_than_one_read_arrives(form: str) -> None:
    long = Done(request=1, detail="x" * 1_000_000)
    with linked(form) as (one, two):
        one.send(two, long, *private(7, nbytes=100_000))
        one.send(two, long)
        one.send(two, ack(1))
        expect_soon([one, two], lambda: len(two.messages) == 3)
        assert two.messages == [long, long, ack(1)]
        assert two.of(Received)[0].data[0].tobytes() == b"\7" * 100_000


@every_form
def test_sent_is_reported_for_small_copied_blocks_too(form: str) -> None:
    with linked(form) as (one, two):
        one.send(two, ack(1), *private(1), pins=(5, 6))
        expect_soon([one, two], lambda: len(one.of(Sent)) == 2)
        assert [event.pin for event in one.of(Sent)] == [5, 6]


def test_a_small_block_may_be_changed_as_soon_as_send_returns() -> None:
    with linked("unix") as (one, two):
        (block,) = private(1, nbytes=16 << 10)
        one.send(two, ack(1), block)
        block.array[:] = 9
        expect_soon([one, two], lambda: bool(two.messages))
        assert set(two.of(Received)[0].data[0].tolist()) == {1}


def test_received_buffers_are_used_again_once_recycled_and_only_once() -> None:
    with linked("tcp:127.0.0.1:0") as (one, two):
        def receive() -> Received:
            seen = len(two.messages)
            one.send(two, ack(seen), *private(seen, nbytes=1 << 20))
            expect_soon([one, two], lambda: len(two.messages) == seen + 1)
            return two.of(Received)[-1]

        first = receive().data
        where = first[0].ctypes.data
        two.hub.recycle(first)
        two.hub.recycle(first)
        again, other = receive().data[0], receive().data[0]
        assert again.ctypes.data == where
        assert other.ctypes.data != where
        assert set(again[::1000]) == {1}


def test_a_sender_without_pause_does_not_starve_another() -> None:
    hub, greedy, modest = node(1, "tcp:127.0.0.1:0"), node(2), node(3)
    nodes = [hub, greedy, modest]
    try:
        for one in (greedy, modest):
            one.hub.dial(hub.me, hub.hub.addresses)
        expect_soon(nodes, lambda: bool(greedy.of(LinkUp) and modest.of(LinkUp)))
        for clock in range(100):
            greedy.send(hub, ack(clock), *private(1, nbytes=1 << 20))
        greedy.poll(0)
        modest.send(hub, ack(-1))
        expect_soon(nodes, lambda: ack(-1) in hub.messages)
        assert len(hub.messages) < 50
    finally:
        for one in nodes:
            one.hub.close()


@every_form
def test_hangup_tells_the_peer_why(form: str) -> None:
    with linked(form) as (one, two):
        one.send(two, ack(1))
        one.hub.hangup(two.me, "superseded by generation 7")
        expect_soon([one, two], lambda: bool(two.of(LinkDown)))
        assert two.messages == [ack(1)]
        assert two.of(LinkDown) == [
            LinkDown(one.me, "node 1 hung up: superseded by generation 7", is_goodbye=True)
        ]
        expect_soon([one, two], lambda: one.of(LinkDown) == [LinkDown(two.me, "superseded by generation 7")])


@every_form
def test_last_words_arrive_although_the_other_side_was_still_sending(form: str) -> None:
    with linked(form) as (one, two):
        two.send(one, ack(1), *private(1, nbytes=20 << 20))
        two.poll(0)
        one.send(two, Abort(reason="stop"))
        one.hub.close()
        expect_soon([two], lambda: bool(two.of(LinkDown)))
        assert two.messages == [Abort(reason="stop")]


@every_form
def test_close_sends_what_is_queued(form: str) -> None:
    with linked(form) as (one, two):
        one.send(two, ack(1), *private(4, nbytes=8 << 20))
        reader = threading.Thread(target=lambda: expect_soon([two], lambda: bool(two.of(LinkDown))))
        reader.start()
        one.hub.close()
        reader.join()
        assert two.messages == [ack(1)]
        assert "node 1 hung up: node 1 closed" in two.of(LinkDown)[0].reason


@every_form
def test_what_is_sent_without_a_link_is_dropped(form: str) -> None:
    with linked(form) as (one, two):
        one.hub.hangup(two.me, "bye")
        one.send(two, ack(1), pins=(1,))
        one.send(node_of(99), ack(1))
        assert not one.hub.has_unsent
        assert one.poll(0.01) == [LinkDown(two.me, "bye")]
        assert one.poll(0.01) == []


def node_of(me: int) -> Node:
    """A name to send to; nobody answers to it."""
    return type("Nobody", (), {"me": Incarnation(me)})()  # type: ignore[no-any-return]


@every_form
def test_dialling_again_over_an_open_link_changes_nothing(form: str) -> None:
    with linked(form) as (one, two):
        two.hub.dial(one.me, one.hub.addresses)
        two.send(one, ack(1))
        expect_soon([one, two], lambda: bool(one.messages))
        assert len(two.events) == 1


def test_a_closed_port_is_reported_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp:127.0.0.1:{server.getsockname()[1]}"
    two = node(2)
    with two.hub:
        two.hub.dial(Incarnation(1), [address, "unix:@windlass-nobody", "pigeon:post"])
        expect_soon([two], lambda: bool(two.of(LinkDown)))
        reason = two.of(LinkDown)[0].reason
        assert reason.startswith("could not reach node 1: ")
        assert f"{address}: Connection refused" in reason
        assert "unix:@windlass-nobody: Connection refused" in reason
        assert "expected an address like unix:@name, tcp:host:port or tls:host:port, got 'pigeon:post'" in reason


def test_the_next_address_is_tried_when_one_is_closed() -> None:
    one, two = node(1, "tcp:127.0.0.1:0"), node(2)
    with one.hub, two.hub:
        two.hub.dial(one.me, ["unix:@windlass-elsewhere", *one.hub.addresses])
        expect_soon([one, two], lambda: two.of(LinkUp) == [LinkUp(one.me)])


def test_a_dial_that_nobody_answers_ends_at_its_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        two = node(2, options=TransportOptions(dial_seconds=0.1))
        with two.hub:
            began = time.monotonic()
            two.hub.dial(Incarnation(1), [f"tcp:127.0.0.1:{silent.getsockname()[1]}"])
            expect_soon([two], lambda: bool(two.of(LinkDown)))
            took = time.monotonic() - began
            assert took >= 0.1
            assert is_within(took, 2)
            assert "no answer within 0.1 s" in two.of(LinkDown)[0].reason


def test_hangup_ends_a_dial_that_is_under_way() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        two = node(2)
        with two.hub:
            two.hub.dial(Incarnation(1), [f"tcp:127.0.0.1:{silent.getsockname()[1]}"])
            two.hub.hangup(Incarnation(1), "not needed")
            assert two.poll(1) == [LinkDown(Incarnation(1), "not needed")]


def test_a_node_does_not_dial_itself() -> None:
    one = node(1, "unix")
    with one.hub:
        one.hub.dial(one.me, one.hub.addresses)
        assert one.poll(1) == [LinkDown(one.me, "node 1 dialled itself")]


def test_the_manager_is_dialled_by_its_number() -> None:
    manager, two = node(MANAGER, "unix"), node(2)
    with manager.hub, two.hub:
        two.hub.dial(MANAGER, manager.hub.addresses)
        expect_soon([manager, two], lambda: bool(manager.events and two.events))
        assert (manager.events, two.events) == ([LinkUp(two.me)], [LinkUp(MANAGER)])


def test_wake_ends_a_poll_in_another_thread() -> None:
    one = node(1)
    with one.hub:
        threading.Timer(0.05, one.hub.wake).start()
        assert one.hub.poll(None) == []
        one.hub.wake()
        began = time.monotonic()
        assert one.hub.poll(10) == []
        assert time.monotonic() - began < 5
    one.hub.wake()  # harmless after close


def test_poll_waits_as_long_as_it_is_told() -> None:
    one = node(1, "unix")
    with one.hub:
        began = time.monotonic()
        assert one.hub.poll(0.05) == []
        took = time.monotonic() - began
        assert took >= 0.05
        assert is_within(took, 1)


def test_data_beyond_the_limit_is_the_senders_mistake() -> None:
    limits = TransportOptions(listen=("tcp:127.0.0.1:0",), frames=FrameLimits(max_payload_bytes=100_000))
    with linked("tcp:127.0.0.1:0", a=limits) as (one, two):
        with pytest.raises(UsageError, match="at most 100000 bytes of data with one message, got 100001 with Ack"):
            one.send(two, ack(1), *private(1, nbytes=100_001))
        two.send(one, ack(1), *private(1, nbytes=100_001))
        expect_soon([one, two], lambda: bool(one.of(LinkDown) and two.of(LinkDown)))
        assert "node 2 broke protocol: expected at most 100000 bytes of payload" in one.of(LinkDown)[0].reason
        assert "node 1 hung up: you broke protocol" in two.of(LinkDown)[0].reason


def test_a_node_bound_to_every_interface_must_say_where_it_is() -> None:
    with pytest.raises(UsageError, match="advertise_host"):
        node(1, "tcp:0.0.0.0:0")
    one = node(1, options=TransportOptions(listen=("tcp:0.0.0.0:0",), advertise_host="127.0.0.1"))
    with one.hub:
        assert one.hub.addresses[0].startswith("tcp:127.0.0.1:")


def test_nothing_is_left_open_after_close() -> None:
    before = open_files()
    for form in FORMS.values():
        with linked(form) as (one, two):
            one.send(two, ack(1), one.hub.memory.allocate(1 << 20))
            expect_soon([one, two], lambda two=two: bool(two.messages))  # type: ignore[misc]
            two.hub.dial(Incarnation(77), one.hub.addresses)
            one.events.clear()
            two.events.clear()
        one.hub.close()
        del one, two
    assert open_files() <= before  # those of a cluster that an earlier test has closed may go meanwhile


def test_every_descriptor_closes_on_exec() -> None:
    before = {entry.split(" ")[0] for entry in open_files()}
    with linked("unix") as (one, two):
        one.send(two, ack(1), one.hub.memory.allocate(1 << 20))
        expect_soon([one, two], lambda: bool(two.messages))
        opened = {entry.split(" ")[0] for entry in open_files()} - before
        assert len(opened) > 8
        for fd in opened:
            with open(f"/proc/self/fdinfo/{fd}") as info:
                flags = next(line for line in info if line.startswith("flags:"))
            assert int(flags.split()[1], 8) & 0o2000000, fd
