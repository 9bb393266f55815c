"""Filters that leave rows out. What a row is the parcel says: an element of a dense key, a whole row of a table."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from windlass.errors import PeerError
from windlass.filters.filter import Lossy
from windlass.filters.packing import need_int
from windlass.filters.parcel import Form, Parcel
from windlass.types import Array

MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Selector(Lossy):
    """Sends some rows as they are and keeps the others back. Its loss is what it kept back: exact."""

    gives: ClassVar[Form] = Form.NUMBERS

    def choose(self, parcel: Parcel) -> Array:
        """Which of the rows that are left: positions among them, int64, ascending."""
        raise NotImplementedError

    def encode(self, parcel: Parcel) -> Parcel:
        return parcel.select(self.choose(parcel))

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        from windlass.filters import kernels

        picked = self.choose(parcel)
        chosen = parcel.select(picked)
        kernels.blank(parcel.values, picked, parcel.width)
        return chosen

    def decode(self, parcel: Parcel) -> Parcel:
        """Which rows they are travels with the parcel."""
        parcel.check_values(parcel.number)
        return replace(parcel, meta={})


@dataclass(frozen=True)
class Drawn(Selector):
    """A selector that draws lots. The server draws the same ones from the same seed, so that the selection need not be
    sent; only where another filter has selected before, it is.

    With `unbiased=True` what is sent is made larger, so that on average all of it arrives, and what is left out is
    forgotten: keeping it as well would count it twice."""

    unbiased: bool = field(default=False, kw_only=True)

    @property
    def keeps_loss(self) -> bool:
        return self.feedback and not self.unbiased

    def draw(self, rows: int, seed: int) -> Array:
        """Which of so many rows, for this seed: the same on every machine."""
        raise NotImplementedError

    def weights(self, rows: int, picked: Array) -> Array:
        """One over the chance that each of the picked rows had."""
        raise NotImplementedError

    def choose(self, parcel: Parcel) -> Array:
        return self.draw(parcel.count, parcel.context.seed)

    def encode(self, parcel: Parcel) -> Parcel:
        return self._finish(parcel, self.choose(parcel))

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        from windlass.filters import kernels

        picked = self.choose(parcel)
        chosen = self._finish(parcel, picked)
        kernels.blank(parcel.values, picked, parcel.width)
        return chosen

    def _finish(self, parcel: Parcel, picked: Array) -> Parcel:
        chosen = parcel.select(picked)
        if self.unbiased:
            weights = self.weights(parcel.count, picked).astype(chosen.values.dtype)
            chosen.values *= weights.repeat(parcel.width)
        if parcel.ids is not None or parcel.kept is not None or len(picked) == parcel.rows:
            return chosen
        return replace(chosen, rows=len(picked), kept=None, meta={"rows": parcel.rows, "seed": parcel.context.seed})

    def decode(self, parcel: Parcel) -> Parcel:
        parcel.check_values(parcel.number)
        if not parcel.meta:
            return parcel
        rows = need_int(parcel.meta, "rows", 0, parcel.context.max_rows)
        picked = self.draw(rows, need_int(parcel.meta, "seed", 0, MAX_SEED))
        if parcel.ids is not None or len(picked) != parcel.rows:
            raise PeerError(f"expected a draw of {parcel.rows} of {rows} rows without ids, got {len(picked)} rows")
        kept = picked if parcel.kept is None else picked[parcel.kept]
        return replace(parcel, rows=rows, kept=kept, meta={})


def fraction_of(count: int, fraction: float) -> int:
    """So much of so many, at least one if there is any."""
    return min(count, max(1, round(count * fraction)))
