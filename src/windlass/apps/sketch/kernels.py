"""The hot loops of the sketches and of the shortest paths."""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401, whole before its parts: another thread may be importing it
import numpy as np
from numba.np.numpy_support import carray

from windlass.store.kernels import _pointer as pointer
from windlass.store.kernels import jit
from windlass.store.table_kernels import mix
from windlass.types import Array

BLOCK = 2048
_HALF, _LOW, _ONE = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(1)


@jit
def _places(given: Array, first: int, hashes: Array, row: int, shift: Any, places: Array) -> None:
    """Where the ids of a block are in this row. Pair-multiply-shift: ((a + high)(b + low) + c) of 64 bits, of which the
    upper ones count, is pairwise independent for up to 32 of them (Thorup, High Speed Hashing for Integers and
    Strings), which is all that CountMin's bound asks for, and takes one multiplication."""
    a, b, c = hashes[row, 0], hashes[row, 1], hashes[row, 2]
    for i in range(places.size):
        number = np.uint64(given[first + i])
        places[i] = np.int64(((a + (number >> _HALF)) * (b + (number & _LOW)) + c) >> shift)


# A block of ids goes through one row of counts after the other: where they are is computed without a look at memory,
# and only one row has to be in the fastest cache.


@jit
def insert(counts: Array, hashes: Array, shift: int, ids: int, num_ids: int, times: Array) -> None:
    """Count the ids at this address, each as often as `times` says; where it is empty, once."""
    given, room, by = carray(pointer(ids, np.empty(0, np.int64)), num_ids), np.empty(BLOCK, np.int64), np.uint64(shift)
    for first in range(0, num_ids, BLOCK):
        places = room[: min(BLOCK, num_ids - first)]
        for row in range(counts.shape[0]):
            _places(given, first, hashes, row, by, places)
            line = counts[row]
            if times.size == 0:
                for i in range(places.size):
                    line[places[i]] += 1
            else:
                for i in range(places.size):
                    line[places[i]] += times[first + i]


@jit
def estimate(counts: Array, hashes: Array, shift: int, ids: int, out: Array) -> None:
    """The least of each id's counts."""
    given, room, by = carray(pointer(ids, np.empty(0, np.int64)), out.size), np.empty(BLOCK, np.int64), np.uint64(shift)
    for first in range(0, out.size, BLOCK):
        places = room[: min(BLOCK, out.size - first)]
        for row in range(counts.shape[0]):
            _places(given, first, hashes, row, by, places)
            line = counts[row]
            for i in range(places.size):
                found = line[places[i]]
                if row == 0 or found < out[first + i]:
                    out[first + i] = found


@jit
def observe(registers: Array, precision: int, seed: Any, ids: int, num_ids: int) -> None:
    """The first bits of an id's hash name a register; it keeps the highest number of the lowest bit that is set, from
    1, in the rest. Almost always that is no more than it has, which one mask shows."""
    given = carray(pointer(ids, np.empty(0, np.int64)), num_ids)
    shift = np.uint64(64 - precision)
    last = _ONE << shift
    for i in range(num_ids):
        hashed = mix(np.uint64(given[i]) ^ seed)
        register = np.int64(hashed >> shift)
        rest, has = hashed | last, np.uint64(registers[register])
        if rest & ((_ONE << has) - _ONE) == 0:
            has += _ONE
            while rest & (_ONE << (has - _ONE)) == 0:
                has += _ONE
            registers[register] = has


@jit
def relax(distances: Array, sources: Array, targets: Array, lengths: Array) -> bool:
    """One pass over the edges: no target is farther than any of its sources and the edge between. In place, so that
    later edges see what earlier ones have found. Returns whether anything came nearer."""
    is_nearer = False
    for i in range(sources.size):
        through = distances[sources[i]] + lengths[i]
        if through < distances[targets[i]]:
            distances[targets[i]] = through
            is_nearer = True
    return is_nearer
