"""Links that are as bad as the ledger says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.transport.rig import FORMS, TOKEN, Node, ack, expect_soon
from windlass._ledger import Faults, Ledger
from windlass._transport.faulty import APART, LOST, FaultyHub
from windlass._transport.options import TransportOptions
from windlass._wire.effects import LinkDown, LinkUp, Received
from windlass.types import MANAGER, Block, Incarnation

every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
BOTH = frozenset({1, 2})


@contextmanager
def spoiled(form: str, first: int = 1) -> Iterator[tuple[Node, Node, Ledger]]:
    """Two nodes with an open link, and the ledger that they look at."""
    ledger = Ledger.make()
    one = Node(FaultyHub(Incarnation(first), TOKEN, ledger, options=TransportOptions(listen=(form,))))
    two = Node(FaultyHub(Incarnation(2), TOKEN, ledger, options=TransportOptions()))
    try:
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: bool(one.of(LinkUp) and two.of(LinkUp)))
        yield one, two, ledger
    finally:
        two.hub.close()
        one.hub.close()
        ledger.close()


@every_form
def test_late_frames_come_whole_and_in_order(form: str) -> None:
    with spoiled(form) as (one, two, ledger):
        ledger.write_faults(Faults(delay_seconds=0.2, nodes=BOTH))
        began = time.monotonic()
        block = Block(np.full(64, 1, np.uint8))
        for clock in range(5):
            one.send(two, ack(clock), block)
        block.array[:] = 99  # a small block is the sender's again at once
        assert one.hub.has_unsent
        one.poll()
        ledger.write_faults(Faults())
        one.send(two, ack(5), block)  # not late, and not before those that are
        expect_soon([one, two], lambda: len(two.messages) == 6)
        assert time.monotonic() - began >= 0.2
        assert two.messages == [ack(clock) for clock in range(6)]
        assert [event.data[0][0] for event in two.of(Received)] == [1] * 5 + [99]
        assert ledger.rows()["frames_late"].sum() == 5


def test_an_owner_that_leaves_takes_its_memory_along() -> None:
    with spoiled(FORMS["tcp"]) as (one, two, ledger):
        ledger.write_faults(Faults(delay_seconds=0.1, nodes=BOTH))
        large = Block(np.full(100_000, 1, np.uint8))
        one.send(two, ack(1), large)
        one.hub.own_unsent()
        large.array[:] = 99
        expect_soon([one, two], lambda: len(two.messages) == 1)
        assert set(two.of(Received)[0].data[0].tolist()) == {1}


@every_form
def test_a_lost_frame_takes_its_link_with_it_and_nobody_is_taken_for_dead(form: str) -> None:
    with spoiled(form) as (one, two, ledger):
        ledger.write_faults(Faults(drop=0.999999, nodes=BOTH))
        one.send(two, ack(1))
        expect_soon([one, two], lambda: bool(one.of(LinkDown) and two.of(LinkDown)))
        assert [event.reason for event in one.of(LinkDown)] == [LOST]
        assert LOST in two.of(LinkDown)[0].reason
        assert not any(event.is_death for event in (*one.of(LinkDown), *two.of(LinkDown)))
        assert two.messages == []
        assert ledger.rows()["frames_lost"].sum() == 1


def test_late_frames_of_a_link_that_broke_are_not_sent_on_the_next_one() -> None:
    with spoiled(FORMS["tcp"]) as (one, two, ledger):
        ledger.write_faults(Faults(delay_seconds=0.05, nodes=BOTH))
        one.send(two, ack(1))
        two.hub.hangup(one.me, "for a test")
        expect_soon([one, two], lambda: bool(one.of(LinkDown)))
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: len(one.of(LinkUp)) == 2 and len(two.of(LinkUp)) == 2)
        ledger.write_faults(Faults())
        one.send(two, ack(2))
        expect_soon([one, two], lambda: bool(two.messages))
        time.sleep(0.06)
        one.poll()
        two.poll(0.01)
        assert two.messages == [ack(2)]


def test_links_to_the_manager_lose_nothing() -> None:
    with spoiled(FORMS["unix"], first=MANAGER) as (manager, two, ledger):
        ledger.write_faults(Faults(drop=0.999999, nodes=frozenset({MANAGER, 2})))
        for clock in range(20):
            manager.send(two, ack(clock))
            two.send(manager, ack(clock))
        expect_soon([manager, two], lambda: len(two.messages) == len(manager.messages) == 20)


def test_strangers_are_left_alone() -> None:
    with spoiled(FORMS["unix"]) as (one, two, ledger):
        ledger.write_faults(Faults(drop=0.999999, delay_seconds=60.0, nodes=frozenset({1})))
        one.send(two, ack(1))
        expect_soon([one, two], lambda: len(two.messages) == 1)


@every_form
def test_nodes_on_two_sides_part_and_meet_again(form: str) -> None:
    with spoiled(form) as (one, two, ledger):
        ledger.write_faults(Faults(sides=((1,), (2,))))
        expect_soon([one, two], lambda: bool(one.of(LinkDown) and two.of(LinkDown)))
        two.events.clear()
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([two, one], lambda: bool(two.of(LinkDown)))
        assert two.of(LinkDown)[0].reason == APART
        assert ledger.rows()["times_refused"].sum() == 1
        ledger.write_faults(Faults())
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: bool(two.of(LinkUp)))


def test_a_caller_from_the_other_side_is_turned_away_though_it_does_not_know() -> None:
    with spoiled(FORMS["tcp"]) as (one, _, ledger):
        ledger.write_faults(Faults(sides=((1,), (3,))))
        other = Ledger.make()
        three = Node(FaultyHub(Incarnation(3), TOKEN, other, options=TransportOptions()))
        three.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, three], lambda: bool(three.of(LinkDown)))
        assert all(event.peer != three.me for event in one.of(LinkUp))
        three.hub.close()
        other.close()


def test_faults_end_by_themselves() -> None:
    with spoiled(FORMS["unix"]) as (one, two, ledger):
        ledger.write_faults(Faults(drop=0.999999, nodes=BOTH, until=time.monotonic() - 0.1))
        one.send(two, ack(1))
        expect_soon([one, two], lambda: len(two.messages) == 1)
