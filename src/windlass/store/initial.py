"""What the rows of a table start as. A row is made when it is first pushed to, on whichever server holds it, and pulled
before that it looks the same: its numbers depend on nothing but the seed, the id and the column."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import ClassVar

import numpy as np

from windlass.errors import UsageError, options_checked
from windlass.store import naming
from windlass.store.updater import is_number
from windlass.types import Array, Rule


@dataclass(frozen=True)
class Initial:
    """What rows start as. One of Constant, Normal, Uniform."""

    kind: ClassVar[int] = -1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not is_number(value) or math.isnan(value):
                raise UsageError(f"{type(self).__name__}({each.name}={value!r}): {each.name} must be a number")

    def numbers(self) -> tuple[float, float]:
        """The two numbers of its kind."""
        raise NotImplementedError

    def start(self) -> Array:
        """For the kernel: the kind, its numbers, and the seed's halves."""
        return np.array([self.kind, *self.numbers(), 0, 0], np.float64)

    def salted(self, name: str) -> Initial:
        """The same for one table: tables of different names start with different random rows."""
        return self

    def rows(self, ids: Array, dim: int) -> Array:
        """What these ids start as, one row each."""
        from windlass.store import initial_kernels  # here, because importing numba takes most of a second

        found, start = np.empty((len(ids), dim), np.float32), self.start()
        for row, number in zip(found, ids.tolist(), strict=True):
            initial_kernels.begin(row, number, start)
        return found


@options_checked
@dataclass(frozen=True)
class Constant(Initial):
    """Every element starts as this number; 0 is what tables do that are told nothing."""

    value: float = 0.0

    kind: ClassVar[int] = 0

    def numbers(self) -> tuple[float, float]:
        return self.value, 0.0


@dataclass(frozen=True)
class Random(Initial):
    """Numbers drawn by seed, id and column."""

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            where = f"{type(self).__name__}(seed={self.seed!r})"
            raise UsageError(f"{where}: seed must be a whole number from 0 to 2**64 - 1")

    def start(self) -> Array:
        return np.array([self.kind, *self.numbers(), self.seed >> 32, self.seed & 0xFFFFFFFF], np.float64)

    def salted(self, name: str) -> Initial:
        text = f"{self.seed} {name}".encode()
        return replace(self, seed=int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))


@options_checked
@dataclass(frozen=True)
class Normal(Random):
    """Normally distributed, with this standard deviation around this mean."""

    std: float = 1.0
    mean: float = 0.0

    kind: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.std < 0:
            raise UsageError(f"Normal(std={self.std!r}): std must be 0 or more")

    def numbers(self) -> tuple[float, float]:
        return self.mean, self.std


@options_checked
@dataclass(frozen=True)
class Uniform(Random):
    """Evenly distributed between two numbers."""

    low: float = 0.0
    high: float = 1.0

    kind: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low > self.high:
            raise UsageError(f"Uniform(low={self.low!r}, high={self.high!r}): low must not be above high")

    def numbers(self) -> tuple[float, float]:
        return self.low, self.high


BUILT_IN: dict[str, type[Initial]] = {"constant": Constant, "normal": Normal, "uniform": Uniform}


def initial_rule(init: Initial | float | None) -> Rule:
    """Its name on the wire and its numbers; a plain number is that constant, None is zeros."""
    if init is None or is_number(init):
        init = Constant(float(init or 0))  # type: ignore[arg-type]
    for name, each in BUILT_IN.items():
        if type(init) is each:
            return Rule(name, asdict(init))
    raise UsageError(
        f"init= expects a number, wl.Constant(value), wl.Normal(std) or wl.Uniform(low, high), "
        f"got {naming.describe(init)}"
    )


def resolve_initial(rule: Rule) -> Initial:
    """What a rule describes."""
    found = BUILT_IN.get(rule.path)
    if found is None:
        raise UsageError(f"init= one of {', '.join(map(repr, BUILT_IN))}, got '{rule.path}'")
    try:
        return found(**rule.config)
    except TypeError as error:
        allowed = ", ".join(each.name for each in fields(found))
        raise UsageError(f"{found.__name__} takes {allowed}; got {rule.config}") from error
