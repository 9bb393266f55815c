"""How far each incarnation has come on one key, as one server sees it: a vector clock.

Two numbers an incarnation: *received*, the last push of which every part is here, and *applied*, the last push that is
in the value. Received runs ahead while a round is open; applied is what acknowledgements and pulls speak of.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from windlass.types import Incarnation


class Admission(Enum):
    NEXT = "next"  # the one push that may be counted now
    DUPLICATE = "duplicate"  # counted before: the ack was lost, not the push
    GAP = "gap"  # an earlier push is still on its way and will be resent


# Members of an enum are found slowly; these are asked for with every push.
NEXT, DUPLICATE, GAP = Admission


class Clocks:
    """Not thread-safe. An incarnation enters by `start`, with the number of pushes it is deemed to have made."""

    def __init__(self) -> None:
        self.received: dict[Incarnation, int] = {}
        self.applied: dict[Incarnation, int] = {}

    def start(self, who: Incarnation, clock: int) -> None:
        """Let an incarnation in; harmless to repeat."""
        self.received.setdefault(who, clock)
        self.applied.setdefault(who, clock)

    def restart(self, who: Incarnation, clock: int) -> None:
        """Let an incarnation in again that has rested: it is deemed to have made these pushes, too."""
        self.received[who] = max(clock, self.received.get(who, 0))
        self.applied[who] = max(clock, self.applied.get(who, 0))

    def admit(self, who: Incarnation, clock: int) -> Admission:
        last = self.received[who]
        if clock <= last:
            return DUPLICATE
        return NEXT if clock == last + 1 else GAP

    def lowest(self, live: Iterable[Incarnation]) -> tuple[int, Incarnation | None]:
        """The smallest applied clock among the live that have entered, and whose it is."""
        applied = self.applied
        entered = [(applied[who], who) for who in live if who in applied]
        return min(entered) if entered else (0, None)

    def leave(self, who: Incarnation) -> None:
        self.received.pop(who, None)
        self.applied.pop(who, None)
