"""Which rows of a table slot have to go: those that were not pushed to for too long, and of too many the oldest.

A row is *used* by a push. A pull does not count: pulls are answered by the head of a chain alone and leave no entry in
its log, so that replicas would keep other rows than it does. The *tick* counts the updates of the slot; a row's last
one is all that is kept of it. Rows go in sweeps over the whole index, and each sweep takes somewhat more than it must,
so that sweeps are rare: GRAIN says how much. Two slots that take the same updates sweep the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from windlass.errors import UsageError
from windlass.types import Array

GRAIN = 16
"""A row outlives its time by up to a GRAIN-th of it; of too many rows, a GRAIN-th goes at once."""

LAST_TICK = (1 << 32) - 1
RENUMBERED = 1 << 31


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When rows go. None: never."""

    max_rows: int | None = None
    ttl_updates: int | None = None
    ttl_seconds: float | None = None

    def check(self) -> None:
        for name in ("max_rows", "ttl_updates"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name} must be a whole number of at least 1, or None, got {value!r:.40}")
        seconds = self.ttl_seconds
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0):
            raise UsageError(f"ttl_seconds must be a number above 0, or None, got {seconds!r:.40}")

    @property
    def is_any(self) -> bool:
        return self.max_rows is not None or self.ttl_updates is not None or self.ttl_seconds is not None


class Ageing:
    """Counts the ticks of one slot and says when which rows are too old."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tick = 0  # stays 0 where nothing ages
        self._floor = 0  # of the last sweep by age
        # (from, to, tick): in this time were the updates up to this tick, since the mark before. Each spans less than a
        # GRAIN-th of ttl_seconds.
        self._marks: list[tuple[float, float, int]] = []

    @property
    def latest(self) -> float:
        """When the last tick was, where rows age by the clock."""
        return self._marks[-1][1] if self._marks else 0.0

    def next(self, now: float) -> int:
        """The tick of the update that comes now. `now` is in seconds, by the clock of the head, which followers are
        told; a time before an earlier one counts as that."""
        if not self._limits.is_any:
            return 0
        self.tick += 1
        if self._limits.ttl_seconds is not None:
            begun, last, _ = self._marks[-1] if self._marks else (now, now, 0)
            now = max(now, last)
            if self._marks and now - begun < self._limits.ttl_seconds / GRAIN:
                self._marks.pop()
            else:
                begun = now
            self._marks.append((begun, now, self.tick))
        return self.tick

    def floor(self, now: float) -> int:
        """Everything last used before this tick is too old; 0: not worth a sweep yet."""
        limits, floor = self._limits, 0
        if limits.ttl_updates is not None:
            reached = self.tick - limits.ttl_updates
            if reached - self._floor >= max(1, limits.ttl_updates // GRAIN):
                floor = reached
        if limits.ttl_seconds is not None:
            past = [mark for mark in self._marks if mark[1] <= now - limits.ttl_seconds]
            if past:
                del self._marks[: len(past)]
                floor = max(floor, past[-1][2] + 1)
        self._floor = max(self._floor, floor)
        return floor if floor > 1 else 0

    def surplus(self, count: int) -> int:
        """How many of so many rows, or candidates, are to go."""
        most = self._limits.max_rows
        return count - (most - most // GRAIN) if most is not None and count > most else 0

    def must_renumber(self) -> bool:
        """Whether ticks have become so large that they must be made smaller: every 2**31 updates."""
        return self.tick >= LAST_TICK

    def renumber(self, used: Array) -> Array:
        """The same ticks, as far as they are of the last 2**31, from 1 on."""
        self.tick -= RENUMBERED
        self._floor = max(0, self._floor - RENUMBERED)
        self._marks = [(begun, last, max(0, tick - RENUMBERED)) for begun, last, tick in self._marks]
        lowered: Array = np.maximum(used.astype(np.int64) - RENUMBERED, 0)
        return lowered

    def dump(self) -> dict[str, Any]:
        return {"tick": self.tick, "floor": self._floor, "marks": [list(mark) for mark in self._marks]}

    def restore(self, meta: Mapping[str, Any]) -> None:
        self.tick, self._floor = meta["tick"], meta["floor"]
        self._marks = [(float(begun), float(last), int(tick)) for begun, last, tick in meta["marks"]]
