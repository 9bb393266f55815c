"""How many different ids came, in little memory: the HyperLogLog sketch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from windlass.apps.sketch.sharing import declare
from windlass.errors import UsageError
from windlass.store.batch import address, check_ids
from windlass.types import Array, Consistency
from windlass.worker.store import Store
from windlass.worker.task import Task


class HyperLogLog:
    """The number of different int64 ids, of any number, in 2 ** precision bytes. `standard_error` says how far off an
    estimate usually is, relative to the truth: two thirds of all are within it, 99.7 % within three times as much.

    Repeating an id changes nothing, and nor does merging the same sketch twice. Not thread-safe.

    In a store: every worker calls `create`, inserts into a sketch of its own, and calls `push` when it likes (under
    `Sequential()`, as often as the others). `pull` gives the sketch of everything that was pushed.
    """

    def __init__(self, *, precision: int = 14, seed: int = 0) -> None:
        if not isinstance(precision, int) or not 4 <= precision <= 24:
            raise UsageError(f"HyperLogLog(precision={precision!r}): precision must be a whole number from 4 to 24")
        self.precision, self.seed = precision, seed
        self._hashes = np.random.default_rng(seed).integers(0, 1 << 64, 1, np.uint64)
        self.registers: Array = np.zeros(1 << precision, np.uint8)

    @property
    def standard_error(self) -> float:
        return 1.04 / math.sqrt(self.registers.size)

    def insert(self, ids: Any) -> None:
        from windlass.apps.sketch import kernels  # here, because importing numba takes most of a second

        ids = check_ids("HyperLogLog.insert", ids)
        kernels.observe(self.registers, self.precision, self._hashes[0], address(ids), ids.size)

    def estimate(self) -> float:
        """How many different ids came. Without the bias of the original for few and for very many (Ertl, New
        cardinality estimation algorithms for HyperLogLog sketches, algorithm 6)."""
        size, highest = self.registers.size, 64 - self.precision + 1
        having = np.bincount(self.registers, minlength=highest + 1).tolist()
        total = size * _tau(1 - having[highest] / size)
        for count in reversed(having[1:highest]):
            total = (total + count) / 2
        total += size * _sigma(having[0] / size)
        return size * size / (2 * math.log(2) * total) if total else math.inf

    # --- in a store -------------------------------------------------------------------------------------------------

    def create(self, store: Store, key: str, *, consistency: Consistency | None = None) -> None:
        """Declare the key, with nothing seen. Safe to repeat; UsageError where it has another size or seed."""
        declare(store, key, np.zeros_like(self.registers), self._hashes, "max", consistency)

    def push(self, store: Store, key: str) -> Task:
        """Merge what this sketch has seen into the key. It keeps it: the key may have it as often as one likes."""
        return store.push(key, self.registers)

    def pull(self, store: Store, key: str) -> HyperLogLog:
        """What the key has seen, as a sketch of its own."""
        found = HyperLogLog(precision=self.precision, seed=self.seed)
        store.pull(key, out=found.registers)
        return found

    def __repr__(self) -> str:
        return f"<HyperLogLog precision={self.precision} | about {self.estimate():.0f} ids>"


def _sigma(share: float) -> float:
    """What registers that have seen nothing tell: x + the sum of x ** (2 ** k) * 2 ** (k - 1), k from 1."""
    if share == 1:
        return math.inf
    total, weight, last = share, 1.0, -1.0
    while total != last:
        share, last = share * share, total
        total += share * weight
        weight *= 2
    return total


def _tau(share: float) -> float:
    """What registers that are full tell, of which 1 - share are."""
    if share in (0, 1):
        return 0.0
    total, weight, last = 1 - share, 1.0, -1.0
    while total != last:
        share, last = math.sqrt(share), total
        weight /= 2
        total -= (1 - share) ** 2 * weight
    return total / 3
