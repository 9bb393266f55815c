"""A batch of ids and rows on its way to the slots of a table and back, in the worker: checked, every id once, and those
of a slot side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from windlass.errors import UsageError
from windlass.store.reduce import Op, Reducer
from windlass.types import STORAGE, Array, Bytes

ENCODINGS = {"float32": 0, "float16": 2, "bfloat16": 3}
"""What tables hold, and how the kernels call it."""

_NO_ORDER = np.empty(0, np.int32)


@dataclass(frozen=True)
class Route:
    """Where the ids of a batch go. `ids` are its different ids, slot by slot, in each as they came; those of slot s are
    from `bounds[s]` to `bounds[s + 1]`. `inverse` says which of them each id of the batch is."""

    ids: Array
    bounds: Array
    inverse: Array

    @property
    def is_unique(self) -> bool:
        """Whether every id came once."""
        return self.ids.size == self.inverse.size

    @cached_property
    def order(self) -> Array:
        """Where `is_unique`: of each id, which of the batch it was."""
        from windlass.store import batch_kernels as kernels

        order = np.empty_like(self.inverse)
        kernels.put_in_order(self.inverse, order)
        return order


def check_ids(name: str, ids: object) -> Array:
    """The ids as an int64 array; UsageError if they are not one-dimensional whole numbers of 64 bits."""
    found = np.asarray(ids)
    if found.size == 0 and found.ndim == 1:
        return np.empty(0, np.int64)
    if found.ndim != 1:
        raise UsageError(f"'{name}': ids must be one-dimensional, got shape {found.shape}")
    if found.dtype.kind not in "iu" or found.dtype == np.uint64:
        raise UsageError(f"'{name}': ids must be int64, or whole numbers that fit into it, got {found.dtype}")
    return np.ascontiguousarray(found, np.int64)


def check_rows(name: str, rows: Array, count: int, dim: int, dtype: str) -> Array:
    """The rows, as elements of the table's storage type, one row of `dim` for each of `count` ids."""
    if rows.dtype != STORAGE[dtype]:
        raise UsageError(f"'{name}' holds rows of {dtype}, got {rows.dtype}")
    if rows.shape != (count, dim):
        raise UsageError(f"'{name}': expected {count} rows of {dim}, one for each id, got shape {rows.shape}")
    return np.ascontiguousarray(rows)


def check_rows_finite(name: str, ids: Array, rows: Array, dtype: str) -> None:
    """UsageError that names the first id whose row has a NaN or an infinity."""
    bits = rows.view(np.uint16) if rows.dtype.itemsize == 2 else rows.view(np.uint32)
    exponent = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
    wrong = np.flatnonzero(((bits & bits.dtype.type(exponent)) == exponent).reshape(len(ids), -1).any(axis=1))
    if wrong.size:
        raise UsageError(
            f"push of '{name}': the row of id {ids[wrong[0]]} has a NaN or an infinity"
            f"{f', and {wrong.size - 1} more rows' if wrong.size > 1 else ''}; nothing was pushed"
        )


def route(ids: Array, num_slots: int) -> Route:
    """Find the different ids of a batch, int64 and contiguous, and the slot of each. Deterministic; takes any order and
    any repetition."""
    from windlass.store import batch_kernels as kernels  # here, because importing numba takes most of a second

    count = ids.size
    places, hashes = np.zeros(kernels.num_places(count), np.int32), np.empty(count, np.uint64)
    found, inverse, slots = np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.int32)
    num_found = kernels.unique(address(ids), num_slots, places, hashes, found, inverse, slots)
    by_slot, bounds = np.empty(num_found, np.int64), np.zeros(num_slots + 1, np.int64)
    kernels.by_slot(found, slots, bounds, by_slot, places, inverse)
    return Route(by_slot, bounds, inverse)


def slot_bounds(ids: Array, num_slots: int) -> list[int] | None:
    """Where in a list of ids, int64 and contiguous, those of each slot begin; None if they are not slot by slot."""
    from windlass.store import batch_kernels as kernels

    bounds = np.zeros(num_slots + 1, np.int64)
    return bounds.tolist() if kernels.slot_bounds(address(ids), ids.size, num_slots, bounds) else None


def reduce_rows(total: Array, parts: Sequence[tuple[Array, Array]], *, dtype: str, reducer: Reducer) -> None:
    """Fold the rows of each part, (which row of `total` each is for, rows), in the order given, into `total`, which is
    float32 and need not be empty: every row of it gets one at least. What mean divides by is not divided by here."""
    from windlass.store import batch_kernels as kernels

    if not len(total):
        return
    if reducer.op is Op.CUSTOM:
        _reduce_slowly(total, parts, dtype, reducer)
        return
    encoding, has_some = ENCODINGS[dtype], np.zeros(len(total), np.bool_)
    for inverse, rows in parts:
        kernels.reduce_rows(total, address(rows), encoding, inverse, int(reducer.op), has_some)


def _reduce_slowly(total: Array, parts: Sequence[tuple[Array, Array]], dtype: str, reducer: Reducer) -> None:
    """By a user's reducer: the first row of every id, then the second, and so on."""
    inverse = np.concatenate([each for each, _ in parts])
    rows = np.concatenate([decoded(each, dtype) for _, each in parts]).reshape(inverse.size, total.shape[1])
    order = np.argsort(inverse, kind="stable")
    starts = np.flatnonzero(np.diff(inverse[order], prepend=-1))
    nth = np.arange(inverse.size) - np.repeat(starts, np.diff(starts, append=inverse.size))
    total[:] = rows[order[starts]]
    for n in range(1, int(nth.max(initial=0)) + 1):
        again = order[nth == n]
        total[inverse[again]] = reducer.merge(total[inverse[again]], rows[again])


def merge_rows(route: Route, rows: Array, *, dtype: str, reducer: Reducer) -> Array:
    """In the worker: the rows of a batch, those of the same id reduced, in the order of the route and of the table's
    own type."""
    from windlass.store import kernels

    total = np.empty((route.ids.size, rows.shape[1]), np.float32)
    reduce_rows(total, [(route.inverse, rows)], dtype=dtype, reducer=reducer)
    if dtype == "float32":
        return total
    halves = np.empty(total.shape, np.uint16)
    kernels.publish(halves.reshape(-1), total.reshape(-1), 0, total.size, ENCODINGS[dtype])
    return halves.view(STORAGE[dtype])


def expand_rows(route: Route, rows: Array) -> Array:
    """In the worker: rows that came in the order of the route, for every id of the batch in the order it came."""
    from windlass.store import batch_kernels as kernels

    found = np.empty((route.inverse.size, rows.shape[1]), rows.dtype)
    kernels.expand(address(rows), rows.shape[1] * rows.itemsize, route.inverse, address(found))
    return found


def pack_rows(route: Route, rows: Array, plan: Array) -> None:
    """In the worker: write ids and rows of pieces, (from, up to, address), to where they go. `rows` are those of the
    batch if every id came once, else what `merge_rows` made of them; contiguous."""
    from windlass.store import batch_kernels as kernels

    order = route.order if route.is_unique else _NO_ORDER
    kernels.pack(plan, route.ids, order, address(rows), rows.shape[1] * rows.itemsize)


def pack_ids(route: Route, plan: Array) -> None:
    """In the worker: the same, ids without rows."""
    from windlass.store import batch_kernels as kernels

    kernels.pack(plan, route.ids, _NO_ORDER, 0, 0)


def unpack_rows(route: Route, plan: Array, out: Array) -> None:
    """In the worker: rows that came, (from, up to, address), to the places of their ids: in the batch if every id came
    once, else in the route. `out` is contiguous."""
    from windlass.store import batch_kernels as kernels

    order = route.order if route.is_unique else _NO_ORDER
    kernels.unpack(plan, order, out.shape[1] * out.itemsize, address(out))


def decoded(rows: Array, dtype: str) -> Array:
    """Elements of the storage type as float32."""
    if dtype == "bfloat16":
        wide: Array = rows.astype(np.uint32) << 16
        return wide.view(np.float32)
    return rows.astype(np.float32, copy=False)


def address(array: Array) -> int:
    """Where a contiguous array begins. It must outlive what is done with the number."""
    found: int = array.__array_interface__["data"][0]
    return found


def bytes_address(data: Bytes) -> int:
    """The same for bytes, in a sixth of the time."""
    return _compiled()(data)


@cache
def _compiled() -> Callable[[Bytes], int]:
    from windlass.store import batch_kernels

    return batch_kernels.bytes_address
