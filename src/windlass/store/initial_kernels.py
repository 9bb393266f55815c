"""How a row begins: numbers that depend on nothing but the seed, the id and the column.

A *start* is five float64s: the kind, its two numbers, and the seed's halves. Random numbers are those of SplitMix64
from a state that mixes seed and id. Everything is plain arithmetic: what the mathematical library of a machine returns
for a logarithm may differ in its last bit from another's, and servers must agree.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from windlass.store.kernels import jit
from windlass.store.table_kernels import mix
from windlass.types import Array

CONSTANT, NORMAL, UNIFORM = range(3)

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_DROP = np.uint64(11)


@jit
def _log(x: Any) -> Any:
    """The natural logarithm of a positive number, to 1e-15, by the series of the inverse hyperbolic tangent."""
    mantissa, exponent = math.frexp(x)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = mantissa * 2, exponent - 1
    s = (mantissa - 1) / (mantissa + 1)
    square, total = s * s, 0.0
    for n in range(21, 0, -2):
        total = total * square + 1.0 / n
    return exponent * 0.6931471805599453 + 2 * s * total


@jit
def normal_quantile(p: Any) -> Any:
    """Where the standard normal distribution reaches p, to 7 digits (Wichura 1988, algorithm AS 241)."""
    q = p - 0.5
    if abs(q) <= 0.425:
        r = 0.180625 - q * q
        top = ((5.9109374720e1 * r + 1.5929113202e2) * r + 5.0434271938e1) * r + 3.3871327179
        return q * top / (((6.7187563600e1 * r + 7.8757757664e1) * r + 1.7895169469e1) * r + 1.0)
    r = math.sqrt(-_log(p if q < 0 else 1.0 - p))
    if r <= 5.0:
        r -= 1.6
        top = ((1.7023821103e-1 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777
        found = top / ((1.2021132975e-1 * r + 7.3700164250e-1) * r + 1.0)
    else:
        r -= 5.0
        top = ((1.7337203997e-2 * r + 4.2868294337e-1) * r + 3.0812263860) * r + 6.6579051150
        found = top / ((1.2258202635e-2 * r + 2.4197894225e-1) * r + 1.0)
    return -found if q < 0 else found


@jit
def begin(out: Array, number: int, start: Array) -> None:
    """Fill a row with what the id `number` starts as."""
    kind, a, b = int(start[0]), start[1], start[2]
    if kind == CONSTANT:
        out[:] = np.float32(a)
        return
    seed = np.uint64(start[3]) << _HALF | np.uint64(start[4])
    state = mix(np.uint64(number) ^ mix(seed + _GAMMA))
    for column in range(out.size):
        state += _GAMMA
        uniform = (np.float64(mix(state) >> _DROP) + 0.5) * 2.0**-53
        if kind == NORMAL:
            out[column] = np.float32(a + b * normal_quantile(uniform))
        else:
            out[column] = np.float32(a + (b - a) * uniform)
