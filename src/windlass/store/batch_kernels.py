"""The hot loops over a batch of ids: find the different ones, sort them by slot, and reduce the rows of the same id."""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401, whole before its parts: another thread may be importing it
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from windlass.store import kernels
from windlass.store.kernels import NATIVE, decode, jit
from windlass.store.kernels import _pointer as pointer
from windlass.store.table_kernels import fetch, mix
from windlass.types import Array

AHEAD = 12
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)

_copy, _fold = kernels._copy, kernels._fold


def _move(_: Any, to: Any, source: Any, nbytes: Any) -> Any:
    """Copy so many bytes from one address to another."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(each, cgutils.voidptr_t) for each in args[:2])
        raw_memcpy: Any = cgutils.raw_memcpy
        raw_memcpy(builder, to, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


move: Any = intrinsic(_move)


@jit
def bytes_address(data: Array) -> int:
    """Where these bytes begin. numpy needs several times as long to say it."""
    return data.ctypes.data


def num_places(count: int) -> int:
    """How many places `unique` needs for so many ids: at most half are ever used."""
    return 1 << max(6, (2 * count - 1).bit_length())


@jit
def slot_of(hashed: Any, num_slots: int) -> Any:
    """By the lower half of the hash; the index of a slot goes by the upper half."""
    return np.int64(((hashed & _LOW) * np.uint64(num_slots)) >> _HALF)


@jit
def unique(
    ids: int, num_slots: int, places: Array, hashes: Array, found: Array, inverse: Array, slots: Array
) -> int:
    """The different ids, in the order in which they come first, and the slot of each; of every id, which of them it is.
    The ids are at this address. `places` are zeros, `hashes` room for one id each. Returns how many there are."""
    count, num_found, mask = inverse.size, 0, places.size - 1
    given = carray(pointer(ids, np.empty(0, np.int64)), count)
    base, width = places.ctypes.data, np.uint64(places.size)
    for i in range(count + AHEAD):
        if i < count:
            hashes[i] = mix(given[i])
            fetch(base + 4 * np.int64(((hashes[i] >> _HALF) * width) >> _HALF))
        if i < AHEAD:
            continue
        hashed, number = hashes[i - AHEAD], given[i - AHEAD]
        place = np.int64(((hashed >> _HALF) * width) >> _HALF)
        which = places[place]
        while which and found[which - 1] != number:
            place = (place + 1) & mask
            which = places[place]
        if which == 0:
            found[num_found] = number
            slots[num_found] = slot_of(hashed, num_slots)
            num_found += 1
            which = places[place] = num_found
        inverse[i - AHEAD] = which - 1
    return num_found


@jit
def slot_bounds(ids: int, count: int, num_slots: int, bounds: Array) -> bool:
    """Where those of each slot begin, of so many ids at this address. False if they are not slot by slot."""
    given = carray(pointer(ids, np.empty(0, np.int64)), count)
    last = 0
    for i in range(count):
        slot = slot_of(mix(given[i]), num_slots)
        if slot < last:
            return False
        last = slot
        bounds[slot + 1] += 1
    for slot in range(num_slots):
        bounds[slot + 1] += bounds[slot]
    return True


@jit
def by_slot(found: Array, slots: Array, bounds: Array, ids: Array, moved: Array, inverse: Array) -> None:
    """Put the ids of each slot side by side, in the order that they have, and let `inverse` follow. `bounds`, which are
    zeros, become where each slot begins. `moved` is room for a number for each id."""
    count = ids.size
    for i in range(count):
        bounds[slots[i] + 1] += 1
    for slot in range(1, bounds.size):
        bounds[slot] += bounds[slot - 1]
    for i in range(count):
        to = bounds[slots[i]]
        bounds[slots[i]] += 1
        ids[to], moved[i] = found[i], to
    for slot in range(bounds.size - 1, 0, -1):
        bounds[slot] = bounds[slot - 1]
    bounds[0] = 0
    for i in range(inverse.size):
        inverse[i] = moved[inverse[i]]


@jit
def reduce_rows(total: Array, rows: int, encoding: int, inverse: Array, op: int, has_some: Array) -> None:
    """Fold rows, which are at this address, one after the other, into that row of `total` that `inverse` names; the
    first of each, unless it `has_some` already, is copied."""
    dim, at = total.shape[1], total.ctypes.data
    itemsize = 4 if encoding == NATIVE else 2
    decoded = np.empty(dim, np.float32)
    for i in range(inverse.size):
        which = inverse[i]
        out = carray(pointer(at + which * dim * 4, total), dim)
        row = carray(pointer(rows + i * dim * 4, total), dim)
        if encoding != NATIVE:
            decode(decoded, rows + i * dim * itemsize, encoding)
            row = decoded
        if has_some[which]:
            _fold(out, row, op)
        else:
            _copy(out, row)
            has_some[which] = True


@jit
def put_in_order(inverse: Array, order: Array) -> None:
    for i in range(inverse.size):
        order[inverse[i]] = i


@jit
def expand(rows: int, nbytes: int, inverse: Array, out: int) -> None:
    """Copy the row of so many bytes that `inverse` names to `out`, for each of them."""
    for i in range(inverse.size):
        if i + AHEAD < inverse.size:
            fetch(rows + inverse[i + AHEAD] * nbytes)
        move(out + i * nbytes, rows + inverse[i] * nbytes, nbytes)


@jit
def pack(plan: Array, ids: Array, order: Array, rows: int, nbytes: int) -> None:
    """Write pieces, each its ids and then their rows. A line of the plan is where its ids begin and end, and where it
    goes. The rows are where `order` says; if it is empty, where the ids are."""
    for begin, end, to in plan:
        cut = 8 * (end - begin)
        move(to, ids.ctypes.data + 8 * begin, cut)
        if order.size:
            expand(rows, nbytes, order[begin:end], to + cut)
        else:
            move(to + cut, rows + begin * nbytes, (end - begin) * nbytes)


@jit
def unpack(plan: Array, order: Array, nbytes: int, out: int) -> None:
    """The other way round. A line of the plan is which rows come, from one up to another, and where they are."""
    for begin, end, source in plan:
        if not order.size:
            move(out + begin * nbytes, source, (end - begin) * nbytes)
            continue
        for i in range(begin, end):
            move(out + order[i] * nbytes, source + (i - begin) * nbytes, nbytes)
