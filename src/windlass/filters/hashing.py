"""The hot loops on ids: finding what is kept for one, and a digest of a list.

Open addressing with linear probing. A *slot* is an id and its row, side by side so that both are in one line of the
cache; the row is -1 where the slot is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windlass.filters.kernels import mix
from windlass.store.kernels import jit
from windlass.types import Array


@jit
def find_rows(out: Array, ids: Array, row_ids: Array, slots: Array, used: int) -> int:
    """The row of every id; a new id takes the next row, and is noted in `row_ids`. How many rows are used then. There
    is room: rows for all ids, and twice as many slots (a power of two)."""
    mask = len(slots) - 1
    for i in range(ids.size):
        at = np.int64(mix(ids[i]) & np.uint64(mask))
        while slots[at, 1] >= 0 and slots[at, 0] != ids[i]:
            at = (at + 1) & mask
        if slots[at, 1] < 0:
            slots[at, 0], slots[at, 1] = ids[i], used
            row_ids[used] = ids[i]
            used += 1
        out[i] = slots[at, 1]
    return used


@jit
def look_up(out: Array, ids: Array, slots: Array) -> None:
    """The row of every id, or -1."""
    mask = len(slots) - 1
    for i in range(ids.size):
        at = np.int64(mix(ids[i]) & np.uint64(mask))
        while slots[at, 1] >= 0 and slots[at, 0] != ids[i]:
            at = (at + 1) & mask
        out[i] = slots[at, 1]


@jit
def first_repeat(positions: Array, stamps: Array, stamp: int) -> int:
    """The index of the first position that came before, or -1. `stamps` remembers the last stamp of every row."""
    for i in range(positions.size):
        if stamps[positions[i]] == stamp:
            return i
        stamps[positions[i]] = stamp
    return -1


@jit
def digest(ids: Array) -> tuple[Any, Any]:
    """128 bits of a list of ids, its order included: two hashes with different constants, of four lanes each, in the
    manner of xxHash. Equal on every machine; not a defence against those who look for two lists that are alike."""
    low, high = np.zeros(4, np.uint64), np.zeros(4, np.uint64)
    for lane in range(4):
        low[lane], high[lane] = mix(lane + 1), mix(lane + 101)
    for i in range(ids.size):
        lane, number = i & 3, np.uint64(ids[i])
        a = low[lane] + number * np.uint64(0xC2B2AE3D27D4EB4F)
        low[lane] = ((a << np.uint64(31)) | (a >> np.uint64(33))) * np.uint64(0x9E3779B185EBCA87)
        b = high[lane] ^ (number * np.uint64(0xFF51AFD7ED558CCD))
        high[lane] = ((b << np.uint64(27)) | (b >> np.uint64(37))) * np.uint64(0xD6E8FEB86659FD93)
    first, second = mix(ids.size), mix(ids.size + 7)
    for lane in range(4):
        first = mix(first ^ low[lane])
        second = mix(second + high[lane])
    return first, second
