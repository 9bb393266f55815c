"""Who is served next when one peer has sent more than is soon done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from windlass._transport.loop import TURN_SECONDS, Loop
from windlass._transport.turns import MAX_WAITING, MAX_WAITING_BYTES, Turns
from windlass._wire import messages as m
from windlass._wire.effects import Event, LinkDown, LinkUp, Received, Send
from windlass.types import Incarnation

FLOOD, OTHER = Incarnation(1), Incarnation(2)


def ack(peer: Incarnation, clock: int, nbytes: int = 0, *, is_shared: bool = False) -> Received:
    return Received(peer, m.Ack(key=0, shard=0, clock=clock), (np.zeros(nbytes, np.uint8),), is_shared)


def test_whoever_had_the_least_time_is_next_and_each_peers_events_stay_in_order():
    turns = Turns()
    turns.add([ack(FLOOD, clock) for clock in range(4)])
    served = []
    for seconds in (1.0, 1.0, 0.001, 0.001, 1.0):
        peer, event = turns.next()
        served.append((peer, event.message.clock))
        turns.spend(peer, seconds)
        if len(served) == 2:
            turns.add([ack(OTHER, 0), ack(OTHER, 1)])
    assert served == [(FLOOD, 0), (FLOOD, 1), (OTHER, 0), (OTHER, 1), (FLOOD, 2)]
    assert len(turns) == 1


def test_who_comes_later_does_not_get_all_the_time_that_others_have_had_before():
    turns = Turns()
    turns.add([ack(FLOOD, clock) for clock in range(30)])
    for _ in range(10):
        turns.spend(turns.next()[0], 1.0)
    turns.add([ack(OTHER, clock) for clock in range(30)])
    served = []
    for _ in range(6):
        served.append(turns.next()[0])
        turns.spend(served[-1], 1.0)
    assert served == [OTHER, FLOOD] * 3


def test_time_is_forgotten_when_nobody_waits():
    turns = Turns()
    turns.add([ack(FLOOD, 0)])
    turns.spend(turns.next()[0], 5.0)
    turns.add([ack(FLOOD, 1), ack(OTHER, 0)])
    assert turns.next()[0] == FLOOD


def test_no_more_is_taken_off_the_links_while_many_events_or_bytes_wait():
    turns = Turns()
    turns.add([ack(FLOOD, clock) for clock in range(MAX_WAITING - 1)])
    assert not turns.is_full
    turns.add([ack(FLOOD, MAX_WAITING)])
    assert turns.is_full
    turns = Turns()
    turns.add([ack(FLOOD, 0, MAX_WAITING_BYTES, is_shared=True)])
    assert not turns.is_full  # it lies with its sender
    turns.add([ack(FLOOD, 1, MAX_WAITING_BYTES)])
    assert turns.is_full
    turns.next()
    turns.next()
    assert not turns.is_full


class Slow:
    """A state machine that takes its time with what the flood sends."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def handle(self, event: Event, now: float) -> list[Any]:
        if isinstance(event, Received):
            time.sleep(TURN_SECONDS / 2 if event.peer == FLOOD else 0.0)
            self.heard.append((event.peer, event.message.clock))
        else:
            self.heard.append(event)
        return []


class Answering(Slow):
    """Answers whatever it receives, to one peer."""

    def handle(self, event: Event, now: float) -> list[Any]:
        super().handle(event, now)
        return [Send(FLOOD, m.Ack(key=0, shard=0, clock=0))] if isinstance(event, Received) else []


class Script:
    """A hub that gives, at each poll, what was written down for it."""

    def __init__(self, polls: Sequence[Sequence[Event]]) -> None:
        self._polls = list(polls)
        self.flushes = 0
        self.sent_after: list[int] = []  # how many polls each message was sent after
        self._num_polls = 0

    def send(self, send: Send) -> None:
        self.sent_after.append(self._num_polls)

    def poll(self, timeout: float | None) -> Sequence[Event]:
        self._num_polls += 1
        return self._polls.pop(0) if self._polls else ()

    def flush(self) -> None:
        self.flushes += 1


def run(*polls: Sequence[Event]) -> tuple[list[Any], Script]:
    state, hub = Slow(), Script(polls)
    loop = Loop(state, hub, "server-0")
    while loop.turn(0.0):
        pass
    return state.heard, hub


def test_a_peer_that_asks_little_does_not_wait_for_all_that_another_has_sent():
    flood = [ack(FLOOD, clock) for clock in range(30)]
    heard, hub = run(flood, [ack(OTHER, 0), ack(OTHER, 1)])
    assert heard.index((OTHER, 1)) <= 8
    assert [clock for peer, clock in heard if peer == FLOOD] == list(range(30))
    assert hub.flushes >= 20  # what is answered leaves before the rest is worked on


def test_news_of_links_are_heard_after_what_came_before_them():
    flood = [ack(FLOOD, clock) for clock in range(12)]
    down, up = LinkDown(FLOOD, "gone"), LinkUp(FLOOD)
    heard, _ = run(flood, [down, up], [ack(FLOOD, 0)])
    assert heard == [*((FLOOD, clock) for clock in range(12)), down, up, (FLOOD, 0)]


def test_nothing_travels_on_a_new_link_before_it_is_heard_of():
    flood = [ack(OTHER, clock) for clock in range(8)]
    before, news = [ack(FLOOD, clock) for clock in range(6)], [LinkDown(FLOOD, "gone"), LinkUp(FLOOD)]
    state, hub = Answering(), Script([before, news, flood])
    loop = Loop(state, hub, "server-0")
    while loop.turn(0.0):
        pass
    assert len(state.heard) == 6 + 2 + 8
    assert state.heard.index(news[0]) == 6
    assert hub.sent_after.count(2) == 0  # what was worked on while the news waited
    assert hub.sent_after.count(1) < 6
    assert hub.sent_after.count(3) == 8
