"""How many updates each element of a slot has taken, and who contributed where.

Elements that nobody contributed to take no step, so steps are per element. In practice they are equal over long
stretches: a slot keeps *spans*, one for the whole slot until somebody pushes a part of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from windlass.errors import UsageError

Span = tuple[int, int, int]
"""lo, hi, step: elements lo to hi have taken `step` updates."""


class Spans:
    """The step of every element of [0, size), as sorted spans in which neighbours differ."""

    __slots__ = ("size", "starts", "steps")

    def __init__(self, size: int) -> None:
        self.size = size
        self.starts = [0]
        self.steps = [0]

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Span]:
        return zip(self.starts, [*self.starts[1:], self.size], self.steps, strict=True)

    def cut(self, lo: int, hi: int) -> list[Span]:
        """The parts of [lo, hi) that have the same step, in order. An empty range has none."""
        if lo >= hi:
            return []
        first = bisect_right(self.starts, lo) - 1
        parts = []
        for index in range(first, len(self.starts)):
            start = self.starts[index]
            if start >= hi:
                break
            end = self.starts[index + 1] if index + 1 < len(self.starts) else self.size
            parts.append((max(lo, start), min(hi, end), self.steps[index]))
        return parts

    def advance(self, lo: int, hi: int) -> None:
        """Count one more update for every element of [lo, hi)."""
        if lo >= hi:
            return
        first, last = self._split(lo), self._split(hi)
        for index in range(first, last):
            self.steps[index] += 1
        # Inside the range neighbours still differ; only at its two ends may they have become equal.
        self._join(last)
        self._join(first)

    def _split(self, at: int) -> int:
        """Make `at` the start of a span, unless it is the end of all; the index of the span that starts there."""
        if at >= self.size:
            return len(self.starts)
        index = bisect_right(self.starts, at) - 1
        if self.starts[index] == at:
            return index
        self.starts.insert(index + 1, at)
        self.steps.insert(index + 1, self.steps[index])
        return index + 1

    def _join(self, index: int) -> None:
        if 0 < index < len(self.starts) and self.steps[index - 1] == self.steps[index]:
            del self.starts[index], self.steps[index]

    def dump(self) -> list[list[int]]:
        return [list(span) for span in self]

    @classmethod
    def restore(cls, size: int, dumped: Sequence[Sequence[int]]) -> Spans:
        """What `dump` gave; UsageError if it is not a partition of [0, size)."""
        spans = cls(size)
        spans.starts = [span[0] for span in dumped]
        spans.steps = [span[2] for span in dumped]
        ends = [span[1] for span in dumped]
        is_partition = spans.starts == [0, *ends[:-1]] and ends[-1:] == [size]
        if not is_partition or any(lo > hi or step < 0 for lo, hi, step in dumped):
            raise UsageError(f"step spans must follow each other from 0 to {size}, got {list(dumped)!r:.120}")
        return spans


def segments(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Cut [lo, hi) ranges at each other's ends: for each stretch that anybody covers, in order, the indices of the
    ranges that cover it, in the order given."""
    if len(ranges) == 1:
        [(lo, hi)] = ranges
        return [(lo, hi, [0])] if lo < hi else []
    bounds = sorted({end for lo, hi in ranges if lo < hi for end in (lo, hi)})
    cut = []
    for lo, hi in pairwise(bounds):
        covering = [index for index, (start, stop) in enumerate(ranges) if start <= lo and hi <= stop]
        if covering:
            cut.append((lo, hi, covering))
    return cut
