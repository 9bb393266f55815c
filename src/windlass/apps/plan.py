"""A training of one network by many workers that gives the result of one: what each of them does in a step.

Every step has one *batch*, the same whoever shares it: it follows from the seed, the epoch and the step. A worker takes
its *share* of it, a contiguous part. No torch here, so that a driver can plan without loading it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.apps.fashion import Data, Source
from windlass.errors import UsageError

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained and how; the same in every worker. `devices` are those of all workers, dealt out by rank."""

    source: Source
    epochs: int = 10
    batch_size: int = 256
    lr: float = 0.2
    seed: int = 0
    mode: str = "store"
    devices: tuple[str, ...] = ("cpu",)

    def check(self, data: Data, workers: int) -> None:
        """Raise UsageError where some worker or device would be left without an image."""
        if len(self.devices) % workers:
            raise UsageError(f"devices expects as many for each of {workers} workers, got {len(self.devices)}")
        images, least = len(data.train.images), len(self.devices)
        last = images % self.batch_size or self.batch_size
        if min(self.batch_size, last) < least:
            raise UsageError(
                f"a batch is shared by {least} devices; with batches of {self.batch_size} the last of {images} images "
                f"has {last}: choose another batch size, or fewer devices"
            )
        if len(data.test.images) < least:
            raise UsageError(f"{least} devices share the test, which has only {len(data.test.images)} images")

    def steps_per_epoch(self, data: Data) -> int:
        return -(-len(data.train.images) // self.batch_size)

    def batches(self, images: int, epoch: int) -> Iterator[Rows]:
        """The rows of each batch of an epoch, the last one what is left. Each image is in one of them."""
        order = np.random.default_rng((self.seed, epoch)).permutation(images)
        for start in range(0, images, self.batch_size):
            yield order[start : start + self.batch_size]


class Seat(NamedTuple):
    """One worker among all."""

    rank: int
    workers: int

    def devices(self, plan: Plan) -> tuple[str, ...]:
        count = len(plan.devices) // self.workers
        return plan.devices[self.rank * count : (self.rank + 1) * count]

    def share(self, rows: Rows) -> Rows:
        """This worker's part; the parts of all workers are the whole, and differ by one row at most."""
        return rows[len(rows) * self.rank // self.workers : len(rows) * (self.rank + 1) // self.workers]


ALONE = Seat(0, 1)
