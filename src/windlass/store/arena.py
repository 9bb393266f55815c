"""The memory of a table's rows: blocks that are added and never moved, so that a table grows without a copy."""

from __future__ import annotations

import numpy as np

from windlass.types import Array, Block, Memory

SHIFT = 8
STRETCH = 1 << SHIFT
"""Rows whose records are side by side: what has an address of its own. (The kernels know the number, too.)"""

BLOCK_BYTES = 4 << 20
_LINE = 64


class Arena:
    """Rows by number, each of `width` words side by side and of `narrow` words elsewhere. Numbers are used again.

    Nobody reads rows by reference, so the memory had better be private: that has large pages where there are any."""

    def __init__(self, width: int, narrow: int, memory: Memory) -> None:
        self.width, self.narrow, self._memory = width, narrow, memory
        self.wides: Array = np.empty(0, np.int64)
        self.narrows: Array = np.empty(0, np.int64)
        self.place = (self.wides.ctypes.data, self.narrows.ctypes.data)  # where those two are
        self._blocks: list[Block] = []
        self._num_rooms = 0  # rows that there is memory for
        self._num_made = 0  # rows that were ever handed out
        self._free: Array = np.empty(0, np.int64)
        self._num_free = 0

    @property
    def nbytes(self) -> int:
        return sum(block.array.nbytes for block in self._blocks) + self._free.nbytes

    def offer(self, count: int) -> Array:
        """Numbers of rows that nobody has. They stay free until they are taken."""
        again = min(count, self._num_free)
        fresh = count - again
        while self._num_made + fresh > self._num_rooms:
            self._extend(fresh)
        used = self._free[self._num_free - again : self._num_free][::-1]
        return np.concatenate([used, np.arange(self._num_made, self._num_made + fresh, dtype=np.int64)])

    def take(self, count: int) -> None:
        """The first so many of what was last offered are somebody's now."""
        again = min(count, self._num_free)
        self._num_free -= again
        self._num_made += count - again

    def give(self, rows: Array) -> None:
        """Nobody has these rows any more."""
        need = self._num_free + rows.size
        if need > self._free.size:
            larger = np.empty(max(need, 2 * self._free.size), np.int64)
            larger[: self._num_free] = self._free[: self._num_free]
            self._free = larger
        self._free[self._num_free : need] = rows
        self._num_free = need

    def close(self) -> None:
        """Give all memory back. Safe to repeat."""
        for block in self._blocks:
            self._memory.free(block)
        self._blocks.clear()
        self._num_rooms = 0

    def _extend(self, wanted: int) -> None:
        """Another block: small ones first, for small tables; never much more than is needed."""
        row_bytes = 4 * (self.width + self.narrow)
        count = max(STRETCH, min(max(wanted, self._num_rooms // 16), BLOCK_BYTES // max(1, row_bytes)))
        stretches = -(-count // STRETCH)
        block = self._memory.allocate(stretches * STRETCH * row_bytes + _LINE)
        start = -(-block.array.ctypes.data // _LINE) * _LINE  # a row should touch as few cache lines as it can
        wide_bytes, narrow_bytes = STRETCH * self.width * 4, STRETCH * self.narrow * 4
        numbers = np.arange(stretches, dtype=np.int64)
        self.wides = np.concatenate([self.wides, start + numbers * wide_bytes])
        self.narrows = np.concatenate([self.narrows, start + stretches * wide_bytes + numbers * narrow_bytes])
        self.place = (self.wides.ctypes.data, self.narrows.ctypes.data)
        self._blocks.append(block)
        self._num_rooms += stretches * STRETCH
