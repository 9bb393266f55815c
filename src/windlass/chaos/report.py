"""What came of it: plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._words import count
from windlass.chaos.accounting import Findings, Samples


class Fault(msgspec.Struct, kw_only=True):
    """One fault that was fired, `at` seconds after the beginning. `held_seconds`: how long a node was stopped or kept
    apart. `recovery_seconds`: from then until on every key in use that it concerns a push that was begun afterwards
    has been acknowledged (of the manager: until it answers again); None if that was not seen. `note` says more."""

    what: str
    who: str
    at: float
    pid: int = 0
    held_seconds: float | None = None
    recovery_seconds: float | None = None
    note: str = ""


class Unfired(msgspec.Struct, frozen=True, kw_only=True):
    """One that could not be fired, and why."""

    what: str
    at: float
    reason: str


class Departed(msgspec.Struct, frozen=True, kw_only=True):
    """A node that went though nothing was done to it. `note` says whether another has its seat."""

    who: str
    at: float
    pid: int
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a chaos run. `ok` is the verdict."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...] = ()
    unfired: tuple[Unfired, ...] = ()
    departed: tuple[Departed, ...] = ()
    drop: float = 0.0
    delay_seconds: float = 0.0
    frames_lost: int = 0
    frames_late: int = 0
    links_refused: int = 0
    longest_push_seconds: float = 0.0
    findings: Findings = msgspec.field(default_factory=Findings)
    samples: Samples | None = None
    job: str = ""
    job_status: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def num_lost(self) -> int:
        """Acknowledged pushes that are not in the values."""
        return sum(one.pushes for one in self.findings.lost)

    @property
    def num_twice(self) -> int:
        """Pushes that are in the values more than once."""
        return sum(one.pushes for one in self.findings.twice)

    @property
    def num_faults(self) -> int:
        """Faults that happened; a link that was cut counts as one."""
        return len(self.faults) + self.frames_lost + bool(self.frames_late)

    @property
    def reason(self) -> str:
        """Why the verdict is not good; empty if it is."""
        if self.findings.unjudged:
            return f"the books could not be compared: {self.findings.unjudged}"
        if self.num_lost or self.num_twice:
            return f"{pushes_in_words(self.num_lost, 'acknowledged ')} lost, {self.num_twice} counted twice"
        if self.samples is not None and (self.samples.repeated or self.samples.missed):
            return f"{count(self.samples.repeated, 'sample')} repeated, {self.samples.missed} missed"
        if not self.num_faults:
            return "no fault was fired: nothing is shown"
        if not self.findings.num_acked:
            return "no push was acknowledged: nothing is shown"
        return ""

    @property
    def ok(self) -> bool:
        """Whether faults happened, and every acknowledged push is in the values exactly once, and every sample."""
        return not self.reason

    @property
    def status(self) -> int:
        """The exit status for it: 0 only if all is well, the job's end included."""
        return (self.job_status or 0) if self.ok else 1

    def show(self) -> None:
        """Print it as a table."""
        from windlass.chaos.table import print_report  # here, because most programs that import us print no table

        print_report(self)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        derived = ("num_lost", "num_twice", "num_faults", "ok", "reason", "status")
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {name: getattr(self, name) for name in derived}


def pushes_in_words(number: int, kind: str = "") -> str:
    return f"{number:,} {kind}push{'' if number == 1 else 'es'}"


def seconds_in_words(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
