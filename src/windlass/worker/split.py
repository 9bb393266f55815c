"""Cutting a value by placement: which pieces of a range go to, or come from, which shard."""

from __future__ import annotations

import operator

from windlass._wire.messages import Piece
from windlass.errors import UsageError
from windlass.worker.ops import KeyInfo

Pieces = dict[int, tuple[Piece, ...]]
"""By shard."""


def check_range(key: KeyInfo, range: tuple[int, int] | None) -> tuple[int, int]:
    """The range as flat element positions; the whole value for None."""
    if range is None:
        return 0, key.size
    try:
        lo, hi = (operator.index(end) for end in range)
    except (TypeError, ValueError):
        raise UsageError(f"'{key.spec.name}': range expected (lo, hi), two whole numbers, got {range!r:.60}") from None
    if not 0 <= lo <= hi <= key.spec.size:
        raise UsageError(f"'{key.spec.name}': range expected within [0, {key.spec.size}), got ({lo}, {hi})")
    return lo, hi


def split(key: KeyInfo, lo: int, hi: int) -> Pieces:
    """The pieces of elements lo to hi, by shard. Every shard of the key is there, with none if it holds none."""
    if lo == 0 and hi == key.size:
        return key.whole
    pieces: dict[int, list[Piece]] = {shard: [] for shard in key.whole}
    if hi > lo:
        size = key.slot_size
        for slot in range(lo // size, (hi - 1) // size + 1):
            first = slot * size
            pieces[key.shard_of(slot)].append((slot, max(lo, first) - first, min(hi, first + size) - first))
    return {shard: tuple(found) for shard, found in pieces.items()}


def position(key: KeyInfo, piece: Piece, lo: int) -> tuple[int, int]:
    """Where a piece lies, in bytes, in an array that starts at element lo of the value."""
    slot, begin, end = piece
    start = slot * key.slot_size - lo
    return (start + begin) * key.itemsize, (start + end) * key.itemsize
