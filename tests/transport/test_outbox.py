"""What leaves a busy link first."""

from __future__ import annotations

import socket

import pytest

from windlass._transport.outbox import AHEAD_BYTES, Outbox
from windlass._wire.effects import Sent

LARGE = 2 * AHEAD_BYTES


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def drain(outbox, ours, theirs):
    """Everything that leaves, and what was reported on the way."""
    came, events = bytearray(), []
    while True:
        is_empty = outbox.write(ours, events)
        try:
            while part := theirs.recv(1 << 20):
                came += part
        except BlockingIOError:
            if is_empty:
                return bytes(came), events


def order(came: bytes) -> str:
    """The letters of the messages, in the order that they came in."""
    seen = [chr(came[0])] + [chr(b) for a, b in zip(came[::4096], came[4096::4096], strict=False) if a != b]
    return "".join(seen)


def message(letter: str) -> list:
    return [bytearray(letter.encode() * LARGE)]


def test_a_message_of_higher_priority_overtakes_those_that_wait_but_not_the_one_that_leaves(pair):
    outbox = Outbox()
    for letter, priority in zip("abcd", (0, -2, -1, 5), strict=True):
        outbox.post(message(letter), (), priority)
    came, _ = drain(outbox, *pair)
    assert order(came) == "adcb"
    assert len(came) == 4 * LARGE


def test_messages_of_one_priority_leave_in_order_small_ones_too(pair):
    outbox = Outbox()
    outbox.post(message("a"), (), 0)
    outbox.post(message("b"), (), -3)
    outbox.post([bytearray(b"c" * 4096)], (), -3)
    outbox.post(message("d"), (), -3)
    assert order(drain(outbox, *pair)[0]) == "abcd"


def test_pins_are_reported_in_the_order_in_which_their_bytes_left(pair):
    outbox = Outbox()
    outbox.post(message("a"), (1,), 0)
    outbox.post(message("b"), (2,), -2)
    outbox.post(message("c"), (3,), -1)
    _, events = drain(outbox, *pair)
    assert events == [Sent(1), Sent(3), Sent(2)]


def test_what_waits_is_copied_when_its_owner_takes_the_memory_back(pair):
    outbox = Outbox()
    memory = bytearray(b"b" * LARGE)
    outbox.post(message("a"), (), 0)
    outbox.post([memoryview(memory)], (), 0)
    outbox.own()
    memory[:] = b"x" * LARGE
    assert order(drain(outbox, *pair)[0]) == "ab"


def test_a_frame_of_the_links_own_goes_before_everything_that_waits(pair):
    outbox = Outbox()
    outbox.post(message("a"), (), 0)
    outbox.post(message("b"), (), 9)
    outbox.add(b"s" * 4096)
    assert order(drain(outbox, *pair)[0]) == "asb"
