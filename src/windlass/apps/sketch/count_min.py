"""How often each id came, in little memory and never too low: the CountMin sketch."""

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

MAX_WIDTH = 1 << 32


class CountMin:
    """Counts of int64 ids. An estimate is never below the true count. With probability 1 - delta, for each id, it is at
    most `epsilon` times all inserts above it, whatever the ids are, unless they were chosen by who knows the seed.

    It is `depth` rows of `width` counts. In each row every id has a place, chosen by a hash of the row's own; ids that
    share it are counted together, and the least of an id's counts is the estimate. Not thread-safe.

    In a store: every worker calls `create`, inserts into a sketch of its own, and calls `push` when it likes (under
    `Sequential()`, as often as the others). `pull` gives the sketch of everything that was pushed.
    """

    def __init__(self, *, epsilon: float = 1e-4, delta: float = 0.01, seed: int = 0) -> None:
        for name, given in (("epsilon", epsilon), ("delta", delta)):
            if not 0 < given < 1:
                raise UsageError(f"CountMin({name}={given!r}): {name} must be between 0 and 1")
        self.epsilon, self.delta, self.seed = epsilon, delta, seed
        # In a row, others add 1 / width of all inserts to an id, on average. More than e times the average is too much
        # in at most 1 / e of all choices of its hash (Markov), and in all rows at once in e ** -depth.
        self.width = 1 << math.ceil(math.log2(math.e / epsilon))
        self.depth = max(1, math.ceil(-math.log(delta)))
        if self.width > MAX_WIDTH:
            raise UsageError(f"CountMin(epsilon={epsilon!r}): epsilon must be at least {math.e / MAX_WIDTH:.1e}")
        self._hashes = np.random.default_rng(seed).integers(0, 1 << 64, (self.depth, 3), np.uint64)
        self.counts: Array = np.zeros((self.depth, self.width), np.int64)

    @property
    def total(self) -> int:
        """How many inserts it has counted."""
        return int(self.counts[0].sum())

    @property
    def error(self) -> float:
        """What an estimate is above the true count at most, with probability 1 - delta."""
        return self.epsilon * self.total

    def insert(self, ids: Any, times: Any = None) -> None:
        """Count every id once, or as often as `times` says, an array of whole numbers that are not negative."""
        from windlass.apps.sketch import kernels  # here, because importing numba takes most of a second

        ids = check_ids("CountMin.insert", ids)
        weights = np.empty(0, np.int64) if times is None else _check_times(times, ids.size)
        kernels.insert(self.counts, self._hashes, self._shift, address(ids), ids.size, weights)

    def estimate(self, ids: Any) -> Array:
        """How often each of these ids came, or more."""
        from windlass.apps.sketch import kernels

        ids = check_ids("CountMin.estimate", ids)
        found = np.empty(ids.size, np.int64)
        kernels.estimate(self.counts, self._hashes, self._shift, address(ids), found)
        return found

    @property
    def _shift(self) -> int:
        return 64 - self.width.bit_length() + 1

    # --- in a store -------------------------------------------------------------------------------------------------

    def create(self, store: Store, key: str, *, consistency: Consistency | None = None) -> None:
        """Declare the key, with nothing counted. Safe to repeat; UsageError where it has another size or seed."""
        declare(store, key, np.zeros_like(self.counts), self._hashes, "sum", consistency)

    def push(self, store: Store, key: str) -> Task:
        """Add what was inserted here to the key, and forget it here, so that the next push counts none of it again."""
        task = store.push(key, self.counts)
        self.counts[:] = 0
        return task

    def pull(self, store: Store, key: str) -> CountMin:
        """What the key has counted, as a sketch of its own."""
        found = CountMin(epsilon=self.epsilon, delta=self.delta, seed=self.seed)
        store.pull(key, out=found.counts)
        return found

    def __repr__(self) -> str:
        return f"<CountMin epsilon={self.epsilon} delta={self.delta} | {self.depth} x {self.width} counts>"


def _check_times(times: Any, num_ids: int) -> Array:
    found = np.asarray(times)
    if found.dtype.kind not in "iu" or found.shape != (num_ids,):
        raise UsageError(
            f"CountMin.insert: times must be {num_ids} whole numbers, one for each id, "
            f"got {found.dtype} of shape {found.shape}"
        )
    if found.size and (found.min() < 0 or found.max() > np.iinfo(np.int64).max):
        raise UsageError("CountMin.insert: times must not be negative: estimates could be too low")
    return np.ascontiguousarray(found, np.int64)
