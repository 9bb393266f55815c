"""What a fit tells of itself: every worker adds its share to one key, and whoever looks reads the sums.

A worker pushes by how much its numbers have changed, so that the sums are right whenever they are read; without rounds,
some of their shares are a little old.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.apps.logistic.plan import Plan
from windlass.types import Sequential
from windlass.worker.store import Store

Numbers = npt.NDArray[np.float64]
KEY = "progress"
LEADS = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""How far ahead every worker looks after a pass: by so many times the way of that pass."""


class Share(NamedTuple):
    """One worker's numbers, or the sums of all workers'. Features that several workers have are shared out."""

    passes: float
    nonzeros: float
    pushed_bytes: float
    pulled_bytes: float
    votes: float
    """Whether it would end here."""


class Sums(NamedTuple):
    """All workers' shares, and the objective at each of the leads."""

    share: Share
    objectives: Numbers

    @property
    def best_lead(self) -> float:
        return float(LEADS[np.argmin(self.objectives)])


class Pass(NamedTuple):
    """Where a fit is after so many passes, `seconds` after it began."""

    number: int
    seconds: float
    objective: float
    nonzeros: int
    pushed_bytes: int
    pulled_bytes: int


_SIZE = len(Share._fields) + len(LEADS)


def declare(store: Store, plan: Plan) -> None:
    """Make the key. A driver may do it first, to watch from the beginning."""
    # In rounds, whatever the weights are: all look ahead from the same place, and make the same passes.
    store.create(plan.key(KEY), np.zeros(_SIZE), update="add", consistency=Sequential())


def read(store: Store, plan: Plan, num_workers: int) -> Sums:
    """The sums so far; `passes` is their mean."""
    found = _sums(store.pull(plan.key(KEY)))
    return found._replace(share=found.share._replace(passes=found.share.passes / num_workers))


def _sums(numbers: Numbers) -> Sums:
    return Sums(Share(*numbers[: len(Share._fields)].tolist()), numbers[len(Share._fields) :])


class Teller:
    """One worker's end of it."""

    def __init__(self, store: Store, plan: Plan, began: float) -> None:
        """`began` is when, by the monotonic clock."""
        declare(store, plan)
        self._told = np.zeros(_SIZE)
        self._began = began
        self.key = plan.key(KEY)
        self.history: list[Pass] = []

    def change(self, share: Share, objectives: Numbers) -> Numbers:
        """What is to be pushed, so that the sums have this share, and these parts of the objective at each lead."""
        before, self._told = self._told, np.concatenate([share, objectives])
        return self._told - before

    def hear(self, numbers: Numbers) -> Sums:
        """Note where the fit is, from what was pulled."""
        found = _sums(numbers)
        self.history.append(
            Pass(
                number=len(self.history),
                seconds=time.monotonic() - self._began,
                objective=float(found.objectives[0]),
                nonzeros=round(found.share.nonzeros),
                pushed_bytes=round(found.share.pushed_bytes),
                pulled_bytes=round(found.share.pulled_bytes),
            )
        )
        return found

    @property
    def has_risen(self) -> bool:
        """Whether the objective is higher than a pass ago."""
        return len(self.history) > 1 and self.history[-1].objective > self.history[-2].objective

    def spread(self, passes: int) -> float:
        """How far apart the objectives of the last so many passes are, and the one before them, as a part of the last;
        infinite if there were fewer. That the first and the last are alike would say little where it may rise."""
        if len(self.history) <= passes:
            return float("inf")
        found = [each.objective for each in self.history[-1 - passes :]]
        return (max(found) - min(found)) / max(abs(found[-1]), 1e-300)
