"""What was promised, and whether a measurement keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
LARGE, MEDIUM, SMALL = Cell(4, 40_000_000), Cell(4, 1 << 18), Cell(4, 1 << 10)


def _faster(peer: str, factor: float) -> tuple[str, Callable[[float, Times], bool | None]]:
    """At least `factor` times as fast as the peer."""
    return f"≥ {factor:g}× {peer}", lambda time, all: all[peer] / time >= factor if peer in all else None


def _at_most(milliseconds: float) -> tuple[str, Callable[[float, Times], bool | None]]:
    return f"≤ {milliseconds:g} ms", lambda time, all: time * 1e3 <= milliseconds


TARGETS = {
    (LARGE, "shm"): [_faster("gloo", 1.7), _faster("mpi", 1.4)],
    (LARGE, "buffer"): [_faster("gloo", 5)],
    (LARGE, "tcp"): [("≤ 1.8× gloo's time", lambda time, all: time <= 1.8 * all["gloo"] if "gloo" in all else None)],
    (MEDIUM, "shm"): [_at_most(1.2)],
    (SMALL, "shm"): [_at_most(0.35)],
}


def judge(measured: Measured, name: str) -> list[Verdict]:
    """One verdict for each target of this contender in this cell."""
    times = {one: time for one in measured.samples if (time := measured.median(one)) is not None}
    return [Verdict(text, keeps(times[name], times)) for text, keeps in TARGETS.get((measured.cell, name), [])]
