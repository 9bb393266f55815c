"""Runs a state machine on a hub: feeds it events, carries out its effects, in one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from windlass._transport.base import Hub
from windlass._wire.effects import (
    Dial,
    Event,
    Hangup,
    Later,
    Leave,
    LinkDown,
    Log,
    Persist,
    Received,
    Recycle,
    Send,
    Stop,
    Tick,
)
from windlass.errors import UsageError
from windlass.types import MANAGER

log = logging.getLogger("windlass")


class State(Protocol):
    def handle(self, event: Event, now: float) -> list[Any]: ...


REDIAL_SECONDS = 0.05


class Loop:
    """One node. `turn` does a bounded amount of work: the events at hand, then one piece of work put off. `persist`
    keeps a record, and raises if it cannot: then the node must not go on."""

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
        self._redial: list[tuple[float, Dial]] = []
        self._tick_seconds = tick_seconds
        self._next_tick = 0.0
        self._persist = persist

    def leave(self) -> None:
        """Ask the node to go; it stops when it may. Only from the thread that calls `turn`."""
        self._perform(Leave())

    def turn(self, timeout: float | None) -> bool:
        """Wait up to `timeout` for something to do, and do it. Says whether there was anything."""
        if self._later:
            timeout = 0.0
        elif self._redial:
            timeout = REDIAL_SECONDS if timeout is None else min(timeout, REDIAL_SECONDS)
        if self._tick_seconds is not None:
            left = self._tick(self._tick_seconds)
            timeout = left if timeout is None else min(timeout, left)
        events = self.hub.poll(timeout)
        for event in events:
            self._perform(event)
        if self._later:
            self._perform(self._later.popleft())
            return True
        self._dial_again()
        return bool(events)

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
