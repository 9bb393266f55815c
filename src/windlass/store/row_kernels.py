"""The hot loops over the rows of a table: read, make, and update rows by their number.

A row is a *wide* record, its value and then its state arrays, in float32; and a *narrow* one, a few words that a row
has only one of (an accumulator, its steps). Rows are kept in stretches of STRETCH; `wides` and `narrows` are the
addresses of the stretches. `shape` is how long a value is, a wide record, and a narrow one, in words. The arithmetic is
that of `kernels`, on one row at a time. A row of -1 is none, and passed over.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from windlass.store import kernels
from windlass.store.initial_kernels import begin
from windlass.store.kernels import NATIVE, divide, jit, pointer
from windlass.store.table_kernels import fetch
from windlass.types import Array

SHIFT = 8
STRETCH = 1 << SHIFT
AHEAD = 8
_MASK = STRETCH - 1
_LINE = 64

_add_scaled, _copy, _fold = kernels._add_scaled, kernels._copy, kernels._fold
_momentum, _moments = kernels._momentum, kernels._moments
_adam_step, _adagrad_step, _ftrl_step = kernels._adam_step, kernels._adagrad_step, kernels._ftrl_step


@jit
def _at(stretches: Array, row: int, words: int) -> Any:
    return stretches[row >> SHIFT] + (row & _MASK) * words * 4


@jit
def _fetch(stretches: Array, rows: Array, i: int, words: int, wanted: int) -> None:
    """Ask for the first `wanted` words of the i-th row, if there is one."""
    if i < rows.size and rows[i] >= 0:
        address = _at(stretches, rows[i], words)
        for offset in range(0, wanted * 4, _LINE):
            fetch(address + offset)


@jit
def _part(wides: Array, shape: Array, row: int, which: int, like: Array) -> Array:
    """The value of a row (0), or one of its state arrays (1, 2, ...)."""
    return carray(pointer(_at(wides, row, shape[1]) + which * shape[0] * 4, like), shape[0])


# --- reading and making ----------------------------------------------------------------------------------------------


@jit
def _write(address: int, numbers: Array, encoding: int) -> None:
    """The numbers, as a table of this encoding publishes them."""
    if encoding == NATIVE:
        _copy(carray(pointer(address, numbers), numbers.size), numbers)
    else:
        halves = carray(pointer(address, np.empty(0, np.uint16)), numbers.size)
        kernels.publish(halves, numbers, 0, numbers.size, encoding)


@jit
def pull(wides: Array, shape: Array, rows: Array, ids: int, out: int, encoding: int, start: Array) -> None:
    """Write the value of every row to `out`, one after the other; for an id without a row, what it would start as."""
    dim = shape[0]
    numbers, nbytes = np.empty(dim, np.float32), dim * (4 if encoding == NATIVE else 2)
    given = carray(pointer(ids, np.empty(0, np.int64)), rows.size)
    for i in range(rows.size):
        _fetch(wides, rows, i + AHEAD, shape[1], dim)
        if rows[i] >= 0:
            _write(out + i * nbytes, _part(wides, shape, rows[i], 0, numbers), encoding)
        else:
            begin(numbers, given[i], start)
            _write(out + i * nbytes, numbers, encoding)


@jit
def make(
    wides: Array, narrows: Array, shape: Array, rows: Array, made: Array, ids: int, start: Array, state: Array
) -> None:
    """Begin the rows whose numbers in the batch are `made`. `state` is what the state arrays begin as: the wide ones,
    then the narrow ones."""
    given, numbers = carray(pointer(ids, np.empty(0, np.int64)), rows.size), np.empty(0, np.float32)
    num_wide = shape[1] // max(1, shape[0]) - 1
    for i in made:
        begin(_part(wides, shape, rows[i], 0, numbers), given[i], start)
        for which in range(num_wide):
            _part(wides, shape, rows[i], which + 1, numbers)[:] = state[which]
        narrow = carray(pointer(_at(narrows, rows[i], shape[2]), numbers), shape[2])
        for word in range(shape[2]):
            narrow[word] = state[num_wide + word]


@jit
def read(stretches: Array, words: int, rows: Array, offset: int, out: Array) -> None:
    """Copy words of records, wide or narrow, from `offset` on, as many as `out` has columns."""
    for i in range(rows.size):
        _fetch(stretches, rows, i + AHEAD, words, words)
        if rows[i] >= 0:
            record = carray(pointer(_at(stretches, rows[i], words) + 4 * offset, out), out.shape[1])
            _copy(carray(pointer(out.ctypes.data + 4 * i * out.shape[1], out), out.shape[1]), record)


@jit
def write(stretches: Array, words: int, rows: Array, offset: int, given: Array) -> None:
    """Copy words into records, from `offset` on."""
    for i in range(rows.size):
        if rows[i] >= 0:
            record = carray(pointer(_at(stretches, rows[i], words) + 4 * offset, given), given.shape[1])
            _copy(record, carray(pointer(given.ctypes.data + 4 * i * given.shape[1], given), given.shape[1]))


@jit
def step(narrows: Array, shape: Array, rows: Array, steps: Array) -> int:
    """Count one more update of every row, in the last narrow word. `steps` is filled; returns the largest."""
    most = 0
    for i in range(rows.size):
        _fetch(narrows, rows, i + AHEAD, shape[2], shape[2])
        if rows[i] >= 0:
            word = carray(pointer(_at(narrows, rows[i], shape[2]) + (shape[2] - 1) * 4, steps), 1)
            word[0] += 1
            steps[i] = word[0]
            most = max(most, steps[i])
    return most


# --- one pass per update rule -----------------------------------------------------------------------------------------
# c holds a row of coefficients for each step there is, and `which` says which of them is each row's; it is empty where
# steps do not matter. Inside a loop every array is made of an address: to take a part of an array that has an owner
# counts the owner's references, which costs as much as the arithmetic on a short row. `scratch` is as long as a value.


@jit
def _next(wides: Array, shape: Array, rows: Array, i: int) -> bool:
    """Look ahead, and tell whether there is an i-th row."""
    _fetch(wides, rows, i + AHEAD, shape[1], shape[1])
    return bool(rows[i] >= 0)


@jit
def _given(grads: int, i: int, scratch: Array) -> Array:
    """The gradient of the i-th row, which is only read."""
    return carray(pointer(grads + i * scratch.size * 4, scratch), scratch.size)


@jit
def _own(grad: Array, w: Array, decay: Any, scratch: Array) -> Array:
    """A copy of the gradient that may be changed, with decay."""
    own = carray(pointer(scratch.ctypes.data, scratch), scratch.size)
    _copy(own, grad)
    _add_scaled(own, w, decay)
    return own


@jit
def _of(c: Array, which: Array, i: int) -> Array:
    return carray(pointer(c.ctypes.data + 4 * c.shape[1] * (which[i] if which.size else 0), c), c.shape[1])


@jit
def assign(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            _copy(_part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch))


@jit
def merge(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    """The operation is the fourth number of the shape."""
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            _fold(_part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), shape[3])


@jit
def sgd(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            w, grad, k = _part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), _of(c, which, i)
            if k[1] != 0 or k[2] != 0:
                grad = _own(grad, w, k[1], scratch)
            if k[2] != 0:
                _momentum(grad, _part(wides, shape, rows[i], 1, scratch), k)
            _add_scaled(w, grad, -k[0])


@jit
def adam(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            w, grad, k = _part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), _of(c, which, i)
            m, v = _part(wides, shape, rows[i], 1, scratch), _part(wides, shape, rows[i], 2, scratch)
            if k[1] != 0:
                grad = _own(grad, w, k[1], scratch)
            _moments(grad, m, v, k)
            _adam_step(w, m, v, k)


@jit
def adagrad(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            w, grad, k = _part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), _of(c, which, i)
            if k[1] != 0:
                grad = _own(grad, w, k[1], scratch)
            _adagrad_step(w, grad, _part(wides, shape, rows[i], 1, scratch), k)


@jit
def rowwise_adagrad(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    """One accumulator for the row, of the mean of its gradient's squares."""
    for i in range(rows.size):
        _fetch(narrows, rows, i + AHEAD, shape[2], 1)
        if _next(wides, shape, rows, i):
            w, grad, k = _part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), _of(c, which, i)
            if k[1] != 0:
                grad = _own(grad, w, k[1], scratch)
            total = grad[0] * grad[0]
            for j in range(1, grad.size):
                total += grad[j] * grad[j]
            seen = carray(pointer(_at(narrows, rows[i], shape[2]), scratch), 1)
            seen[0] += divide(total, scratch.dtype.type(grad.size))
            _add_scaled(w, grad, -(k[0] / (math.sqrt(seen[0]) + k[2])))


@jit
def ftrl(
    wides: Array, narrows: Array, shape: Array, rows: Array, grads: int, c: Array, which: Array, scratch: Array
) -> None:
    for i in range(rows.size):
        if _next(wides, shape, rows, i):
            w, grad, k = _part(wides, shape, rows[i], 0, scratch), _given(grads, i, scratch), _of(c, which, i)
            z, n = _part(wides, shape, rows[i], 1, scratch), _part(wides, shape, rows[i], 2, scratch)
            _ftrl_step(w, grad, z, n, k)


RULES: dict[str, Any] = {
    each.__name__: each for each in (assign, merge, sgd, adam, adagrad, rowwise_adagrad, ftrl)
}
"""By the name of the updater's kernel."""
