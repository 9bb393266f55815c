"""What was promised, and whether a measurement keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.measure import Cell, Measured


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_kept` is None where the peer that a target speaks of was left out; without a target there is no word."""

    target: str
    is_kept: bool | None

    @property
    def word(self) -> str:
        return {True: "PASS", False: "MISS", None: "not measured" if self.target else ""}[self.is_kept]


Times = Mapping[str, float]
Target = tuple[str, Callable[[float, Times], bool | None]]
"""In words, and whether a time keeps it beside all others' times; None where that is not known."""

Targets = Mapping[tuple[Cell, str], Sequence[Target]]
LARGE, MEDIUM, SMALL = Cell(4, 40_000_000), Cell(4, 1 << 18), Cell(4, 1 << 10)


def faster(peer: str, factor: float) -> Target:
    """At least `factor` times as fast as the peer."""
    return f"≥ {factor:g}× {peer}", lambda time, all: all[peer] / time >= factor if peer in all else None


def at_most(milliseconds: float) -> Target:
    return f"≤ {milliseconds:g} ms", lambda time, all: time * 1e3 <= milliseconds


TARGETS: Targets = {
    (LARGE, "shm"): [faster("gloo", 1.7), faster("mpi", 1.4)],
    (LARGE, "buffer"): [faster("gloo", 5)],
    (LARGE, "tcp"): [("≤ 1.8× gloo's time", lambda time, all: time <= 1.8 * all["gloo"] if "gloo" in all else None)],
    (MEDIUM, "shm"): [at_most(1.2)],
    (SMALL, "shm"): [at_most(0.35)],
}


def judge(measured: Measured, name: str, targets: Targets) -> list[Verdict]:
    """One verdict for each target of this contender in this cell."""
    times = {one: time for one in measured.samples if (time := measured.median(one)) is not None}
    return [Verdict(text, keeps(times[name], times)) for text, keeps in targets.get((measured.cell, name), [])]
