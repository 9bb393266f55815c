"""Small gradients stay at home until they have added up to something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass.errors import options_checked
from windlass.filters.filter import is_number, require
from windlass.filters.parcel import Parcel
from windlass.filters.selector import Selector
from windlass.types import Array


@options_checked
@dataclass(frozen=True)
class SmallGradient(Selector):
    """Sends what has a magnitude of at least `eps`; the rest is added to the next push. Of a table it sends the rows
    that have such a number."""

    eps: float = 1e-3

    def __post_init__(self) -> None:
        require(is_number(self.eps) and self.eps > 0, self, "eps", "a number above 0")

    def choose(self, parcel: Parcel) -> Array:
        from windlass.filters import selecting

        floor = parcel.number.type(self.eps)
        if parcel.width > 1:
            picked = np.empty(parcel.count + 1, np.int64)
            return picked[: selecting.rows_at_least(picked, parcel.values, parcel.width, floor)]
        picked = np.empty(selecting.count_at_least(parcel.values, floor) + 1, np.int64)
        return picked[: selecting.at_least(picked, parcel.values, floor)]
