"""The demo's work: a linear model, fitted by stochastic gradient descent through the store, in every worker."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from windlass.store.update import SGD
from windlass.types import Consistency
from windlass.worker.store import Store

Floats = npt.NDArray[np.float32]

NOISE = 0.1
LEARNING_RATE = 0.05
EPOCH_BATCHES = 64


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the demo; everything random in it follows from the seed."""

    features: int
    steps: int
    batch: int
    pause_seconds: float
    seed: int

    def truth(self) -> Floats:
        return np.random.default_rng(self.seed).standard_normal(self.features, dtype=np.float32)

    def examples(self, stream: int, count: int) -> tuple[Floats, Floats]:
        """Inputs and noisy outputs of one stream: a worker's rank, or -1 for what the loss is measured on."""
        rng = np.random.default_rng([self.seed, stream + 1])
        x = rng.standard_normal((count, self.features), dtype=np.float32)
        return x, x @ self.truth() + NOISE * rng.standard_normal(count, dtype=np.float32)


class Keys(NamedTuple):
    """The two keys of one fit."""

    weights: str
    steps: str

    @classmethod
    def of(cls, name: str) -> Keys:
        return cls(f"{name}/weights", f"{name}/steps")


def declare(store: Store, keys: Keys, consistency: Consistency, problem: Problem, num_workers: int) -> None:
    """Both keys at zero. The driver may do it before the workers, so that it can watch from the beginning."""
    zeros = np.zeros(problem.features, np.float32)
    store.create(keys.weights, zeros, reduce="mean", update=SGD(lr=LEARNING_RATE), consistency=consistency)
    store.create(keys.steps, np.zeros(num_workers, np.int64), update="add", consistency=consistency)


def fit(store: Store, keys: Keys, consistency: Consistency, problem: Problem) -> float:
    """Fit under one consistency; gives the mean staleness of what this worker pulled.

    Beside the gradient each worker counts its steps in a second key of the same consistency. A pull after n own
    steps that shows another worker's count below n misses pushes of that worker: by so many steps it is stale.
    """
    declare(store, keys, consistency, problem, store.num_workers)
    x, y = problem.examples(store.rank, problem.batch * EPOCH_BATCHES)
    rng = np.random.default_rng([problem.seed, store.rank, 1])
    one = np.zeros(store.num_workers, np.int64)
    one[store.rank] = 1
    w: Floats = store.pull(keys.weights)
    behind = 0
    for step in range(1, problem.steps + 1):
        rows = rng.integers(0, len(x), problem.batch)
        gradient = x[rows].T @ (x[rows] @ w - y[rows]) / np.float32(problem.batch)
        time.sleep(rng.exponential(problem.pause_seconds))  # no two steps take equally long in practice either
        pulled = store.pushpull({keys.weights: gradient, keys.steps: one})
        w = pulled[keys.weights]
        behind += int(np.maximum(0, step - pulled[keys.steps]).sum())
    return behind / problem.steps / max(1, store.num_workers - 1)
