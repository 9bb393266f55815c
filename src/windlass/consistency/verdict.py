"""May this pull be answered now? The one place that says so, for every consistency, with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

import msgspec

from windlass.consistency.clocks import Clocks
from windlass.types import Bounded, Consistency, Eventual, Incarnation, Sequential


class Verdict(msgspec.Struct, frozen=True):
    admit: bool
    reason: str = ""


YES = Verdict(True)


def may_pull(
    consistency: Consistency,
    who: Incarnation,
    clock: int,
    *,
    rounds: int,
    clocks: Clocks,
    live: Iterable[Incarnation],
    ahead: int = 0,
) -> Verdict:
    """Judge a pull by `who` after its first `clock` pushes. `rounds` is how many are in the slot it reads. What is read
    `ahead` is for use after so many more pushes: nobody may be further behind then."""
    match consistency:
        case Sequential():
            if rounds < clock:
                return Verdict(False, f"round {clock} is not closed, {rounds} are")
            return YES
        case Bounded(delay=delay):
            own = clocks.applied.get(who, 0)
            if own < clock:
                return Verdict(False, f"{own} of its own {clock} pushes are in")
            if clock + ahead <= delay:
                return YES  # nobody can be so far behind
            lowest, slowest = clocks.lowest(live)
            if slowest is not None and lowest < clock + ahead - delay:
                return Verdict(False, f"it leads {slowest} by {clock + ahead - lowest}, delay is {delay}")
            return YES
        case Eventual():
            own = clocks.applied.get(who, 0)
            return YES if own >= clock else Verdict(False, f"{own} of its own {clock} pushes are in")
        case _:
            assert_never(consistency)


def who_lacks(live: Mapping[Incarnation, str], have: Iterable[Incarnation]) -> list[str]:
    """Names of the live that are not among `have`."""
    present = set(have)
    return [name for who, name in live.items() if who not in present]
