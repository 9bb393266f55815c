"""What is to be done to a cluster, and when: read from words, checked, drawn from a seed. Pure."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from windlass._words import count
from windlass.errors import UsageError
from windlass.types import Role

SHORT_LEASES, LONG_LEASES = (0.1, 0.7), (1.2, 1.8)
"""A node is stopped, or kept apart, for a time between these, in leases; short and long by turns."""


@dataclass(frozen=True, slots=True)
class Target:
    """A node by its seat; `rank` None is any of its role."""

    role: Role
    rank: int | None = None

    def __str__(self) -> str:
        if self.role is Role.MANAGER:
            return "manager"
        return f"{self.role}:{'any' if self.rank is None else self.rank}"

    @property
    def name(self) -> str:
        """What the cluster calls it."""
        return "manager" if self.role is Role.MANAGER else f"{self.role}-{self.rank}"


Sides = tuple[tuple[Target, ...], ...]
"""Groups of nodes that cannot reach each other; who is in none of them reaches everybody."""


class Deed(StrEnum):
    KILL = "kill"
    STOP = "stop"
    PARTITION = "partition"


@dataclass(frozen=True, slots=True)
class Shot:
    """One fault, `at` so many seconds after the beginning; `held_seconds` later it is lifted (0: never)."""

    deed: Deed
    at: float
    target: Target | None = None
    sides: Sides = ()
    held_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.deed} {self.target if self.target is not None else in_words(self.sides)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Every `every_seconds`, for `seconds`, one of the faults, in an order drawn from the seed. `drop` and
    `delay_seconds` hold all the time."""

    kill: tuple[Target, ...] = ()
    stop: tuple[Target, ...] = ()
    partitions: tuple[Sides, ...] = ()
    drop: float = 0.0
    delay_seconds: float = 0.0
    every_seconds: float = 5.0
    seconds: float = 60.0
    seed: int = 0
    replaces: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise UsageError(f"drop expects a share from 0 to below 1 (5% or 0.05), got {self.drop:g}")
        for name, least in (("delay", 0.0), ("every", 0.01), ("for", 0.0)):
            value = {"delay": self.delay_seconds, "every": self.every_seconds, "for": self.seconds}[name]
            if not math.isfinite(value) or value < least:
                raise UsageError(f"{name} expects seconds, at least {least:g}, got {value!r}")
        if not (self.kill or self.stop or self.partitions or self.drop or self.delay_seconds):
            raise UsageError("chaos expects at least one fault: kill, stop, drop, delay or partition")

    @property
    def targets(self) -> tuple[Target, ...]:
        apart = [target for sides in self.partitions for side in sides for target in side]
        return (*self.kill, *self.stop, *apart)

    def check(self, *, num_servers: int, num_workers: int) -> None:
        """Raise UsageError for a node that such a cluster does not have."""
        counts = {Role.SERVER: num_servers, Role.WORKER: num_workers}
        for target in self.targets:
            number = counts.get(target.role, 1)
            if target.rank is not None and target.rank >= number:
                seats = f"{target.role}:0" + (f" to {target.role}:{number - 1}" if number > 1 else "")
                raise UsageError(
                    f"chaos on {target}: there is no such node; the cluster has {count(number, target.role)} ({seats})"
                )

    def warnings(self, *, replicas: int, lease_seconds: float) -> list[str]:
        """What its user should know before it begins."""
        told = []
        if not replicas and any(target.role is Role.SERVER for target in self.kill):
            told.append("servers will be killed, and replicas=0: what they hold will be lost, by design")
        if any(target.role is Role.WORKER for target in self.kill):
            told.append("workers will be killed: unless the job goes on without them, it ends there")
        if self.delay_seconds >= lease_seconds / 4:
            told.append(
                f"a delay of {self.delay_seconds:g} s is long for a lease of {lease_seconds:g} s: servers may be taken "
                "for dead"
            )
        return told


def schedule(plan: Plan, lease_seconds: float) -> list[Shot]:
    """The faults of a plan in order. All are fired once before any is fired again."""
    rng = random.Random(f"chaos/{plan.seed}")
    deeds: list[tuple[Deed, Target | None, Sides]] = [
        *((Deed.KILL, target, ()) for target in plan.kill),
        *((Deed.STOP, target, ()) for target in plan.stop),
        *((Deed.PARTITION, None, sides) for sides in plan.partitions),
    ]
    shots: list[Shot] = []
    is_long = rng.random() < 0.5
    waiting: list[tuple[Deed, Target | None, Sides]] = []
    first = min(plan.every_seconds, plan.seconds) / 2  # the job is to work first
    while deeds and (at := first + len(shots) * plan.every_seconds) < max(plan.seconds, 1e-9):
        if not waiting:
            waiting = rng.sample(deeds, len(deeds))
        deed, target, sides = waiting.pop()
        held = 0.0
        if deed is not Deed.KILL:
            held = lease_seconds * rng.uniform(*(LONG_LEASES if is_long else SHORT_LEASES))
            is_long = not is_long
        shots.append(Shot(deed, at, target, sides, held))
    return shots


# --- from words -------------------------------------------------------------------------------------------------------


def parse_target(text: str) -> Target:
    """"server:1", "worker:any" or "manager"."""
    role, colon, rank = text.strip().partition(":")
    if role == "manager" and not colon:
        return Target(Role.MANAGER)
    if role in ("server", "worker") and (rank == "any" or rank.isdecimal()):
        return Target(Role(role), None if rank == "any" else int(rank))
    raise UsageError(f"chaos expects server:N, worker:N, server:any, worker:any or manager, got {text!r}")


def parse_sides(text: str) -> Sides:
    """"server:0,worker:1|server:1": the nodes before the bar, and those after it."""
    sides = tuple(tuple(parse_target(one) for one in side.split(",")) for side in text.split("|"))
    named = [target for side in sides for target in side]
    wrong = ""
    if len(sides) < 2:
        wrong = "it has no bar, so nobody is on the other side"
    elif any(target.rank is None and target.role is not Role.MANAGER for target in named):
        wrong = "'any' is on no side"
    elif len(set(named)) < len(named):
        wrong = "a node is on two sides"
    if wrong:
        raise UsageError(f"partition expects sides with a bar between them (server:0,worker:1|server:1), got {text!r}: "
                         f"{wrong}")  # fmt: skip
    return sides


def parse_share(text: str) -> float:
    """"5%" or "0.05"."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else math.inf
    if not 0 <= share < 1:
        raise UsageError(f"drop expects a share from 0% to below 100% (5% or 0.05), got {text!r}")
    return share


def parse_seconds(text: str) -> float:
    """"20ms", "5s", "1.5m", or seconds without a unit."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|h|)", text.strip())
    if match is None:
        raise UsageError(f"expected a time (20ms, 5s, 2m), got {text!r}")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def parse_delay(text: str) -> float:
    """A time with its unit, for it is usually one of milliseconds; or 0."""
    number = text.strip()
    if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", number) and float(number):
        raise UsageError(f"delay expects a time with its unit, got {text!r}: {number}ms or {number}s is meant")
    return parse_seconds(text)


def in_words(sides: Sequence[Sequence[Target]]) -> str:
    return "|".join(",".join(map(str, side)) for side in sides)
