"""Which row an id has: the index of a table slot. `table_kernels` says how it is laid out."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from windlass.types import Array, Block, Memory

_GROWN_LOAD, _FULL_LOAD = 0.5, 0.75  # after growth, and when it is due
_FEWEST_HOMES = 32
_ONE_PART = 1 << 15
"""Up to so many entries are one part; more are cut into 2**_PART_BITS."""

_PART_BITS = 6
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

Floor = tuple[int, int]
"""A tick and a hash: what was last used before the tick, or in it and has a lower hash, is to go."""

NO_FLOOR: Floor = (0, 0)
_NO_ENTRIES = np.empty((0, 2), np.uint64)


class Found(NamedTuple):
    """Of each id of a batch: its hash, the address of its entry or -1, its row or -1; and how many have no entry."""

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

    def __init__(self, memory: Memory) -> None:
        from windlass.store import table_kernels  # here, because importing numba takes most of a second

        self._kernels, self._memory = table_kernels, memory
        self._bits = 0
        self._blocks: list[Block | None] = []  # of each part
        self._let_go(1)
        self._put(0, *self._empty(0), 0)
        self.size = 0

    def close(self) -> None:
        """Give all memory back. Safe to repeat."""
        self._let_go(1)

    @property
    def nbytes(self) -> int:
        return sum(entries.nbytes for entries in self._entries)

    @staticmethod
    def bytes_for(size: int) -> int:
        """What an index of so many entries takes at most."""
        return int(16 * max(_FEWEST_HOMES, size / _GROWN_LOAD))

    def find(self, ids: int, count: int) -> Found:
        """Look up so many ids, which are at this address."""
        hashes, places, rows = np.empty(count, np.uint64), np.empty(count, np.int64), np.empty(count, np.int64)
        missing = self._kernels.find(self._parts, self._bits, ids, hashes, places, rows)
        return Found(hashes, places, rows, missing)

    def count(self, found: Found, free: Array, tick: int, admit_after: int) -> Array:
        """Count a push for every id, at this tick. Those that have no row yet and are due one take the next of `free`,
        in `found.rows`. Returns which ids of the batch those are."""
        kernels, made, done = self._kernels, np.empty(free.size, np.int64), np.array([0, 0, tick, admit_after])
        if tick or admit_after > 1 or free.size > found.missing:
            kernels.touch(found.places, found.rows, free, made, done)
        if found.missing:
            if self._bits == 0 and self.size + found.missing > _ONE_PART:
                self.refill(self.entries(), extra=found.missing)
            while True:
                part = kernels.enter(
                    self._parts, self._bits, found.hashes, found.places, found.rows, free, made, done
                )
                if part < 0:
                    break
                self._grow(part, 1 + (found.missing >> self._bits))
            self.size = int(self._parts[:, 2].sum())
        return made[: done[1]]

    def num_due(self, found: Found, admit_after: int) -> int:
        """How many of the candidates among these ids get a row with their next push."""
        return int(self._kernels.num_due(found.places, admit_after))

    def sweep(self, rows: Floor, candidates: Floor) -> Array:
        """Drop what is below these floors. Returns the rows that this frees."""
        floors, freed = np.array([*rows, *candidates], np.uint64), []
        for part in range(len(self._entries)):
            room = np.empty(int(self._parts[part, 2]), np.int64)
            freed.append(room[: self._rebuild(part, 0, floors, room)].copy())
        self.size = int(self._parts[:, 2].sum())
        return np.concatenate(freed)

    def oldest(self, count: int, total: int, *, are_candidates: bool) -> Floor:
        """The floor below which the `count` least recently used rows, or candidates, of `total` are. Of those used by
        the same update, the lowest hashes: as good as any, and the same everywhere."""
        if count <= 0:
            return NO_FLOOR
        uses, at = np.empty(total, np.uint32), 0
        for entries in self._entries:
            at += self._kernels.last_uses(entries, are_candidates, uses[at:])
        if count >= total:
            return int(uses.max()) + 1, 0
        tick = int(np.partition(uses, count)[count])
        hashes, at = np.empty(int(np.count_nonzero(uses == tick)), np.uint64), 0
        for entries in self._entries:
            at += self._kernels.used_at(entries, are_candidates, tick, hashes[at:])
        rank = count - int(np.count_nonzero(uses < tick))
        return tick, int(np.partition(hashes, rank)[rank])

    def entries(self, after: int = -1, limit: int | None = None) -> Entries:
        """The first so many entries whose hash is above `after`, by rising hash."""
        size = self.size
        found, count = np.empty((size if limit is None else min(limit, size), 2), np.uint64), 0
        first = 0 if after < 0 else after >> (64 - self._bits)
        for part in range(first, len(self._entries)):
            is_first = after < 0 or part > first
            hashed = np.uint64(max(after, 0))
            count += self._kernels.collect(self._entries[part], hashed, is_first, found[count:])
        return Entries(found[:count, 0], found[:count, 1] >> _HALF, found[:count, 1] & _LOW)

    def refill(self, entries: Entries, extra: int = 0) -> bool:
        """Hold exactly these, which must come by rising hash, and have room for more; False if they do not."""
        hashes = np.ascontiguousarray(entries.hashes)
        if np.any(hashes[1:] <= hashes[:-1]):
            return False
        words = entries.used.astype(np.uint64) << _HALF | entries.tags.astype(np.uint64)
        self._bits = _PART_BITS if hashes.size + extra > _ONE_PART else 0
        count = 1 << self._bits
        starts = np.array([part << (64 - self._bits) for part in range(1, count)], np.uint64)
        bounds = [0, *np.searchsorted(hashes, starts).tolist(), hashes.size]
        self._let_go(count)
        for part, (lo, hi) in enumerate(pairwise(bounds)):
            # Hashes are even, so parts of one load would all be full in the same few pushes, and so would those of
            # every other slot. They begin as if each had grown at another time, and stay apart: all grow by one factor.
            load = _GROWN_LOAD * (_FULL_LOAD / _GROWN_LOAD) ** (0.9 * part / count)
            homes, block = self._empty(hi - lo + extra // count, load)
            while not self._kernels.fill(_entries(block), homes, self._bits, hashes[lo:hi], words[lo:hi]):
                self._memory.free(block)
                homes, block = self._empty(homes)
            self._put(part, homes, block, hi - lo)
        self.size = hashes.size
        return True

    def _grow(self, part: int, extra: int) -> None:
        self._rebuild(part, extra, np.zeros(4, np.uint64), np.empty(0, np.int64))

    def _rebuild(self, part: int, extra: int, floors: Array, freed: Array) -> int:
        """Make a part anew, with room for more, or without what is below the floors. Returns how many rows go."""
        size, counts = int(self._parts[part, 2]), np.zeros(2, np.int64)
        homes, block = self._empty(size + extra)
        while not self._kernels.rebuild(
            self._entries[part], _entries(block), homes, self._bits, floors, freed, counts
        ):
            self._memory.free(block)
            homes, block = self._empty(homes)  # an unlucky crowd at the end
        self._put(part, homes, block, size - int(counts.sum()))
        return int(counts[0])

    def _put(self, part: int, homes: int, block: Block, size: int) -> None:
        before, entries = self._blocks[part], _entries(block)
        self._blocks[part], self._entries[part] = block, entries
        self._parts[part] = entries.ctypes.data, homes, size, len(entries)
        if before is not None:
            self._memory.free(before)

    def _let_go(self, count: int) -> None:
        """Have no part any more, and so many to come."""
        for block in self._blocks:
            if block is not None:
                self._memory.free(block)
        self._blocks, self._entries = [None] * count, [_NO_ENTRIES] * count
        self._parts = np.zeros((count, 4), np.int64)
        self.place = (self._parts.ctypes.data, self._bits)  # where they are looked up, and by how many bits

    def _empty(self, size: int, load: float = _GROWN_LOAD) -> tuple[int, Block]:
        """Homes and places for so many. Who lives at the end overflows into some more places, of which the last stays
        empty."""
        homes = max(_FEWEST_HOMES, int(size / load))
        block = self._memory.allocate(16 * (homes + homes // 64 + 32))
        block.array[:] = 0
        return homes, block


def _entries(block: Block) -> Array:
    return block.array.view(np.uint64).reshape(-1, 2)
