"""Memory for the rows of tables: private, and in large pages where the system has them.

A row is found by its hash, so nearly every access is to another page. With pages of 4 KiB a table of a million rows has
more of them than the processor remembers the places of, and looking those up takes as long as the access itself.
"""

from __future__ import annotations

import mmap

import numpy as np

from windlass.types import Block, Bytes

REGION_BYTES = 32 << 20
_LARGE_PAGE = 2 << 20
_LINE = 64


class LargePages:
    """Blocks out of regions that ask for large pages. What is freed is used again for blocks of the same size, and
    never given back to the system. Not thread-safe: one owner."""

    def __init__(self) -> None:
        self._free: dict[int, list[Block]] = {}
        self._region: Bytes = np.empty(0, np.uint8)
        self._begin = 0  # of what is left of it

    def allocate(self, nbytes: int) -> Block:
        spare = self._free.get(nbytes)
        if spare:
            return spare.pop()
        room = -(-nbytes // _LINE) * _LINE
        if self._begin + room > self._region.nbytes:
            self._region, self._begin = _map(max(room, REGION_BYTES)), 0
        block = Block(self._region[self._begin : self._begin + nbytes])
        self._begin += room
        return block

    def free(self, block: Block) -> None:
        self._free.setdefault(block.array.nbytes, []).append(block)


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
