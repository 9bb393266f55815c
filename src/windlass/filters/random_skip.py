"""Send each row with a given probability."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from windlass.errors import options_checked
from windlass.filters.filter import is_number, require
from windlass.filters.selector import Drawn
from windlass.types import Array


@options_checked
@dataclass(frozen=True)
class RandomSkip(Drawn):
    """Leaves each row out with probability `p`, by lot; what is left out is added to the next push. With
    `unbiased=True` what is sent is divided by 1 - p instead, and what is left out is forgotten."""

    p: float = 0.5

    def __post_init__(self) -> None:
        require(is_number(self.p) and 0 <= self.p < 1, self, "p", "at least 0 and below 1")

    def draw(self, rows: int, seed: int) -> Array:
        from windlass.filters import selecting

        # Room for what is likely, eight deviations above the mean; for all where chance wants more.
        likely = int(rows * (1 - self.p) + 4 * math.sqrt(rows)) + 2
        for room in (min(likely, rows + 1), rows + 1):
            picked = np.empty(room, np.int64)
            count = selecting.draw_kept(picked, rows, np.uint64(self._skip), np.uint64(seed))
            if count >= 0:
                break
        return picked[:count]

    def weights(self, rows: int, picked: Array) -> Array:
        return np.full(len(picked), 1 / (1 - self._skip / 2**32))

    @property
    def _skip(self) -> int:
        """The probability in units of 2**-32, which is how lots are drawn."""
        return min(round(self.p * 2**32), 2**32 - 1)
