"""Numbers that a worker keeps for the elements of a key or the ids of a table: residuals, and KKT's slack."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from windlass.errors import UsageError
from windlass.types import Array

_PIECE = 1 << 16
_FIRST_ROWS = 256


@dataclass(frozen=True)
class Kept:
    """Some of what is kept, as a checkpoint holds it: the elements from `lo` on, or a row for each of `ids`."""

    values: Array
    lo: int = 0
    ids: Array | None = None


class Memory(Protocol):
    """A number for every element, or a row for every id; `fill` where nothing was written."""

    @property
    def nbytes(self) -> int: ...

    def norm(self) -> float: ...

    def dump(self) -> list[Kept]: ...

    def add(self, kept: Kept) -> None: ...

    def clear(self) -> None: ...


class DenseMemory:
    """One flat array for all elements of a key, at least `size` of them. Where `fill` is 0, pages that nobody has
    touched take no memory."""

    def __init__(self, number: np.dtype[Any], fill: float = 0.0, size: int = 0) -> None:
        self._fill, self._size = fill, size
        self._values: Array = np.empty(0, number)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes

    def view(self, lo: int, hi: int) -> Array:
        """Elements lo to hi, to be read and written in place until the next call."""
        if hi > self._values.size:
            size = max(hi, self._size, min(2 * self._values.size, hi + (1 << 22)))
            grown = np.full(size, self._fill, self._values.dtype) if self._fill else np.zeros(size, self._values.dtype)
            grown[: self._values.size] = self._values
            self._values = grown
        return self._values[lo:hi]

    def norm(self) -> float:
        return _norm(self._values)

    def dump(self) -> list[Kept]:
        """Copies of the stretches that are not all `fill`, neighbours joined."""
        starts = range(0, self._values.size, _PIECE)
        full = [lo for lo in starts if np.any(self._values[lo : lo + _PIECE] != self._fill)]
        runs: list[list[int]] = []
        for lo in full:
            if runs and runs[-1][1] == lo:
                runs[-1][1] = lo + _PIECE
            else:
                runs.append([lo, lo + _PIECE])
        return [Kept(self._values[lo:hi].copy(), lo=lo) for lo, hi in runs]

    def add(self, kept: Kept) -> None:
        """Add it to what is there. UsageError if it is a table's."""
        if kept.ids is not None or kept.lo < 0 or kept.values.ndim != 1:
            raise UsageError(f"expected numbers of a dense key, got values of shape {kept.values.shape} with ids")
        self.view(kept.lo, kept.lo + kept.values.size)[:] += kept.values.astype(self._values.dtype)

    def clear(self) -> None:
        self._values = np.empty(0, self._values.dtype)


class TableMemory:
    """A row for every id that was touched, in a hash table. Rows that are `fill` again go when it must grow."""

    def __init__(self, width: int, number: np.dtype[Any], fill: float = 0.0) -> None:
        self._width, self._number, self._fill = width, number, fill
        self._used = self._stamp = 0
        self.clear()

    def __len__(self) -> int:
        return self._used

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self._ids.nbytes + self._slots.nbytes + self._stamps.nbytes

    def write(self, ids: Array, rows: Array) -> None:
        """Set the rows of these ids; of an id that is there twice, the last."""
        positions = self._find(ids)  # first: it may replace self.rows
        self.rows[positions] = rows.reshape(len(ids), self._width)

    def find(self, ids: Array) -> Array:
        """Where in `rows` each id is, until the next call; new ones are made. UsageError if an id is there twice."""
        from windlass.filters import hashing

        positions = self._find(ids)
        self._stamp += 1
        if (repeat := hashing.first_repeat(positions, self._stamps, self._stamp)) >= 0:
            raise UsageError(f"id {ids[repeat]} is there twice: reduce duplicates before they are filtered")
        return positions

    def _find(self, ids: Array) -> Array:
        from windlass.filters import hashing

        self._make_room(ids)
        positions = np.empty(len(ids), np.int64)
        self._used = hashing.find_rows(positions, ids, self._ids, self._slots, self._used)
        return positions

    def read(self, ids: Array) -> Array:
        """The rows of these ids, flat; `fill` for an id without one, which is not made."""
        positions = self._look_up(ids)
        rows = self.rows[positions]
        rows[positions < 0] = self._fill
        return rows.reshape(-1)

    def _look_up(self, ids: Array) -> Array:
        """Where each id is, or -1."""
        from windlass.filters import hashing

        positions = np.empty(len(ids), np.int64)
        hashing.look_up(positions, ids, self._slots)
        return positions

    def norm(self) -> float:
        return _norm(self.rows[: self._used].reshape(-1))

    def dump(self) -> list[Kept]:
        """Copies of all rows that are not `fill`, with their ids."""
        is_full = (self.rows[: self._used] != self._fill).any(axis=1)
        return [Kept(self.rows[: self._used][is_full], ids=self._ids[: self._used][is_full])] if is_full.any() else []

    def add(self, kept: Kept) -> None:
        """Add it to what is there. UsageError if it is not of such a table."""
        if kept.ids is None or kept.values.shape != (len(kept.ids), self._width):
            raise UsageError(f"expected ids with rows of {self._width}, got values of shape {kept.values.shape}")
        positions = self.find(np.ascontiguousarray(kept.ids, np.int64))
        self.rows[positions] += kept.values.astype(self._number)

    def clear(self) -> None:
        self._used = self._stamp = 0
        self.rows: Array = np.full((_FIRST_ROWS, self._width), self._fill, self._number)
        self._ids: Array = np.zeros(_FIRST_ROWS, np.int64)
        self._stamps: Array = np.zeros(_FIRST_ROWS, np.int64)
        self._slots: Array = np.full((2 * _FIRST_ROWS, 2), -1, np.int64)

    def _make_room(self, wanted: Array) -> None:
        """For the new ones of these ids. Where it is short, rows that are `fill` go, and at least a quarter of the rows
        are free afterwards: it is not done for every push."""
        from windlass.filters import hashing

        if self._used + len(wanted) <= len(self.rows):
            return
        more = int(np.count_nonzero(self._look_up(wanted) < 0))
        if self._used + more <= len(self.rows):
            return
        is_full = (self.rows[: self._used] != self._fill).any(axis=1)
        rows, ids = self.rows[: self._used][is_full], self._ids[: self._used][is_full]
        # All of the wanted, because those that have an empty row now lose it.
        size = 1 << ((len(ids) + len(wanted)) * 4 // 3).bit_length()
        self.rows = np.full((size, self._width), self._fill, self._number)
        self.rows[: len(rows)] = rows
        self._ids, self._stamps = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._slots, self._stamp = np.full((2 * size, 2), -1, np.int64), 0
        self._used = hashing.find_rows(np.empty(len(ids), np.int64), ids, self._ids, self._slots, 0)


def _norm(values: Array) -> float:
    """The Euclidean norm, summed in double precision."""
    total = 0.0
    for lo in range(0, values.size, _PIECE):
        part = values[lo : lo + _PIECE].astype(np.float64)
        total += float(np.square(part, out=part).sum())  # not part @ part: the threads of BLAS wait for busy cores
    return math.sqrt(total)
