"""The memory of a slot's value: what is published, what arithmetic is done on, and how the one replaces the other.

The *block* is the published value, which readers may hold. Arithmetic is done on `array`: the same memory, except for
16-bit floats, which keep a private float32 *master*. A block that somebody reads (*pinned*) is never written: the next
value goes to a new block, and the old one is handed back.
"""

from __future__ import annotations

import msgspec
import numpy as np

from windlass.errors import UsageError
from windlass.types import STORAGE, Array, Block, Memory

_BYTES = np.dtype(np.uint8)
_NOTHING = np.empty(0, np.uint16)


class Target(msgspec.Struct, frozen=True, eq=False):
    """Where the next value goes: the block, what to compute on, and the 16-bit patterns where that is not the block."""

    block: Block
    array: Array
    published: Array


class Value:
    """`size` elements, zero at first. Not thread-safe."""

    __slots__ = ("_memory", "array", "block", "dtype", "is_half", "published", "size", "storage", "type")

    def __init__(self, size: int, dtype: str, memory: Memory) -> None:
        if dtype not in STORAGE:
            raise UsageError(f"dtype '{dtype}' is unknown; keys hold {', '.join(STORAGE)}")
        self.size, self.dtype, self.storage, self._memory = size, dtype, STORAGE[dtype], memory
        self.is_half = dtype in ("float16", "bfloat16")
        # Bools are computed on as bytes, 0 or 1 whatever byte came.
        self.type = STORAGE["float32" if self.is_half else "uint8" if dtype == "bool" else dtype]
        self.array: Array = np.zeros(size, self.type) if self.is_half else _NOTHING
        first = self._faces(self._allocate())
        self.block, self.array, self.published = first.block, first.array, first.published
        self.block.array.fill(0)

    def here(self) -> Target:
        """The value as it is, to be changed in place."""
        return Target(self.block, self.array, self.published)

    def elsewhere(self, *, is_whole: bool) -> Target:
        """A new block to change instead, because this one is being read. It starts as a copy unless `is_whole`: all of
        it will be written."""
        target = self._faces(self._allocate())
        if not is_whole:
            target.block.array[:] = self.block.array
        return target

    def swap(self, target: Target) -> Block | None:
        """Publish the target. Returns the block that it replaces, the caller's to free; None if it was in place."""
        old = self.block
        self.block, self.array, self.published = target.block, target.array, target.published
        return old if target.block is not old else None

    def abandon(self, target: Target) -> None:
        """Give a target back after a failure."""
        if target.block is not self.block:
            self._memory.free(target.block)

    def elements(self, lo: int, hi: int, data: Array) -> Array:
        """`data` as elements of the storage type; UsageError if it is not what elements lo to hi of this value are."""
        if not 0 <= lo <= hi <= self.size:
            raise UsageError(f"range [{lo}, {hi}) is not within a slot of {self.size} elements")
        if data.dtype != _BYTES and data.dtype != self.storage:
            raise UsageError(f"a {self.dtype} slot takes bytes or {self.storage} elements, got {data.dtype}")
        if data.nbytes != (hi - lo) * self.storage.itemsize:
            raise UsageError(
                f"range [{lo}, {hi}) of {self.dtype} is {(hi - lo) * self.storage.itemsize} bytes, got {data.nbytes}"
            )
        flat = np.ascontiguousarray(data).reshape(-1)
        if self.dtype == "bool":
            return np.not_equal(flat.view(_BYTES), 0)
        return flat.view(self.storage)

    def decoded(self, elements: Array) -> Array:
        """Elements of the storage type as numbers to compute with."""
        if self.dtype == "bfloat16":
            wide: Array = elements.astype(np.uint32) << 16
            return wide.view(np.float32)
        return elements.astype(np.float32) if self.is_half else elements

    def write(self, lo: int, hi: int, elements: Array, target: Target) -> None:
        """Put elements lo to hi, of the storage type, into the target."""
        target.block.array.view(self.storage)[lo:hi] = elements
        if self.is_half:
            target.array[lo:hi] = self.decoded(elements)

    def _allocate(self) -> Block:
        nbytes = self.size * self.storage.itemsize
        return self._memory.allocate(nbytes) if nbytes else Block(np.empty(0, np.uint8))

    def _faces(self, block: Block) -> Target:
        if self.is_half:
            return Target(block, self.array, block.array.view(np.uint16))
        return Target(block, block.array.view(self.type), _NOTHING)
