"""A worker's examples by columns, and the margins that go with its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windlass.apps.logistic.rows import Floats, Ids, Rows
from windlass.errors import UsageError
from windlass.types import Array

_DENSE_PLACES = 1 << 24
"""Ids in a range up to so wide, or as wide as there are features, are numbered by a place for each in it."""


@dataclass(frozen=True, eq=False)
class Features:
    """The different features of some rows: their ids, rising, and for each the sum of its values' magnitudes and how
    many rows have it; and for every value of the rows, which of the features it is of."""

    ids: Ids
    masses: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: Rows) -> Features:
        from windlass.apps.logistic import kernels

        ids, numbers = _number(rows.ids)
        if ids.size and ids[0] < 0:
            raise UsageError(f"expected feature ids of 0 and more, got {ids[0]}")
        masses, counts = np.zeros(ids.size, np.float32), np.zeros(ids.size, np.int64)
        kernels.weigh(numbers, rows.values, masses, counts)
        return cls(ids, masses, counts, numbers)


def _number(ids: Ids) -> tuple[Ids, npt.NDArray[np.int32]]:
    from windlass.apps.logistic import kernels

    if not ids.size:
        return ids, np.empty(0, np.int32)
    lowest, highest = int(ids.min()), int(ids.max())
    if highest - lowest > max(_DENSE_PLACES, 4 * ids.size):
        found, inverse = np.unique(ids, return_inverse=True)
        return found, inverse.astype(np.int32)
    places = np.zeros(highest - lowest + 1, np.int32)
    found, numbers = np.empty(min(places.size, ids.size), np.int64), np.empty(ids.size, np.int32)
    count = kernels.number(ids, lowest, places, found, numbers)
    return found[:count].copy(), numbers


class Columns:
    """The examples by columns, and the state of their margins. All weights begin at 0. One thread."""

    def __init__(self, rows: Rows, features: Features, order: Array) -> None:
        """`order` are the features that count, by number: column k is feature order[k]."""
        from windlass.apps.logistic import kernels

        self._kernels = kernels
        places = np.full(features.ids.size, -1, np.int32)
        places[order] = np.arange(order.size, dtype=np.int32)
        self.ids = features.ids[order]
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(features.counts[order])])
        self.rows = np.empty(self.starts[-1], np.int32)
        self.values = np.empty(self.starts[-1], np.float32)
        kernels.transpose(rows.starts, features.numbers, rows.values, places, self.starts, self.rows, self.values)
        self.labels = rows.labels
        self.margins = np.zeros(len(rows), np.float64)
        self._before = np.zeros(len(rows), np.float64)
        self._ways = np.zeros(len(rows), np.float64)
        self._states = np.zeros((len(rows), kernels.NUM_STATES), np.float32)
        self._marks = np.zeros(len(rows), np.bool_)
        self._touched = np.empty(len(rows), np.int32)
        kernels.bend(self.margins, self.labels, self._states)

    def __len__(self) -> int:
        return self.ids.size

    def look_ahead(self, stuck: Array, steps: Array, bias_step: float, leads: Array) -> Array:
        """The losses at each lead beyond the margins, in the direction in which they have come since the last call
        (or since the beginning), less the way that the stuck columns and the bias have brought them: a lead of 0 is
        where they are."""
        np.subtract(self.margins, self._before, out=self._ways)
        self._before[:] = self.margins
        self._kernels.add_columns(stuck, -steps, self.starts, self.rows, self.values, self._ways)
        if bias_step:
            self._kernels.shift(self._ways, -bias_step)
        found = np.empty(leads.size)
        self._kernels.losses(self.margins, self._ways, self.labels, leads, found)
        return found

    def gradient(self) -> Floats:
        """The derivative of the loss by every column's weight."""
        found = np.empty(len(self), np.float32)
        self._kernels.gradient(self.starts, self.rows, self.values, self._states, found)
        return found

    def bound(self, has_bias: bool) -> tuple[Floats, float]:
        """What the second derivatives never exceed, whatever the weights, if all of them move at once; and the same
        of a bias."""
        found, sums = np.empty(len(self), np.float32), np.full(self.labels.size, float(has_bias), np.float32)
        self._kernels.add_rows(self.starts, self.rows, self.values, sums)
        self._kernels.bound(self.starts, self.rows, self.values, sums, found)
        return found, float(sums.sum(dtype=np.float64)) / 4

    def survey(self, chosen: Array, caution: float) -> Floats:
        """A row for each of the chosen columns: the derivative by its weight, and how large the second one counts if
        they all move together."""
        found = np.empty((chosen.size, 2), np.float32)
        self._kernels.survey(chosen, self.starts, self.rows, self.values, self._states, caution, found)
        return found

    def survey_bias(self) -> Floats:
        """The same for a weight that every row has, with the value 1."""
        sums = self._states[:, : self._kernels.LOAD].sum(axis=0, dtype=np.float64)
        return np.asarray(sums, np.float32)

    def move(self, chosen: Array, steps: Array) -> None:
        """The chosen columns' weights have changed by these."""
        count = self._kernels.move(
            chosen, steps, self.starts, self.rows, self.values, self.margins, self._marks, self._touched
        )
        if count < 0:
            self._kernels.bend(self.margins, self.labels, self._states)
        else:
            self._kernels.bend_some(self._touched[:count], self.margins, self.labels, self._states)

    def move_bias(self, step: float) -> None:
        """The weight that every row has, has changed by this."""
        if step:
            self._kernels.shift(self.margins, step)
            self._kernels.bend(self.margins, self.labels, self._states)
