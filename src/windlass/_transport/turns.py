"""Events that wait because there are more than are soon done, and whose turn it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from windlass._wire.effects import Event, Received
from windlass.types import Incarnation

MAX_WAITING = 64
MAX_WAITING_BYTES = 16 << 20
CREDIT_SECONDS = 0.01
"""How much of our time whoever begins to wait is ahead of the others."""


class Turns:
    """A queue for each peer. Whoever has had the least time is next; the events of one peer stay in order."""

    def __init__(self) -> None:
        self._queues: dict[Incarnation | None, deque[Event]] = {}
        self._seconds: dict[Incarnation | None, float] = {}
        self._count = 0
        self._nbytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be taken off the links: a peer that sends faster than it is served is to feel
        it."""
        return self._count >= MAX_WAITING or self._nbytes >= MAX_WAITING_BYTES

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            peer = event.peer if isinstance(event, Received) else None
            if peer not in self._queues:  # who comes later is ahead of those who wait, but not by all that they had
                least = min((self._seconds[one] for one in self._queues), default=0.0)
                self._seconds[peer] = max(self._seconds.get(peer, 0.0), least - CREDIT_SECONDS)
                self._queues[peer] = deque()
            self._queues[peer].append(event)
            self._count += 1
            self._nbytes += _own_bytes(event)

    def next(self) -> tuple[Incarnation | None, Event]:
        """Whose turn it is, and the event; `spend` tells how long it took."""
        peer = min(self._queues, key=self._seconds.__getitem__)
        event = self._queues[peer].popleft()
        if not self._queues[peer]:
            del self._queues[peer]
        self._count -= 1
        self._nbytes -= _own_bytes(event)
        return peer, event

    def spend(self, peer: Incarnation | None, seconds: float) -> None:
        self._seconds[peer] += seconds
        if not self._queues:
            self._seconds.clear()


def _own_bytes(event: Event) -> int:
    """What it keeps of this process's memory."""
    return sum(part.nbytes for part in event.data) if isinstance(event, Received) and not event.is_shared else 0
