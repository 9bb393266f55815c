"""Send a fixed number of rows, chosen by lot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass.errors import options_checked
from windlass.filters.filter import is_number, require
from windlass.filters.selector import Drawn, fraction_of
from windlass.types import Array


@options_checked
@dataclass(frozen=True)
class RandomK(Drawn):
    """Sends `fraction` of the rows: they are cut into so many stretches, as equal as can be, and of each one row is
    drawn. What is not drawn is added to the next push; with `unbiased=True` what is drawn is multiplied by the length
    of its stretch instead, and the rest is forgotten."""

    fraction: float = 0.01

    def __post_init__(self) -> None:
        require(is_number(self.fraction) and 0 < self.fraction <= 1, self, "fraction", "above 0 and at most 1")

    def draw(self, rows: int, seed: int) -> Array:
        from windlass.filters import selecting

        picked = np.empty(fraction_of(rows, self.fraction), np.int64)
        selecting.draw_strata(picked, rows, np.uint64(seed))
        return picked

    def weights(self, rows: int, picked: Array) -> Array:
        bounds = np.arange(len(picked) + 1, dtype=np.int64) * rows // max(1, len(picked))
        return np.diff(bounds)
