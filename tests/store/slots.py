"""What the store's tests share: a slot in one line, contributions in one line, and values as floats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from windlass.store.dense import Contribution, DenseSlot
from windlass.store.reduce import Reducer, reducer_rule, resolve_reducer
from windlass.store.update import Updater, resolve_updater, updater_rule
from windlass.types import STORAGE, Array, Block, Heap, Memory


def make_slot(
    size: int,
    dtype: str = "float32",
    reduce: str | Reducer = "sum",
    update: str | Updater = "assign",
    memory: Memory | None = None,
) -> DenseSlot:
    """A slot as a server makes it: from rules."""
    local: dict[str, object] = {}
    reducer = resolve_reducer(reducer_rule(reduce, local), local)
    updater = resolve_updater(updater_rule(update, local), local)
    return DenseSlot(size=size, dtype=dtype, reducer=reducer, updater=updater, memory=memory or Heap())


def push(
    slot: DenseSlot,
    *pieces: Array | tuple[int, Array],
    divisor: int = 1,
    hyper: Mapping[str, float] | None = None,
    is_pinned: bool = False,
) -> Block | None:
    """Apply one round. A piece is an array from element 0, or (lo, array)."""
    contributions = []
    for piece in pieces:
        lo, data = piece if isinstance(piece, tuple) else (0, piece)
        contributions.append(Contribution(lo, lo + data.size, data))
    return slot.apply(contributions, divisor=divisor, hyper=hyper, is_pinned=is_pinned)


def value(slot: DenseSlot) -> Array:
    """A copy of the published value, in numbers."""
    stored = slot.block.array.view(STORAGE[slot.dtype])
    if slot.dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.copy()


def bfloat16(numbers: Array) -> Array:
    """The bits of numbers that bfloat16 holds exactly."""
    return (np.asarray(numbers, np.float32).view(np.uint32) >> 16).astype(np.uint16)
