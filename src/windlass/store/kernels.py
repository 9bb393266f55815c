"""The hot loops of the dense store: reduce any number of inputs and update the value, in one pass over memory.

A *job* is an int64 array: a header (the constants below), then the address of every input. Inputs are addresses, not
arrays, so that one compilation serves any number of them. A slot is walked in *blocks* small enough to stay in cache:
the inputs' parts of a block are reduced, in the order given, into a scratch block, the update reads it from there, and
each byte of an input, of the value and of the state crosses the memory bus once.

`before` and `after` are the value as it was and as it will be: the same array, or two where readers still hold the old
one. Arithmetic is in the element type itself, or in float32 for 16-bit floats, whose 16-bit pattern is `published`.
No fastmath and no threads: replicas agree bit for bit, and a fork server may run these before it forks.

Everything lives in this one file because numba's cache looks at no other file's date. Importing it costs numba's own
import, so `dense` does it when the first slot is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from windlass.store import reduce
from windlass.store.reduce import Op
from windlass.types import STORAGE, Array

LO, HI, COUNT, OP, DIVISOR, ENCODING, READ, ITEMSIZE, INPUTS = range(9)
"""Where a job keeps what: the elements it covers, the number of inputs, `Op`, what mean divides by, how the value is
encoded, how inputs are, and the bytes of an input's element; addresses start at INPUTS. An address is where the input's
element 0 is, or would be if it had one: inputs that begin elsewhere need no special case."""

NATIVE, BOOL, FLOAT16, BFLOAT16 = range(4)
ENCODINGS = {"bool": BOOL, "float16": FLOAT16, "bfloat16": BFLOAT16}

BLOCK = 2048
_SUM, _MEAN, _MIN, _MAX, _ANY, _ALL = (int(op) for op in (Op.SUM, Op.MEAN, Op.MIN, Op.MAX, Op.ANY, Op.ALL))

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile when first called with new types. numpy's error model: x / 0 is inf, and loops that divide vectorise."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


divide = cast(Callable[..., Any], numba.njit(error_model="numpy")(reduce.divide))


# --- reading memory by address and floats by their bits ---------------------------------------------------------------


def _builtin(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_builtin
def _pointer(_: Any, address: Any, like: Any) -> Any:
    """The address as a pointer to elements of `like`'s type."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    pointer: Any = types.CPointer
    return pointer(like.dtype)(address, like), build


@_builtin
def _float_of(_: Any, bits: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), build


@_builtin
def _bits_of(_: Any, number: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.uint32))

    return types.uint32(types.float32), build


def new_job(room: int, *, size: int, op: int, dtype: str) -> Array:
    """A job over the whole of a slot, with room for that many inputs."""
    job = np.zeros(INPUTS + room, np.int64)
    job[HI], job[OP], job[DIVISOR] = size, op, 1
    job[ENCODING] = job[READ] = ENCODINGS.get(dtype, NATIVE)
    job[ITEMSIZE] = STORAGE[dtype].itemsize
    return job


@jit
def put(job: Array, index: int, data: Array, lo: int) -> bool:
    """Make `data`, whose first element is number `lo`, input number `index`. False: its elements are not adjacent or
    not aligned, and must be copied."""
    job[INPUTS + index] = data.ctypes.data - lo * job[ITEMSIZE]
    return bool(data.flags.c_contiguous and data.ctypes.data % job[ITEMSIZE] == 0)


@jit
def _half_to_float(half: Any) -> Any:
    magnitude = half & 0x7FFF
    # A half's exponent and mantissa, read as a float's, are the number times 2**-112; subnormals included.
    scaled = _bits_of(_float_of(np.uint32(magnitude << 13)) * _float_of(np.uint32(0x77800000)))
    special = 0x7F800000 if magnitude >= 0x7C00 else 0
    return _float_of(np.uint32(scaled | special | (half & 0x8000) << 16))


@jit
def _float_to_half(number: Any) -> Any:
    """Rounded to the nearest, ties to even. Every case is computed and one selected: branches do not vectorise."""
    bits = _bits_of(number)
    magnitude = np.uint32(bits & 0x7FFFFFFF)
    normal = np.uint32(magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13
    # Adding 0.5 makes the float unit itself round at a subnormal half's last bit.
    subnormal = np.uint32(_bits_of(_float_of(magnitude) + _float_of(np.uint32(0x3F000000))) - 0x3F000000)
    special = np.uint32(0x7E00) if magnitude > 0x7F800000 else np.uint32(0x7C00)
    finite = subnormal if magnitude < 0x38800000 else np.uint32(normal)
    half = special if magnitude >= 0x47800000 else finite
    return np.uint16(half | np.uint32(bits >> 16 & 0x8000))


@jit
def _float_to_bfloat(number: Any) -> Any:
    """Rounded to the nearest, ties to even."""
    bits = _bits_of(number)
    rounded = np.uint32(bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    nan = (bits >> 16 & 0x8000) | 0x7FC0
    return np.uint16(nan if bits & 0x7FFFFFFF > 0x7F800000 else rounded)


@jit
def decode(out: Array, address: int, encoding: int) -> None:
    """Read out.size elements at this address."""
    if encoding == BOOL:
        flags = carray(_pointer(address, np.empty(0, np.uint8)), out.size)
        for i in range(out.size):
            out[i] = flags[i] != 0
        return
    halves = carray(_pointer(address, np.empty(0, np.uint16)), out.size)
    if encoding == FLOAT16:
        for i in range(out.size):
            out[i] = _half_to_float(np.int64(halves[i]))
    else:
        for i in range(out.size):
            out[i] = _float_of(np.uint32(np.int64(halves[i]) << 16))


@jit
def publish(published: Array, after: Array, start: int, stop: int, encoding: int) -> None:
    """Write elements start to stop of a 16-bit float's master as their bits; nothing for other types."""
    numbers = after[start:stop]
    if encoding == FLOAT16:
        halves = published[start:stop]
        for i in range(halves.size):
            halves[i] = _float_to_half(np.float32(numbers[i]))
    elif encoding == BFLOAT16:
        halves = published[start:stop]
        for i in range(halves.size):
            halves[i] = _float_to_bfloat(np.float32(numbers[i]))


# --- reducing one block -----------------------------------------------------------------------------------------------
# Loops write an array in place or into one that is surely another: where two names may be the same memory, the compiler
# takes the slow road at run time. They stand in functions of their own, with few arrays in each, because it gives up
# proving more than a handful apart.


@jit
def _copy(out: Array, a: Array) -> None:
    for i in range(out.size):
        out[i] = a[i]


@jit
def _sum4(out: Array, a: Array, b: Array, c: Array, d: Array) -> None:
    for i in range(out.size):
        out[i] = ((a[i] + b[i]) + c[i]) + d[i]


@jit
def _add4(out: Array, a: Array, b: Array, c: Array, d: Array) -> None:
    for i in range(out.size):
        out[i] = (((out[i] + a[i]) + b[i]) + c[i]) + d[i]


@jit
def _fold(out: Array, a: Array, op: int) -> None:
    """out = out op a. Minimum and maximum hand NaN on, whichever side it is on."""
    if op in (_SUM, _MEAN):
        for i in range(out.size):
            out[i] += a[i]
    elif op == _MIN:
        for i in range(out.size):
            out[i] = np.minimum(out[i], a[i])
    elif op == _MAX:
        for i in range(out.size):
            out[i] = np.maximum(out[i], a[i])
    elif op == _ANY:
        for i in range(out.size):
            out[i] = (out[i] != 0) | (a[i] != 0)
    elif op == _ALL:
        for i in range(out.size):
            out[i] = (out[i] != 0) & (a[i] != 0)


@jit
def _input(job: Array, index: int, offset: int, like: Array) -> Array:
    return carray(_pointer(job[INPUTS + index] + offset, like), like.size)


@jit
def _reduce_native(out: Array, job: Array, offset: int) -> None:
    """Inputs that can be read as they are. Sums take four at once: it keeps more of memory's streams busy."""
    count, op = job[COUNT], job[OP]
    fours = count // 4 if op in (_SUM, _MEAN) else 0
    if fours == 0:
        _copy(out, _input(job, 0, offset, out))
    for four in range(fours):
        a, b = _input(job, 4 * four, offset, out), _input(job, 4 * four + 1, offset, out)
        c, d = _input(job, 4 * four + 2, offset, out), _input(job, 4 * four + 3, offset, out)
        if four == 0:
            _sum4(out, a, b, c, d)
        else:
            _add4(out, a, b, c, d)
    for index in range(max(1, 4 * fours), count):
        _fold(out, _input(job, index, offset, out), op)


@jit
def _reduce(out: Array, spare: Array, job: Array, start: int) -> None:
    """Reduce elements start to start + out.size of every input into `out`, in the order given."""
    op, encoding, offset = job[OP], job[READ], start * job[ITEMSIZE]
    if encoding == NATIVE:
        _reduce_native(out, job, offset)
    else:
        decode(out, job[INPUTS] + offset, encoding)
        for index in range(1, job[COUNT]):
            decode(spare[: out.size], job[INPUTS + index] + offset, encoding)
            _fold(out, spare[: out.size], op)
    if op == _MEAN and job[DIVISOR] != 1:
        divisor = out.dtype.type(job[DIVISOR])
        for i in range(out.size):
            out[i] = divide(out[i], divisor)


# --- updating one block -----------------------------------------------------------------------------------------------
# c holds what the rule's `coefficients(step)` computed, already in the element type: an integer literal would silently
# turn float32 arithmetic into float64.


@jit
def _add_scaled(out: Array, a: Array, factor: Any) -> None:
    if factor != 0:
        for i in range(out.size):
            out[i] += factor * a[i]


@jit
def _momentum(grad: Array, v: Array, c: Array) -> None:
    momentum, intake = c[2], c[3]
    for i in range(grad.size):
        v[i] = momentum * v[i] + intake * grad[i]
    if c[4] != 0:
        _add_scaled(grad, v, momentum)
    else:
        _copy(grad, v)


@jit
def _moments(grad: Array, m: Array, v: Array, c: Array) -> None:
    b1, b1_rest, b2, b2_rest = c[3], c[4], c[5], c[6]
    for i in range(grad.size):
        m[i] = b1 * m[i] + b1_rest * grad[i]
        v[i] = b2 * v[i] + b2_rest * (grad[i] * grad[i])


@jit
def _adam_step(w: Array, m: Array, v: Array, c: Array) -> None:
    rate, keep, root, eps = c[0], c[2], c[7], c[8]
    for i in range(w.size):
        w[i] = keep * w[i] - rate * (m[i] / (math.sqrt(v[i]) / root + eps))


@jit
def _adagrad_step(w: Array, grad: Array, v: Array, c: Array) -> None:
    lr, eps = c[0], c[2]
    for i in range(w.size):
        v[i] += grad[i] * grad[i]
        w[i] -= lr * (grad[i] / (math.sqrt(v[i]) + eps))


@jit
def _ftrl_step(w: Array, grad: Array, z: Array, n: Array, c: Array) -> None:
    alpha, beta, l1, l2, zero = c[0], c[1], c[2], c[3], c[4]
    for i in range(w.size):
        seen = n[i]
        n[i] += grad[i] * grad[i]
        z[i] += grad[i] - (math.sqrt(n[i]) - math.sqrt(seen)) / alpha * w[i]
    for i in range(w.size):
        shrunk = max(z[i] - l1, zero) + min(z[i] + l1, zero)
        w[i] = -shrunk / ((beta + math.sqrt(n[i])) / alpha + l2)


@jit
def _carry(before: Array, after: Array, start: int, stop: int) -> Array:
    """This block of the new value, beginning as it was."""
    if before.ctypes.data != after.ctypes.data:
        _copy(after[start:stop], before[start:stop])
    return after[start:stop]


# --- one pass per update rule -----------------------------------------------------------------------------------------


@jit
def assign(before: Array, after: Array, published: Array, job: Array, c: Array) -> None:
    spare = np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        _reduce(after[start:stop], spare, job, start)
        publish(published, after, start, stop, job[ENCODING])


@jit
def merge(before: Array, after: Array, published: Array, job: Array, c: Array) -> None:
    scratch, spare = np.empty(BLOCK, after.dtype), np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        total, w = scratch[: stop - start], _carry(before, after, start, stop)
        _reduce(total, spare, job, start)
        _fold(w, total, job[OP])
        publish(published, after, start, stop, job[ENCODING])


@jit
def sgd(before: Array, after: Array, published: Array, job: Array, c: Array, velocity: Array) -> None:
    scratch, spare = np.empty(BLOCK, after.dtype), np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        grad, w = scratch[: stop - start], _carry(before, after, start, stop)
        _reduce(grad, spare, job, start)
        _add_scaled(grad, w, c[1])
        if c[2] != 0:
            _momentum(grad, velocity[start:stop], c)
        _add_scaled(w, grad, -c[0])
        publish(published, after, start, stop, job[ENCODING])


@jit
def adam(before: Array, after: Array, published: Array, job: Array, c: Array, mean: Array, square: Array) -> None:
    scratch, spare = np.empty(BLOCK, after.dtype), np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        grad, w = scratch[: stop - start], _carry(before, after, start, stop)
        m, v = mean[start:stop], square[start:stop]
        _reduce(grad, spare, job, start)
        _add_scaled(grad, w, c[1])
        _moments(grad, m, v, c)
        _adam_step(w, m, v, c)
        publish(published, after, start, stop, job[ENCODING])


@jit
def adagrad(before: Array, after: Array, published: Array, job: Array, c: Array, square: Array) -> None:
    scratch, spare = np.empty(BLOCK, after.dtype), np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        grad, w = scratch[: stop - start], _carry(before, after, start, stop)
        _reduce(grad, spare, job, start)
        _add_scaled(grad, w, c[1])
        _adagrad_step(w, grad, square[start:stop], c)
        publish(published, after, start, stop, job[ENCODING])


@jit
def ftrl(before: Array, after: Array, published: Array, job: Array, c: Array, z: Array, n: Array) -> None:
    scratch, spare = np.empty(BLOCK, after.dtype), np.empty(BLOCK, after.dtype)
    for start in range(job[LO], job[HI], BLOCK):
        stop = min(start + BLOCK, job[HI])
        grad, w = scratch[: stop - start], _carry(before, after, start, stop)
        _reduce(grad, spare, job, start)
        _ftrl_step(w, grad, z[start:stop], n[start:stop], c)
        publish(published, after, start, stop, job[ENCODING])
