"""Examples in memory: rows of features by id, and a label for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.errors import UsageError

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Row i has the features ids[starts[i]:starts[i + 1]], each with its value, and the label +1 or -1. A feature that
    is not there is 0; one that is there twice counts as the sum."""

    starts: Ids
    ids: Ids
    values: Floats
    labels: Floats

    @classmethod
    def of(cls, starts: Any, ids: Any, values: Any, labels: Any) -> Rows:
        """Checked, and of the types that the kernels take. A scipy CSR matrix m with labels y is
        `Rows.of(m.indptr, m.indices, m.data, y)`; a label above 0 is +1, any other -1."""
        found = cls(
            np.ascontiguousarray(starts, np.int64),
            np.ascontiguousarray(ids, np.int64),
            np.ascontiguousarray(values, np.float32),
            np.where(np.asarray(labels) > 0, np.float32(1), np.float32(-1)),
        )
        found._check()
        return found

    def _check(self) -> None:
        starts, nonzeros = self.starts, self.ids.size
        if self.labels.ndim != 1 or starts.shape != (self.labels.size + 1,):
            raise UsageError(f"expected a label for each of {starts.size - 1} rows, got shape {self.labels.shape}")
        if self.ids.shape != self.values.shape or self.ids.ndim != 1:
            raise UsageError(f"expected a value for each of {nonzeros} ids, got shape {self.values.shape}")
        if starts[0] != 0 or starts[-1] != nonzeros or np.any(np.diff(starts) < 0):
            raise UsageError(f"expected starts that rise from 0 to {nonzeros}, got {starts[:1]} to {starts[-1:]}")
        if not np.isfinite(self.values).all():
            raise UsageError(f"value {int(np.flatnonzero(~np.isfinite(self.values))[0])} is not finite")

    def __len__(self) -> int:
        return self.labels.size

    def __repr__(self) -> str:
        return f"<Rows {len(self)} with {self.ids.size} features>"

    @property
    def positive(self) -> int:
        """How many are labelled +1."""
        return int(np.count_nonzero(self.labels > 0))

    def take(self, lo: int, hi: int) -> Rows:
        """Rows lo up to, without, hi; memory is shared."""
        begin, end = self.starts[lo], self.starts[hi]
        return Rows(self.starts[lo : hi + 1] - begin, self.ids[begin:end], self.values[begin:end], self.labels[lo:hi])

    def part(self, rank: int, workers: int) -> Rows:
        """One worker's share: as many neighbouring rows as any other's, or one more."""
        return self.take(len(self) * rank // workers, len(self) * (rank + 1) // workers)


def join(parts: Iterable[Rows]) -> Rows:
    """All of them, one after the other."""
    given = list(parts)
    offsets = np.cumsum([0, *(each.ids.size for each in given)])
    starts = [each.starts[1:] + offset for each, offset in zip(given, offsets[:-1].tolist(), strict=True)]
    return Rows(
        np.concatenate([np.zeros(1, np.int64), *starts]),
        np.concatenate([np.empty(0, np.int64), *(each.ids for each in given)]),
        np.concatenate([np.empty(0, np.float32), *(each.values for each in given)]),
        np.concatenate([np.empty(0, np.float32), *(each.labels for each in given)]),
    )
