"""Send each row with a given probability."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass.filters.filter import is_number, require
from windlass.filters.selector import Drawn
from windlass.types import Array


@dataclass(frozen=True)
class RandomSkip(Drawn):
    """Leaves each row out with probability `p`, by lot; what is left out is added to the next push. With
    `unbiased=True` what is sent is divided by 1 - p instead, and what is left out is forgotten."""

    p: float = 0.5

    def __post_init__(self) -> None:
        require(is_number(self.p) and 0 <= self.p < 1, self, "p", "at least 0 and below 1")

    def draw(self, rows: int, seed: int) -> Array:
        from windlass.filters import selecting

        picked = np.empty(rows + 1, np.int64)
        return picked[: selecting.draw_kept(picked, rows, np.uint64(self._skip), np.uint64(seed))]

    def weights(self, rows: int, picked: Array) -> Array:
        return np.full(len(picked), 1 / (1 - self._skip / 2**32))

    @property
    def _skip(self) -> int:
        """The probability in units of 2**-32, which is how lots are drawn."""
        return min(round(self.p * 2**32), 2**32 - 1)
