"""The scheduler as it lives in the manager's process: two state machines behind one door.

The manager and the scheduler know nothing of each other. What nodes send for leased work goes to the one, everything
else to the other, and that a checkpoint was loaded to both; a generation that the manager publishes is told to the
scheduler before it is told to anyone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Received, Send, Tick
from windlass.scheduler.state import SchedulerState
from windlass.types import MANAGER

LEASED = frozenset((m.Take, m.Holding, m.Tallied))


class Machine(Protocol):
    def handle(self, event: Event, now: float) -> list[Effect]: ...


M = TypeVar("M", bound=Machine)


class Hosted(Generic[M]):
    """A manager with a scheduler beside it."""

    def __init__(self, manager: M, epochs: Mapping[tuple[str, str], int] | None = None) -> None:
        """`epochs` is what the schedulers before this one have written down."""
        self.manager = manager
        self.scheduler = SchedulerState(epochs or {})

    def handle(self, event: Event, now: float) -> list[Effect]:
        message = event.message if type(event) is Received else None
        kind = type(message)
        if kind in LEASED:
            return self.scheduler.handle(event, now)
        effects = self.manager.handle(event, now)
        if kind is m.Loaded:  # a generation for all, then the answer
            effects = [*effects, *self.scheduler.handle(event, now)]
        if kind is m.Beat and len(effects) == 1:
            return effects  # the usual one: its answer
        if kind is m.Inspect:
            for effect in effects:
                if isinstance(effect, Send) and isinstance(effect.message, m.Done):
                    effect.message.detail["workloads"] = self.scheduler.describe()
        out: list[Effect] = []
        told: m.Membership | None = None  # all get the same one, and the scheduler needs it once
        for effect in effects:
            if type(effect) is Send and type(effect.message) is m.Membership and effect.message is not told:
                told = effect.message
                out += self.scheduler.handle(Received(MANAGER, told), now)
            out.append(effect)
        if message is None and isinstance(event, Tick):
            out += self.scheduler.handle(event, now)
        return out
