"""The hot loops over the rows of a table: read, make, and update rows by their number.

A row is a *wide* record, its value and then its state arrays, in float32; and a *narrow* one, a few words that a row
has only one of (an accumulator, its steps). Rows are kept in stretches of STRETCH; `wides` and `narrows` are the
addresses of the stretches. `shape` is how long a value is, a wide record, and a narrow one, in words. The arithmetic is
that of `kernels`, on one row at a time. A row of -1 is none, and passed over.

What is updated or read at once may be rows of several slots. So it is named by addresses: a line of `records` is where
a row's wide record is, or 0 if there is no such row; its narrow one; and its gradient, or where its value goes.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba.np.numpy_support import carray

from windlass.store import kernels
from windlass.store.initial_kernels import begin
from windlass.store.kernels import NATIVE, divide, jit
from windlass.store.kernels import _pointer as pointer
from windlass.store.table_kernels import fetch, find
from windlass.types import Array

SHIFT = 8
STRETCH = 1 << SHIFT
AHEAD = 24
_MASK = STRETCH - 1
_LINE = 64
_RUN = 1024  # ids that are looked up at once: what is known of them stays in the cache
_FAR = 1 << 40  # elements: longer than any list of stretches


def _inlined(function: Any) -> Any:
    """Written into whoever calls it, before anything else: a call that takes or returns arrays counts the references of
    their owners, which costs as much as the arithmetic on a short row."""
    return numba.njit(inline="always", nogil=True, error_model="numpy")(getattr(function, "py_func", function))


_add_scaled, _copy, _fold = _inlined(kernels._add_scaled), _inlined(kernels._copy), kernels._fold
_momentum, _moments, _adam_step = kernels._momentum, _inlined(kernels._moments), _inlined(kernels._adam_step)
_adagrad_step, _ftrl_step = _inlined(kernels._adagrad_step), _inlined(kernels._ftrl_step)


@_inlined
def _at(stretches: Array, row: int, words: int) -> Any:
    return stretches[row >> SHIFT] + (row & _MASK) * words * 4


@_inlined
def _words(address: int, like: Array, count: int) -> Any:
    """So many words at this address."""
    return carray(pointer(address, like), count)


@_inlined
def _fetch(address: int, wanted: int) -> None:
    """Ask for so many words."""
    for offset in range(0, wanted * 4, _LINE):
        fetch(address + offset)


# --- finding ---------------------------------------------------------------------------------------------------------

PARTS, BITS, WIDES, NARROWS, IDS, COUNT, DATA, MISSING, PLAN = range(9)
"""A line of a plan is what to look for in one slot: the address of the parts of its index, and their bits; of the
addresses of its stretches; of the ids, and how many they are; and of what comes or goes with them. `locate` adds how
many have no entry. PLAN is how long it is."""


@jit
def locate(plan: Array, shape: Array, row_bytes: int, records: Array) -> None:
    """Find the records of all ids of a plan, in order. `row_bytes` is the distance of what comes or goes with them."""
    hashes, places, tags, begin = np.empty(_RUN, np.uint64), np.empty(_RUN, np.int64), np.empty(_RUN, np.int64), 0
    for line in plan:
        parts = carray(pointer(line[PARTS], plan), (1 << line[BITS], 4))
        wides, narrows = carray(pointer(line[WIDES], plan), _FAR), carray(pointer(line[NARROWS], plan), _FAR)
        line[MISSING] = 0
        for lo in range(0, line[COUNT], _RUN):
            count = min(_RUN, line[COUNT] - lo)
            rows = tags[:count]
            line[MISSING] += find(parts, line[BITS], line[IDS] + 8 * lo, hashes[:count], places[:count], rows)
            for i in range(count):
                record = records[begin + lo + i]
                row = rows[i]
                record[0] = _at(wides, row, shape[1]) if row >= 0 else 0
                record[1] = _at(narrows, row, shape[2]) if row >= 0 else 0
                record[2] = line[DATA] + (lo + i) * row_bytes
        begin += line[COUNT]


@jit
def name_records(
    wides: Array, narrows: Array, shape: Array, rows: Array, data: int, row_bytes: int, records: Array
) -> None:
    """The records of rows of one slot, by their numbers."""
    for i in range(rows.size):
        row = rows[i]
        records[i, 0] = _at(wides, row, shape[1]) if row >= 0 else 0
        records[i, 1] = _at(narrows, row, shape[2]) if row >= 0 else 0
        records[i, 2] = data + i * row_bytes


# --- reading and making ----------------------------------------------------------------------------------------------


@jit
def pull(records: Array, shape: Array, encoding: int) -> int:
    """Write the value of every row to where it goes. Returns how many have none."""
    dim, missing, like = shape[0], 0, np.empty(0, np.float32)
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], dim)
        if records[i, 0] == 0:
            missing += 1
        elif encoding == NATIVE:
            _copy(_words(records[i, 2], like, dim), _words(records[i, 0], like, dim))
        else:
            _encode(records[i, 2], _words(records[i, 0], like, dim), encoding)
    return missing


@jit
def pull_missing(records: Array, ids: int, shape: Array, encoding: int, start: Array) -> None:
    """Of the ids, at this address, that have no row, write what it would start as."""
    given, numbers = carray(pointer(ids, records), len(records)), np.empty(shape[0], np.float32)
    for i in range(len(records)):
        if records[i, 0] == 0:
            begin(numbers, given[i], start)
            if encoding == NATIVE:
                _copy(_words(records[i, 2], numbers, shape[0]), numbers)
            else:
                _encode(records[i, 2], numbers, encoding)


@jit
def _encode(address: int, numbers: Array, encoding: int) -> None:
    """The numbers, as a table of this 16-bit type publishes them."""
    halves = carray(pointer(address, np.empty(0, np.uint16)), numbers.size)
    kernels.publish(halves, numbers, 0, numbers.size, encoding)


@jit
def make(
    wides: Array, narrows: Array, shape: Array, rows: Array, made: Array, ids: int, start: Array, state: Array
) -> None:
    """Begin the rows whose numbers in the batch are `made`. `state` is what the state arrays begin as: the wide ones,
    then the narrow ones."""
    given, like = carray(pointer(ids, np.empty(0, np.int64)), rows.size), np.empty(0, np.float32)
    dim, num_wide = shape[0], shape[1] // shape[0] - 1
    for i in made:
        address = _at(wides, rows[i], shape[1])
        begin(_words(address, like, dim), given[i], start)
        for which in range(num_wide):
            _words(address + (which + 1) * dim * 4, like, dim)[:] = state[which]
        narrow = _words(_at(narrows, rows[i], shape[2]), like, shape[2])
        for word in range(shape[2]):
            narrow[word] = state[num_wide + word]


@jit
def read(stretches: Array, words: int, rows: Array, offset: int, out: Array) -> None:
    """Copy words of records, wide or narrow, from `offset` on, as many as `out` has columns."""
    count = out.shape[1]
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            _fetch(_at(stretches, rows[i + AHEAD], words), words)
        if rows[i] >= 0:
            record = _words(_at(stretches, rows[i], words) + 4 * offset, out, count)
            _copy(_words(out.ctypes.data + 4 * i * count, out, count), record)


@jit
def write(stretches: Array, words: int, rows: Array, offset: int, given: Array) -> None:
    """Copy words into records, from `offset` on."""
    count = given.shape[1]
    for i in range(rows.size):
        if rows[i] >= 0:
            record = _words(_at(stretches, rows[i], words) + 4 * offset, given, count)
            _copy(record, _words(given.ctypes.data + 4 * i * count, given, count))


@jit
def step(records: Array, shape: Array, steps: Array) -> int:
    """Count one more update of every row, in the last narrow word. `steps` is filled; returns the largest."""
    most = 0
    for i in range(len(records)):
        if i + AHEAD < len(records):
            fetch(records[i + AHEAD, 1])
        if records[i, 0]:
            word = _words(records[i, 1] + (shape[2] - 1) * 4, steps, 1)
            word[0] += 1
            steps[i] = word[0]
            most = max(most, word[0])
    return most


# --- one pass per update rule -----------------------------------------------------------------------------------------
# c holds a row of coefficients for each step there is, and `which` says which of them is each row's; it is empty where
# steps do not matter. Gradients are only read: one that must be changed first is copied to `scratch`.


@_inlined
def _own(grad: Array, w: Array, decay: Any, scratch: Array) -> Any:
    """A copy of the gradient that may be changed, with decay."""
    own = _words(scratch.ctypes.data, scratch, scratch.size)
    _copy(own, grad)
    _add_scaled(own, w, decay)
    return own


@_inlined
def _of(c: Array, which: Array, i: int) -> Any:
    return _words(c.ctypes.data + 4 * c.shape[1] * (which[i] if which.size else 0), c, c.shape[1])


@jit
def assign(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            _copy(_words(records[i, 0], scratch, dim), _words(records[i, 2], scratch, dim))


@jit
def merge(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    """The operation is the fourth number of the shape."""
    dim, width, op = shape[0], shape[1], shape[3]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            _fold(_words(records[i, 0], scratch, dim), _words(records[i, 2], scratch, dim), op)


@jit
def sgd(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            address, k = records[i, 0], _of(c, which, i)
            w, given = _words(address, scratch, dim), _words(records[i, 2], scratch, dim)
            if k[1] != 0 or k[2] != 0:
                own = _own(given, w, k[1], scratch)
                if k[2] != 0:
                    _momentum(own, _words(address + dim * 4, scratch, dim), k)
                _add_scaled(w, own, -k[0])
            else:
                _add_scaled(w, given, -k[0])


@jit
def adam(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            address, k = records[i, 0], _of(c, which, i)
            w, given = _words(address, scratch, dim), _words(records[i, 2], scratch, dim)
            m, v = _words(address + dim * 4, scratch, dim), _words(address + dim * 8, scratch, dim)
            if k[1] != 0:
                _moments(_own(given, w, k[1], scratch), m, v, k)
            else:
                _moments(given, m, v, k)
            _adam_step(w, m, v, k)


@jit
def adagrad(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            address, k = records[i, 0], _of(c, which, i)
            w, given = _words(address, scratch, dim), _words(records[i, 2], scratch, dim)
            v = _words(address + dim * 4, scratch, dim)
            if k[1] != 0:
                _adagrad_step(w, _own(given, w, k[1], scratch), v, k)
            else:
                _adagrad_step(w, given, v, k)


@jit
def rowwise_adagrad(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    """One accumulator for the row, of the mean of its gradient's squares."""
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
            fetch(records[i + AHEAD, 1])
        if records[i, 0]:
            w, k = _words(records[i, 0], scratch, dim), _of(c, which, i)
            grad = _own(_words(records[i, 2], scratch, dim), w, k[1], scratch)
            total = grad[0] * grad[0]
            for j in range(1, dim):
                total += grad[j] * grad[j]
            seen = _words(records[i, 1], scratch, 1)
            seen[0] += divide(total, scratch.dtype.type(dim))
            _add_scaled(w, grad, -(k[0] / (math.sqrt(seen[0]) + k[2])))


@jit
def ftrl(records: Array, shape: Array, c: Array, which: Array, scratch: Array) -> None:
    dim, width = shape[0], shape[1]
    for i in range(len(records)):
        if i + AHEAD < len(records):
            _fetch(records[i + AHEAD, 0], width)
        if records[i, 0]:
            address = records[i, 0]
            z, n = _words(address + dim * 4, scratch, dim), _words(address + dim * 8, scratch, dim)
            w, given = _words(address, scratch, dim), _words(records[i, 2], scratch, dim)
            _ftrl_step(w, given, z, n, _of(c, which, i))


RULES: dict[str, Any] = {
    each.__name__: each for each in (assign, merge, sgd, adam, adagrad, rowwise_adagrad, ftrl)
}
"""By the name of the updater's kernel."""
