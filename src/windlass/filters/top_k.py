"""Send the largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass.errors import options_checked
from windlass.filters.filter import as_float32, is_number, require
from windlass.filters.parcel import Parcel
from windlass.filters.selector import Selector, fraction_of
from windlass.types import Array

BUCKET_BITS = 19


@options_checked
@dataclass(frozen=True)
class TopK(Selector):
    """Sends the `fraction` of the rows that is largest, by magnitude or, in a table, by length; the rest is added to
    the next push. Of equals the first ones are sent, zeros never."""

    fraction: float = 0.01

    def __post_init__(self) -> None:
        require(is_number(self.fraction) and 0 < self.fraction <= 1, self, "fraction", "above 0 and at most 1")

    def choose(self, parcel: Parcel) -> Array:
        from windlass.filters import selecting

        if parcel.count == 0:
            return np.empty(0, np.int64)
        sizes = self._sizes(parcel).view(np.uint32)
        wanted = fraction_of(parcel.count, self.fraction)
        bucket, above, inside_bucket = selecting.reach(sizes, wanted)
        room = np.empty(above + inside_bucket + 1, np.int64)
        found = room[: selecting.not_below(room, sizes, np.uint32(max(1, bucket << BUCKET_BITS)))]
        if len(found) <= wanted:
            return found
        # All above the bucket are in; of those in the bucket the largest, and of those that are equal the first.
        magnitudes = sizes[found] & np.uint32(0x7FFFFFFF)
        inside = magnitudes[magnitudes >> np.uint32(BUCKET_BITS) == bucket]
        last = np.partition(inside, len(inside) - (wanted - above))[len(inside) - (wanted - above)]
        is_in = magnitudes > last
        equal = np.flatnonzero(magnitudes == last)
        is_in[equal[: wanted - np.count_nonzero(is_in)]] = True
        chosen: Array = found[is_in]
        return chosen

    @staticmethod
    def _sizes(parcel: Parcel) -> Array:
        """What rows are ordered by, as float32: its magnitude's bits are ordered as it is."""
        from windlass.filters import selecting

        if parcel.width == 1:
            return as_float32(parcel.values)
        squares = np.empty(parcel.count, np.float32)
        selecting.row_squares(squares, parcel.values, parcel.width)
        return squares
