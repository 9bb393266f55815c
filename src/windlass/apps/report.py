"""What a run tells of itself while it trains: the workers add to two keys, and whoever looks reads them.

Every number in them is a sum, so it does not matter who adds first: an epoch is over when all of its test images are
counted, whichever worker counted them. They are float32, like the parameters, for which servers have their kernels
ready; counts are exact up to 16 million.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from windlass.worker.store import Store
from windlass.worker.task import Task

PROGRESS = "report/progress"
EPOCHS = "report/epochs"
_SUMS = 4

Floats = npt.NDArray[np.float32]


class Steps(NamedTuple):
    """What one worker has done so far, or in one step."""

    steps: float
    loss: float  # summed over the images
    images: float


class Share(NamedTuple):
    """What one worker did in one epoch."""

    loss: float  # summed over the images
    images: float
    correct: float
    tested: float
    seconds: float  # of training, without the test


class Epoch(NamedTuple):
    """What all of them did in one epoch; the first has the number 1."""

    number: int
    loss: float
    accuracy: float
    seconds: float  # the slowest worker's
    images_per_second: float


class Report(Protocol):
    """Told by the training loop what it has done."""

    def step(self, done: Steps) -> None: ...

    def epoch(self, number: int, share: Share) -> None: ...


class StoreReport:
    """Tells it to the store. Every worker of the run has one; it takes no time but that of a small push."""

    def __init__(self, store: Store, *, epochs: int) -> None:
        declare(store, workers=store.num_workers, epochs=epochs)
        self._store = store
        self._last: Task | None = None

    def step(self, done: Steps) -> None:
        rows = np.zeros((self._store.num_workers, len(Steps._fields)), np.float32)
        rows[self._store.rank] = done
        self._store.push(PROGRESS, rows)

    def epoch(self, number: int, share: Share) -> None:
        row = row_of(share, self._store.rank, self._store.num_workers)
        self._last = self._store.push(EPOCHS, row, range=((number - 1) * row.size, number * row.size))

    def finish(self) -> None:
        """Return when everything told is in the store."""
        if self._last is not None:
            self._last.wait()


def declare(store: Store, *, workers: int, epochs: int) -> None:
    """Make the two keys, of the store's own consistency. A driver may do it first, to watch from the beginning."""
    store.create(PROGRESS, np.zeros((workers, len(Steps._fields)), np.float32), update="add")
    store.create(EPOCHS, np.zeros((epochs, _SUMS + workers), np.float32), update="add")


def read(store: Store, *, tests: int) -> tuple[list[Steps], list[Epoch]]:
    """Each worker's steps so far, and the epochs that are over: those in which `tests` images were tested."""
    progress, rows = store.pull([PROGRESS, EPOCHS])
    epochs = [epoch_of(number, row) for number, row in enumerate(rows, start=1) if row[3] == tests]
    return [Steps(*row) for row in progress.tolist()], epochs


def row_of(share: Share, rank: int, workers: int) -> Floats:
    """One worker's part of an epoch: what is summed over the workers, then a place for the seconds of each."""
    row = np.zeros(_SUMS + workers, np.float32)
    row[:_SUMS] = share[:_SUMS]
    row[_SUMS + rank] = share.seconds
    return row


def epoch_of(number: int, row: Floats) -> Epoch:
    """The epoch that the rows of all workers, summed, tell of."""
    loss, images, correct, tested = row[:_SUMS].tolist()
    seconds = float(row[_SUMS:].max())
    return Epoch(number, loss / images, correct / tested, seconds, images / seconds)
