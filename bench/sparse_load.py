"""What every contender pushes and pulls: batches of zipf ids, each id once, and a gradient for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windlass.apps.sketch.streams import zipf_ids

DIM = 16
RAW_IDS = 4096 * 26
NUM_BATCHES = 8
LR = 0.125  # a power of two: what is checked is exact

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


def raw_batches(num_ids: int, rank: int = 0) -> list[Ids]:
    """As they come from the data: 4096 samples of 26 ids each."""
    count = NUM_BATCHES * RAW_IDS
    return np.split(zipf_ids(count, num_ids=num_ids, exponent=1.05, seed=rank), NUM_BATCHES)


@dataclass(frozen=True)
class Load:
    """The different ids of each batch, in the order in which they came first, and their gradients."""

    ids: list[Ids]
    grads: list[Rows]

    @property
    def mean_ids(self) -> float:
        """Of a batch."""
        return sum(each.size for each in self.ids) / len(self.ids)


def load(num_ids: int, rank: int) -> Load:
    ids = [raw[np.sort(np.unique(raw, return_index=True)[1])] for raw in raw_batches(num_ids, rank)]
    rng = np.random.default_rng(rank)
    return Load(ids, [rng.standard_normal((each.size, DIM), np.float32) for each in ids])


def check_step(before: Rows, after: Rows) -> None:
    """Raise unless a push of ones has moved every element by the learning rate."""
    if before.shape != after.shape or not np.array_equal(after, before - np.float32(LR)):
        raise ArithmeticError(f"expected rows {before[0][:3]} less {LR}, got {after[0][:3]}")
