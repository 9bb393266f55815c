"""The hot loops that choose rows, and that say in few bytes which they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from windlass.filters.kernels import chance
from windlass.store.kernels import jit
from windlass.types import Array

F = TypeVar("F", bound=Callable[..., Any])


def _exact_jit(function: F) -> F:
    """For comparisons of numbers that are known to be finite: without NaNs to mind, a maximum vectorises, and is the
    same whichever way it is taken."""
    return cast(F, numba.njit(cache=True, nogil=True, fastmath={"nnan", "nsz"})(function))


# --- by lot -----------------------------------------------------------------------------------------------------------


@jit
def draw_kept(out: Array, size: int, skip: Any, seed: Any) -> Any:
    """Positions among so many whose 32 random bits are not below `skip`; how many, or -1 if `out` has not room for one
    more than that."""
    count: Any = 0
    for i in range(size):
        if count >= out.size:
            return -1
        out[count] = i
        count += np.int64(chance(seed, i) >= np.uint64(skip))
    return count


@jit
def draw_strata(out: Array, size: int, seed: Any) -> None:
    """One position of each of out.size stretches, as equal as can be, of so many positions. None is empty."""
    count = out.size
    for i in range(count):
        lo = i * size // count
        length = (i + 1) * size // count - lo
        out[i] = lo + np.int64((chance(seed, i) * np.uint64(length)) >> np.uint64(32))


# --- by size ----------------------------------------------------------------------------------------------------------


@_exact_jit
def _peak(numbers: Array) -> Any:
    peak = abs(numbers[0])
    for i in range(1, numbers.size):
        peak = max(peak, abs(numbers[i]))
    return peak


@jit
def count_at_least(numbers: Array, floor: Any) -> Any:
    """How many have a magnitude of at least `floor`. Counting first is cheaper than memory for all of them."""
    count: Any = 0
    for i in range(numbers.size):
        count += abs(numbers[i]) >= floor
    return count


@jit
def at_least(out: Array, numbers: Array, floor: Any) -> Any:
    """Positions with a magnitude of at least `floor`; how many. `out` has room for one more than that."""
    count: Any = 0
    for i in range(numbers.size):
        out[count] = i
        count += np.int64(abs(numbers[i]) >= floor)
    return count


@jit
def rows_at_least(out: Array, numbers: Array, width: int, floor: Any) -> Any:
    """Rows with a magnitude of at least `floor`; how many. `out` has room for all and one."""
    count: Any = 0
    for i in range(numbers.size // width):
        out[count] = i
        count += np.int64(_peak(numbers[i * width : (i + 1) * width]) >= floor)
    return count


@jit
def count_beyond(numbers: Array, slack: Array) -> Any:
    count: Any = 0
    for i in range(numbers.size):
        count += abs(numbers[i]) > slack[i]
    return count


@jit
def beyond(out: Array, numbers: Array, slack: Array) -> Any:
    """Positions with a magnitude above its slack; how many. `out` has room for one more than that."""
    count: Any = 0
    for i in range(numbers.size):
        out[count] = i
        count += np.int64(abs(numbers[i]) > slack[i])
    return count


@jit
def rows_beyond(out: Array, numbers: Array, slack: Array, width: int) -> Any:
    """Rows with a magnitude above its slack; how many. `out` has room for all and one."""
    count: Any = 0
    for i in range(numbers.size // width):
        is_beyond = False
        for j in range(i * width, (i + 1) * width):
            is_beyond |= abs(numbers[j]) > slack[j]
        out[count] = i
        count += np.int64(is_beyond)
    return count


@jit
def row_squares(out: Array, numbers: Array, width: int) -> None:
    """The squared length of every row."""
    for i in range(out.size):
        total = np.float32(0)
        for j in range(i * width, (i + 1) * width):
            total += np.float32(numbers[j]) * np.float32(numbers[j])
        out[i] = total


BUCKETS = 4096
_MAGNITUDE = np.uint32(0x7FFFFFFF)


@jit
def reach(bits: Array, wanted: int) -> tuple[int, int, int]:
    """For floats as their bits, whose magnitudes are ordered as those are: the lowest bucket (of magnitude >> 19) that
    the `wanted` largest reach into, how many lie above it, and how many in it."""
    counts = np.zeros((4, BUCKETS), np.int64)  # four, because two neighbours that count in one place wait for another
    for i in range(bits.size // 4):
        for j in range(4):
            counts[j, (bits[4 * i + j] & _MAGNITUDE) >> 19] += 1
    for i in range(bits.size // 4 * 4, bits.size):
        counts[0, (bits[i] & _MAGNITUDE) >> 19] += 1
    above = here = 0
    for bucket in range(BUCKETS - 1, -1, -1):
        above += here
        here = counts[0, bucket] + counts[1, bucket] + counts[2, bucket] + counts[3, bucket]
        if above + here >= wanted:
            return bucket, above, here
    return 0, above, here


@jit
def not_below(out: Array, bits: Array, floor: Any) -> Any:
    """Positions whose magnitude's bits are at least `floor`; how many. `out` has room for one more than that."""
    count: Any = 0
    for i in range(bits.size):
        out[count] = i
        count += np.int64(np.uint32(bits[i] & _MAGNITUDE) >= floor)
    return count


# --- a selection as bytes ---------------------------------------------------------------------------------------------


@jit
def encode_gaps(out: Array, positions: Array) -> Any:
    """Ascending positions as the numbers passed over between them, seven bits a byte, lowest first, the eighth set
    where more follow; how many bytes. `out` has room for ten a position."""
    count = 0
    last: Any = -1
    for i in range(positions.size):
        gap = np.uint64(positions[i] - last - 1)
        last = positions[i]
        while gap >= 128:
            out[count] = np.uint8((gap & np.uint64(127)) | np.uint64(128))
            gap >>= np.uint64(7)
            count += 1
        out[count] = np.uint8(gap)
        count += 1
    return count


@jit
def decode_gaps(out: Array, data: Array, size: int) -> bool:
    """The positions, if the data is exactly out.size of them, and all are below `size`; False if it is not. Checks
    everything itself."""
    at = 0
    last: Any = np.int64(-1)
    for i in range(out.size):
        gap, shift = np.int64(0), 0
        more: Any = True
        while more:
            if at >= data.size or shift > 56:
                return False
            byte = np.int64(data[at])
            at += 1
            gap |= (byte & 127) << shift
            shift += 7
            more = byte >= 128
        if gap >= size - last - 1:
            return False
        last += gap + 1
        out[i] = last
    return at == data.size


@jit
def decode_bits(out: Array, data: Array, size: int) -> bool:
    """The positions of the set bits, if there are out.size of them and all are below `size`; False if not. Needs at
    least size bits."""
    count = 0
    for i in range(data.size):
        byte, at = np.int64(data[i]), 8 * i
        while byte:
            if byte & 1:
                if count >= out.size or at >= size:
                    return False
                out[count] = at
                count += 1
            byte >>= 1
            at += 1
    return count == out.size
