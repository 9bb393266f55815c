"""Round-robin over the contenders of a cell, several times; the medians.

A *cell* is one number of workers and one size. A *sample* is one timed loop of one contender; an *alternation* is one
sample of each, so that whatever else the machine does hits them alike.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

COPY_BYTES = 256 << 20  # above the size from which glibc writes past the cache, as a floor should


@dataclass(frozen=True, slots=True)
class Cell:
    workers: int
    elements: int

    @property
    def nbytes(self) -> int:
        return 4 * self.elements

    @property
    def size(self) -> str:
        if self.nbytes % (1 << 20) == 0:
            return f"{self.nbytes >> 20} MiB"
        return f"{self.nbytes / 1e6:g} MB" if self.nbytes >= 1 << 20 else f"{self.nbytes / 1024:g} KiB"


@dataclass(slots=True)
class Measured:
    """Seconds per iteration of each contender in one cell, a sample per alternation."""

    cell: Cell
    samples: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        found = self.samples.get(name)
        return statistics.median(found) if found else None


class Contender(Protocol):
    """`seconds` runs a loop in every worker at once and gives the slowest worker's seconds per iteration."""

    name: str

    def prepare(self, elements: int) -> None: ...
    def seconds(self, iterations: int) -> float: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Effort:
    """Raise `alternations` if medians of two runs differ; `sample_seconds` if samples of one cell scatter."""

    alternations: int = 7
    sample_seconds: float = 0.3
    min_iterations: int = 2
    max_iterations: int = 1000


def measure(
    cell: Cell, contenders: Sequence[Contender], effort: Effort, tell: Callable[[str], None]
) -> Measured:
    iterations = {}
    for one in contenders:
        tell(f"{one.name}: warming")
        one.prepare(cell.elements)
        once = min(one.seconds(effort.min_iterations) for _ in range(2))
        fitting = int(effort.sample_seconds / once)
        iterations[one.name] = max(effort.min_iterations, min(effort.max_iterations, fitting))
    measured = Measured(cell, {one.name: [] for one in contenders})
    for turn in range(effort.alternations):
        first = turn % len(contenders)
        for one in (*contenders[first:], *contenders[:first]):
            tell(f"{one.name}: {turn + 1} of {effort.alternations}")
            measured.samples[one.name].append(one.seconds(iterations[one.name]))
    for one in contenders:
        one.drop()
    return measured


def copy_bytes_per_second(repeats: int = 5) -> float:
    """How many bytes all cores together copy in a second, from arrays far larger than the cache into warm ones."""
    cores = len(os.sched_getaffinity(0))
    pairs = [(np.ones(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)) for _ in range(cores)]
    seconds = []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(repeats):
            begin = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))
            seconds.append(time.perf_counter() - begin)
    return cores * COPY_BYTES / statistics.median(seconds)
