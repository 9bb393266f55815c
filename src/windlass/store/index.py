"""Which row an id has: the index of a table slot. `table_kernels` says how it is laid out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from windlass.types import Array

MAX_LOAD = 0.75
_GROWN_LOAD = 0.5
_FEWEST_HOMES = 32
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Floor = tuple[int, int]
"""A tick and a hash: what was last used before the tick, or in it and has a lower hash, is to go."""

NO_FLOOR: Floor = (0, 0)


class Found(NamedTuple):
    """Of each id of a batch, which is at this address: its hash, its place or -1, its row or -1; and how many have no
    place."""

    ids: int
    hashes: Array
    places: Array
    rows: Array
    missing: int


class Entries(NamedTuple):
    """Entries of the index, by rising hash."""

    hashes: Array
    used: Array
    tags: Array


class Index:
    """Hash to tag. Places change whenever entries are added."""

    def __init__(self, size: int = 0) -> None:
        from windlass.store import table_kernels  # here, because importing numba takes most of a second

        self._kernels = table_kernels
        self.size = 0
        self._homes, self._entries = self._empty(size)

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes

    @staticmethod
    def bytes_for(size: int) -> int:
        """What an index of so many entries takes at most."""
        return int(16 * max(_FEWEST_HOMES, size / _GROWN_LOAD))

    def find(self, ids: int, count: int) -> Found:
        """Look up so many ids, which are at this address."""
        hashes, places, rows = np.empty(count, np.uint64), np.empty(count, np.int64), np.empty(count, np.int64)
        missing = self._kernels.find(self._entries, self._homes, ids, hashes, places, rows)
        return Found(ids, hashes, places, rows, missing)

    def count(self, found: Found, free: Array, tick: int, admit_after: int) -> Array:
        """Count a push for every id, at this tick. Those that have no row yet and are due one take the next of `free`,
        in `found.rows`. Returns which ids of the batch those are."""
        kernels = self._kernels
        made = np.empty(free.size, np.int64)
        if self.size + found.missing > MAX_LOAD * self._homes:
            self._grow(found.missing)
            kernels.find(self._entries, self._homes, *found[:-1])  # what was there has moved
        done = np.array([0, 0, 0, tick, admit_after], np.int64)
        if tick or admit_after > 1:
            kernels.touch(self._entries, found.places, found.rows, free, made, done)
        while found.missing and not kernels.enter(
            self._entries, self._homes, found.hashes, found.places, found.rows, free, made, done
        ):
            self._grow(found.missing)
        self.size += int(done[2])
        return made[: done[1]]

    def num_due(self, found: Found, admit_after: int) -> int:
        """How many of the candidates among these ids get a row with their next push."""
        places = found.places[(found.places >= 0) & (found.rows < 0)]
        pushes = (self._entries[places, 1] & _LOW).astype(np.int64) - self._kernels.CANDIDATE
        return int(np.count_nonzero(pushes + 1 >= admit_after))

    def sweep(self, rows: Floor, candidates: Floor) -> Array:
        """Drop what is below these floors. Returns the rows that this frees."""
        homes, entries = self._empty(self.size)
        freed = np.empty(self.size, np.int64)
        counts = self._move(entries, homes, (*rows, *candidates), freed)
        self.size -= counts[0] + counts[1]
        return freed[: counts[0]].copy()

    def entries(self, after: int = -1, limit: int | None = None) -> Entries:
        """The first so many entries whose hash is above `after`, by rising hash."""
        start = 0 if after < 0 else self._kernels.first_above(self._entries, self._homes, np.uint64(after))
        count = self.size if limit is None else min(limit, self.size)
        found = np.empty((count, 2), np.uint64)
        found = found[: self._kernels.collect(self._entries, start, found)]
        return Entries(found[:, 0], found[:, 1] >> _HALF, found[:, 1] & _LOW)

    def refill(self, entries: Entries) -> bool:
        """Hold exactly these, which must come by rising hash; False if they do not."""
        if np.any(entries.hashes[1:] <= entries.hashes[:-1]):
            return False
        self.size = entries.hashes.size
        words = entries.used.astype(np.uint64) << _HALF | entries.tags.astype(np.uint64)
        size = self.size
        while True:
            self._homes, self._entries = self._empty(size)
            if self._kernels.fill(self._entries, self._homes, entries.hashes, words):
                return True
            size *= 2

    def _grow(self, extra: int) -> None:
        homes, entries = self._empty(self.size + extra)
        self._move(entries, homes, (0, 0, 0, 0), np.empty(0, np.int64))

    def _move(self, entries: Array, homes: int, floors: tuple[int, int, int, int], freed: Array) -> tuple[int, int]:
        limits = np.array(floors, np.uint64)
        counts = np.zeros(2, np.int64)
        while not self._kernels.rebuild(self._entries, entries, homes, limits, freed, counts):
            homes = 2 * homes  # an unlucky crowd at the end
            entries = np.zeros((homes + homes // 64 + 64, 2), np.uint64)
        self._homes, self._entries = homes, entries
        return int(counts[0]), int(counts[1])

    @staticmethod
    def _empty(size: int) -> tuple[int, Array]:
        homes = max(_FEWEST_HOMES, int(size / _GROWN_LOAD))
        # Who lives at the end overflows into some more places, the last of which stays empty.
        return homes, np.zeros((homes + homes // 64 + 64, 2), np.uint64)
