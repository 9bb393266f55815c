"""Memory for tables: private, and in large pages where the system has them.

A row is found by its hash, so nearly every access is to another page. With pages of 4 KiB a table of a million rows has
more of them than the processor remembers the places of, and looking those up takes as long as the access itself.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left

import numpy as np

from windlass.types import Block, Bytes

REGION_BYTES = 32 << 20
_LARGE_PAGE = 2 << 20
_LINE = 64


class LargePages:
    """Blocks out of regions that ask for large pages. What is freed joins what is free beside it, and is used again; a
    region of which nothing is used any more goes back to the system. Not thread-safe: one owner."""

    def __init__(self) -> None:
        self._regions: dict[int, Bytes] = {}  # by address
        self._starts: list[int] = []  # of the stretches that are free, rising
        self._sizes: list[int] = []  # of each of them

    @property
    def nbytes(self) -> int:
        """What it has of the system."""
        return sum(region.nbytes for region in self._regions.values())

    @property
    def free_bytes(self) -> int:
        """How much of it nobody uses."""
        return sum(self._sizes)

    def allocate(self, nbytes: int) -> Block:
        """Not empty: it is as its last user left it."""
        room = _room(nbytes)
        at = self._fitting(room)
        if at < 0:
            region = _map(max(room, REGION_BYTES))
            start = region.ctypes.data
            self._regions[start] = region
            at = self._insert(start, region.nbytes)
        start = self._starts[at]
        if self._sizes[at] == room:
            del self._starts[at], self._sizes[at]
        else:
            self._starts[at], self._sizes[at] = start + room, self._sizes[at] - room
        base = self._region_of(start)
        return Block(self._regions[base][start - base : start - base + nbytes])

    def free(self, block: Block) -> None:
        """Nobody may look at it any more."""
        start, size = block.array.ctypes.data, _room(block.array.nbytes)
        at = self._insert(start, size)
        base = self._region_of(start)
        end = base + self._regions[base].nbytes
        if at + 1 < len(self._starts) and self._starts[at + 1] == start + size < end:
            self._sizes[at] += self._sizes[at + 1]
            del self._starts[at + 1], self._sizes[at + 1]
        if at and self._starts[at - 1] + self._sizes[at - 1] == start > base:
            at -= 1
            self._sizes[at] += self._sizes[at + 1]
            del self._starts[at + 1], self._sizes[at + 1]
        if self._sizes[at] == self._regions[base].nbytes:
            del self._starts[at], self._sizes[at], self._regions[base]

    def _fitting(self, room: int) -> int:
        """The smallest stretch that is large enough; -1 if none is."""
        best, found = 1 << 62, -1
        for at, size in enumerate(self._sizes):
            if room <= size < best:
                best, found = size, at
                if size == room:
                    break
        return found

    def _insert(self, start: int, size: int) -> int:
        at = bisect_left(self._starts, start)
        self._starts.insert(at, start)
        self._sizes.insert(at, size)
        return at

    def _region_of(self, address: int) -> int:
        return max(base for base in self._regions if base <= address)


def _room(nbytes: int) -> int:
    return max(1, -(-nbytes // _LINE)) * _LINE


def _map(nbytes: int) -> Bytes:
    """Fresh memory that begins at a large page; the pages that nobody touches take none."""
    size = -(-nbytes // _LARGE_PAGE) * _LARGE_PAGE
    mapped = mmap.mmap(-1, size + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them
    whole: Bytes = np.frombuffer(mapped, np.uint8)
    begin = -whole.ctypes.data % _LARGE_PAGE
    return whole[begin : begin + size]
