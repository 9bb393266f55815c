"""The hot loops of the filters on numbers: adding, moving and rounding them. `selecting` has those that choose rows,
`hashing` those on ids.

All of it is deterministic: a random number is a hash of a seed and a position, sums run in fixed lanes, and nothing
depends on how wide the machine's vectors are. Lengths are the caller's to check: a kernel that reads what came off the
wire says in its contract what it checks itself.

Imported when the first chain runs, because it costs numba's import.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windlass.store.kernels import jit
from windlass.types import Array

LANES = 32


# --- numbers and their residual ---------------------------------------------------------------------------------------


@jit
def has_special(bits: Array, exponent: Any) -> bool:
    """Whether a float among these, given as its bits, is infinite or NaN."""
    bad = False
    for i in range(bits.size):
        bad |= (bits[i] & exponent) == exponent
    return bad


@jit
def accumulate(work: Array, numbers: Array, largest: Any) -> None:
    """work += numbers, held to the largest finite number."""
    for i in range(work.size):
        work[i] = min(max(work[i] + numbers[i], -largest), largest)


@jit
def gather_and_add(work: Array, numbers: Array, rows: Array, positions: Array, largest: Any) -> None:
    """work[i] = rows[positions[i]] + numbers[i], held to the largest finite number."""
    width = rows.shape[1]
    for i in range(positions.size):
        row = rows[positions[i]]
        for j in range(width):
            work[i * width + j] = min(max(row[j] + numbers[i * width + j], -largest), largest)


@jit
def scatter_rows(rows: Array, positions: Array, numbers: Array) -> None:
    """rows[positions[i]] = row i of numbers."""
    width = rows.shape[1]
    for i in range(positions.size):
        row = rows[positions[i]]
        for j in range(width):
            row[j] = numbers[i * width + j]


@jit
def gather(out: Array, values: Array, positions: Array, width: int) -> None:
    if width == 1:
        for i in range(positions.size):
            out[i] = values[positions[i]]
        return
    for i in range(positions.size):
        start = positions[i] * width
        for j in range(width):
            out[i * width + j] = values[start + j]


@jit
def scatter(out: Array, values: Array, positions: Array, width: int) -> None:
    if width == 1:
        for i in range(positions.size):
            out[positions[i]] = values[i]
        return
    for i in range(positions.size):
        start = positions[i] * width
        for j in range(width):
            out[start + j] = values[i * width + j]


@jit
def blank(out: Array, positions: Array, width: int) -> None:
    if width == 1:
        for i in range(positions.size):
            out[positions[i]] = 0
        return
    for i in range(positions.size):
        start = positions[i] * width
        for j in range(width):
            out[start + j] = 0


@jit
def hold_finite(halves: Array, infinity: Any) -> None:
    """Infinities of a 16-bit float become its largest number."""
    for i in range(halves.size):
        halves[i] -= np.uint16((halves[i] & np.uint16(0x7FFF)) == infinity)


# --- chance -----------------------------------------------------------------------------------------------------------


@jit
def mix(number: Any) -> Any:
    """splitmix64: every bit of the result depends on every bit of the number."""
    z = np.uint64(number)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def chance(seed: Any, position: Any) -> Any:
    """32 random bits."""
    return mix(np.uint64(seed) + np.uint64(position + 1) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)


# --- int8 -------------------------------------------------------------------------------------------------------------


@jit
def _peak_bits(bits: Array) -> Any:
    """The largest magnitude among floats, as its bits, which are ordered alike: integers have a maximum that
    vectorises."""
    peak = np.uint32(0)
    for i in range(bits.size):
        peak = max(peak, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return peak


@jit
def _round_nearest(codes: Array, numbers: Array, inverse: Any) -> None:
    for i in range(codes.size):
        codes[i] = np.int8(min(max(np.rint(numbers[i] * inverse), -127), 127))


@jit
def _make_noise(noise: Array, seed: Any) -> None:
    """Two random 16-bit numbers each. 32-bit arithmetic, so that a vector holds eight; MurmurHash3's finaliser."""
    start = np.uint32(seed)
    for i in range(noise.size):
        h = np.uint32(np.uint32(i) * np.uint32(0x9E3779B1) + start)
        h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        noise[i] = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))


@jit
def _round_by_chance(codes: Array, numbers: Array, inverse: Any, noise: Array) -> None:
    """Up with a probability equal to the fraction, to 16 bits. Shifted above 0, where cutting off is rounding down."""
    for i in range(codes.size):
        lot = np.float32(np.int32(noise[i])) * np.float32(2.0**-16)
        shifted = np.float32(numbers[i] * inverse) + lot + np.float32(128)
        codes[i] = np.int8(min(max(np.int32(shifted), np.int32(1)), np.int32(255)) - 128)


@jit
def _keep_loss(numbers: Array, codes: Array, scale: Any) -> None:
    for i in range(numbers.size):
        numbers[i] -= codes[i] * scale


TINY = 1e-30


@jit
def encode_int8(codes: Array, scales: Array, numbers: Array, bits: Array, job: Array) -> None:
    """Finite numbers, and the same as their bits, as codes from -127 to 127 with a scale for each block. `job` says the
    block's length (even), whether chance rounds, whether what is lost stays in `numbers`, and the seed. A block whose
    numbers are all below TINY becomes zeros: its scale's inverse would not be finite."""
    block, by_chance, keep, seed = job[0], job[1] != 0, job[2] != 0, job[3]
    noise = np.empty(block // 2, np.uint32)
    halves = noise.view(np.uint16)
    peak_bits = np.zeros(1, np.uint32)
    peak = peak_bits.view(np.float32)
    for b in range(scales.size):
        part, out = numbers[b * block : (b + 1) * block], codes[b * block : (b + 1) * block]
        peak_bits[0] = _peak_bits(bits[b * block : (b + 1) * block])
        scale = np.float32(peak[0] / 127)
        if peak[0] < TINY:
            scale = np.float32(0)
            out[:] = 0
        elif by_chance:
            _make_noise(noise, chance(seed, b))
            _round_by_chance(out, part, np.float32(np.float32(1) / scale), halves)
        else:
            _round_nearest(out, part, np.float32(np.float32(1) / scale))
        scales[b] = scale
        if keep:
            _keep_loss(part, out, scale)


@jit
def _times(out: Array, codes: Array, scale: Any) -> None:
    for i in range(out.size):
        out[i] = codes[i] * scale


@jit
def decode_int8(out: Array, codes: Array, scales: Array, block: int) -> None:
    """codes * scale. Needs codes as many as out, and a scale for each block."""
    for b in range(scales.size):
        _times(out[b * block : (b + 1) * block], codes[b * block : (b + 1) * block], scales[b])


# --- one bit ----------------------------------------------------------------------------------------------------------


@jit
def _mean_magnitude(numbers: Array, lanes: Array) -> Any:
    """Summed in LANES lanes, whatever the machine's vectors are, so that every machine sends the same."""
    lanes[:] = 0
    whole = numbers.size // LANES * LANES
    for i in range(0, whole, LANES):
        part = numbers[i : i + LANES]
        for j in range(LANES):
            lanes[j] += abs(part[j])
    total = 0.0
    for j in range(LANES):
        total += np.float64(lanes[j])
    for i in range(whole, numbers.size):
        total += np.float64(abs(numbers[i]))
    return np.float32(total / numbers.size)


@jit
def _signs(flags: Array, numbers: Array) -> None:
    for i in range(numbers.size):
        flags[i] = np.uint8(numbers[i] < 0)


@jit
def _lose_sign(numbers: Array, flags: Array, scale: Any) -> None:
    for i in range(numbers.size):
        numbers[i] -= -scale if flags[i] else scale


@jit
def encode_signs(bits: Array, scales: Array, numbers: Array, block: int, keep: bool) -> None:
    """One bit for each finite number, the first in a byte's lowest bit, set where it is negative; a scale for each
    block, the mean magnitude. `block` is a multiple of 8. With `keep`, what is lost stays in `numbers`."""
    flags, lanes = np.zeros(block, np.uint8), np.zeros(LANES, numbers.dtype)
    words = flags.view(np.uint64)
    for b in range(scales.size):
        part = numbers[b * block : (b + 1) * block]
        scale = _mean_magnitude(part, lanes)
        scales[b] = scale
        if part.size < block:
            flags[:] = 0
        _signs(flags, part)
        out = bits[b * block // 8 : (b + 1) * block // 8]
        for i in range(out.size):
            # Eight bytes of 0 or 1 become eight bits: the product brings byte j's flag to bit 56 + j.
            out[i] = np.uint8((words[i] * np.uint64(0x0102040810204080)) >> np.uint64(56))
        if keep:
            _lose_sign(part, flags, scale)


@jit
def _spread(out: Array, flags: Array, scale: Any) -> None:
    for i in range(out.size):
        out[i] = -scale if flags[i] else scale


@jit
def decode_signs(out: Array, bits: Array, scales: Array, block: int) -> None:
    """Needs a bit for each of out, and a scale for each block."""
    flags = np.empty(block, np.uint8)
    words = flags.view(np.uint64)
    for b in range(scales.size):
        part = out[b * block : (b + 1) * block]
        codes = bits[b * block // 8 : (b * block + part.size + 7) // 8]
        for i in range(codes.size):
            # Byte j of the word gets bit j: not 0 where it is set.
            words[i] = (np.uint64(codes[i]) * np.uint64(0x0101010101010101)) & np.uint64(0x8040201008040201)
        _spread(part, flags, scales[b])
