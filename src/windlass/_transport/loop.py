"""Runs a state machine on a hub: feeds it events, carries out its effects, in one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from windlass._transport.base import Hub
from windlass._transport.turns import Turns
from windlass._wire.effects import (
    Dial,
    Event,
    Hangup,
    Later,
    Leave,
    LinkDown,
    LinkUp,
    Log,
    Persist,
    Received,
    Recycle,
    Send,
    Stop,
    Tick,
)
from windlass.errors import UsageError
from windlass.types import MANAGER, Incarnation

log = logging.getLogger("windlass")


class State(Protocol):
    def handle(self, event: Event, now: float) -> list[Any]: ...


REDIAL_SECONDS = 0.05


FLUSH_SECONDS = 0.0003
TURN_SECONDS = 0.002
"""After so long with the events at hand, others are looked for: nobody waits for all that one peer has sent."""


class Loop:
    """One node. `turn` does a bounded amount of work: the events at hand, or some of them, then one piece of work put
    off. `persist` keeps a record, and raises if it cannot: then the node must not go on."""

    def __init__(
        self,
        state: State,
        hub: Hub,
        name: str,
        tick_seconds: float | None = None,
        persist: Callable[[Any], None] | None = None,
    ) -> None:
        self.state = state
        self.hub = hub
        self.name = name
        self.stopped: str | None = None
        self._later: deque[Later] = deque()
        self._turns = Turns()
        self._unheard: set[Incarnation] = set()  # peers whose new link the state machine is yet to hear of
        self._redial: list[tuple[float, Dial]] = []
        self._tick_seconds = tick_seconds
        self._next_tick = 0.0
        self._persist = persist

    def leave(self) -> None:
        """Ask the node to go; it stops when it may. Only from the thread that calls `turn`."""
        self._perform(Leave())

    def turn(self, timeout: float | None) -> bool:
        """Wait up to `timeout` for something to do, and do it. Says whether there was anything."""
        if self._later or self._turns:
            timeout = 0.0
        elif self._redial:
            timeout = REDIAL_SECONDS if timeout is None else min(timeout, REDIAL_SECONDS)
        if self._tick_seconds is not None:
            left = self._tick(self._tick_seconds)
            timeout = left if timeout is None else min(timeout, left)
        events = () if self._turns.is_full else self.hub.poll(timeout)
        if self._turns:
            self._take_turns(events)
        else:
            self._work_through(events)
        if self._later:
            self._perform(self._later.popleft())
            return True
        self._dial_again()
        return bool(events) or bool(self._turns)

    def _work_through(self, events: Sequence[Event]) -> None:
        """In the order in which they came, as long as that is soon done."""
        began = flushed = time.monotonic()
        for done, event in enumerate(events, 1):
            self._perform(event)
            if done == len(events):
                return
            now = time.monotonic()
            if now - flushed > FLUSH_SECONDS:  # whoever is answered need not wait for the others
                self.hub.flush()
                flushed = now
            if now - began > TURN_SECONDS:
                self._take_turns(events[done:])
                return

    def _take_turns(self, events: Sequence[Event]) -> None:
        """Whoever has had the least of our time is next, and what is answered leaves at once."""
        if any(isinstance(event, LinkUp | LinkDown) for event in events):
            self._unheard = {event.peer for event in events if isinstance(event, LinkUp)}
            while self._turns:  # news of links are heard after all that came before them
                self._take_turn()
            self._unheard = set()
            for event in events:
                self._perform(event)
            return
        self._turns.add(events)
        until = time.monotonic() + TURN_SECONDS
        while self._turns and self._take_turn() < until:
            pass

    def _take_turn(self) -> float:
        """One event. Returns how late it is."""
        peer, event = self._turns.next()
        before = time.monotonic()
        self._perform(event)
        self.hub.flush()
        now = time.monotonic()
        self._turns.spend(peer, now - before)
        return now

    def _tick(self, tick_seconds: float) -> float:
        """Tell the state machine that time has passed, if it is time for that. Seconds until the next time."""
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + tick_seconds
            self._perform(Tick())
        return self._next_tick - now

    def _perform(self, event: Event) -> None:
        try:
            effects = self.state.handle(event, time.monotonic())
        except Exception:
            if not isinstance(event, Received):
                raise
            # A message that nobody foresaw must not take the node down with it: its sender loses the link.
            log.exception("%s could not handle %s from %s", self.name, type(event.message).__name__, event.peer)
            if event.peer != MANAGER:  # its word is passed on from others, and without it this node is out
                self.hub.hangup(event.peer, f"{self.name} could not handle {type(event.message).__name__}")
            return
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Recycle):
                self.hub.recycle(effect.data)
            elif isinstance(effect, Later):
                self._later.append(effect)
            elif isinstance(effect, Log):
                log.log(logging.getLevelNamesMapping()[effect.level.upper()], "%s: %s", self.name, effect.text)
            elif isinstance(effect, Dial):
                self._dial(effect, is_again=isinstance(event, LinkDown))
            elif isinstance(effect, Hangup):
                self.hub.hangup(effect.peer, effect.reason)
            elif isinstance(effect, Persist):
                if self._persist is not None:
                    self._persist(effect.record)
            elif isinstance(effect, Stop):
                self.stopped = effect.reason

    def _send(self, send: Send) -> None:
        if send.peer in self._unheard:
            return  # as if the link were not there yet: what is decided before it is known must not travel on it
        try:
            self.hub.send(send)
        except UsageError as error:  # too large for a frame: its peer would wait in vain
            log.error("%s could not send %s: %s", self.name, type(send.message).__name__, error)
            self.hub.hangup(send.peer, str(error))

    def _dial(self, dial: Dial, *, is_again: bool) -> None:
        if is_again:  # it was refused a moment ago: do not spin
            self._redial.append((time.monotonic() + REDIAL_SECONDS, dial))
        else:
            self.hub.dial(dial.peer, dial.addresses)

    def _dial_again(self) -> None:
        if self._redial and self._redial[0][0] <= time.monotonic():
            _, dial = self._redial.pop(0)
            self.hub.dial(dial.peer, dial.addresses)
