"""What travels through a chain of filters, and what comes out of it.

A *parcel* is part of one push: numbers, and where they belong. A dense key's parcel is a range of elements; a table's
is a list of ids with a row of `width` numbers each. A *row* is what a filter may leave out: an element of a dense key
(its width is 1), a whole row of a table. A *payload* is what is sent: a small dictionary, and buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from windlass.errors import PeerError
from windlass.types import Array

if TYPE_CHECKING:
    from windlass.filters.lists import IdLists


class Form(StrEnum):
    """What a parcel's values are."""

    NUMBERS = "numbers"  # floating point, `width` for each row
    CODES = "codes"  # whatever a filter made of them, of any dtype
    BYTES = "bytes"  # everything in one piece, which only its own filter can open


@dataclass(frozen=True)
class Target:
    """The key that a chain is for. `width` is the length of a table's rows, None for a dense key; `size` is how many
    elements a dense key has, if that is known: memory for them is then reserved at once."""

    name: str
    dtype: str = "float32"
    width: int | None = None
    reduce: str = "sum"
    size: int = 0

    @property
    def is_table(self) -> bool:
        return self.width is not None

    @property
    def number(self) -> np.dtype[Any]:
        """What lossy filters compute in."""
        return np.dtype("float64" if self.dtype == "float64" else "float32")


@dataclass(slots=True)
class Context:
    """What filters know beside the parcel: on the way out `seed` and `slack`, on the way in the rest.

    `slack` is what KKT compares magnitudes with, one for each number of the parcel as it was first. `taken_ids` is the
    list that IdCache took out of the parcel, or that came with the payload, and `digest` what names it; `lists` are
    those that a server keeps. No parcel spans more than `max_rows` rows."""

    seed: int = 0
    slack: Array | None = None
    taken_ids: Array | None = None
    digest: str = ""
    lists: IdLists | None = None
    max_rows: int = 0


@dataclass(slots=True)
class Parcel:
    """Numbers under way. A filter takes one and returns another; it never changes the one that it was given.

    `rows` is how many rows the parcel spans, and `kept` says which of them it still has, in ascending order; None: all.
    `ids` are a table's, one for each row; None for dense keys, and where IdCache took them. `values` are flat. `side`
    holds what filters had to add, the last one's last. `meta` is the last filter's own, a few plain values. `origin`
    is, for every row that is left, which of the first ones it was (None: the same)."""

    rows: int
    values: Array
    width: int = 1
    number: np.dtype[Any] = field(default=np.dtype("float32"))
    ids: Array | None = None
    kept: Array | None = None
    side: tuple[Array, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    origin: Array | None = None
    context: Context = field(default_factory=Context)

    @property
    def count(self) -> int:
        """The rows that are left."""
        return self.rows if self.kept is None else len(self.kept)

    @property
    def matrix(self) -> Array:
        """The numbers, a row of them for each row."""
        return self.values.reshape(self.count, self.width)

    def pass_on(self, values: Array, *side: Array, **meta: Any) -> Self:
        """The same rows with other values, some more arrays on the side, and this filter's meta."""
        return replace(self, values=values, side=self.side + side, meta=meta)

    def take_side(self, *dtypes: str) -> tuple[Array, ...]:
        """The last arrays on the side, which must be of these dtypes: what this filter's `pass_on` put there."""
        found = self.side[-len(dtypes) :]
        if [each.dtype.name for each in found] != list(dtypes):
            raise PeerError(f"expected arrays of {', '.join(dtypes)} on the side, got {self._side_names()}")
        return found

    def give_back(self, values: Array, sides: int = 0, **meta: Any) -> Self:
        """The way in: the same rows with their values as they were, and without the last arrays on the side."""
        return replace(self, values=values, side=self.side[: len(self.side) - sides], meta=meta)

    def select(self, picked: Array, **meta: Any) -> Self:
        """Only these of the rows that are left (ascending positions among them), with copies of their numbers. Where
        the parcel has ids it becomes a shorter one; else `kept` tells which rows they are."""
        from windlass.filters import kernels

        values = np.empty(len(picked) * self.width, self.values.dtype)
        kernels.gather(values, self.values, picked, self.width)
        origin = picked if self.origin is None else self.origin[picked]
        if len(picked) == self.count:
            return replace(self, values=values, meta=meta)
        if self.ids is not None:
            return replace(self, rows=len(picked), ids=self.ids[picked], values=values, origin=origin, meta=meta)
        kept = picked if self.kept is None else self.kept[picked]
        return replace(self, kept=kept, values=values, origin=origin, meta=meta)

    def check_values(self, dtype: npt.DTypeLike | None = None) -> None:
        """PeerError unless there are `width` numbers for every row that is left (of this dtype, if one is named)."""
        expected, values = self.count * self.width, self.values
        if values.size != expected or (dtype is not None and values.dtype != dtype):
            of = f" of {np.dtype(dtype).name}" if dtype is not None else ""
            raise PeerError(f"expected {expected} values{of}, got {values.size} of {values.dtype.name}")

    @property
    def nbytes(self) -> int:
        """About what it takes to send it as it is."""
        from windlass.filters.packing import selection_bytes

        ids = 0 if self.ids is None else self.ids.nbytes
        return self.values.nbytes + ids + selection_bytes(self.kept, self.rows) + sum(each.nbytes for each in self.side)

    def _side_names(self) -> str:
        return ", ".join(each.dtype.name for each in self.side) or "none"


@dataclass(frozen=True)
class Payload:
    """What is sent: `meta`, plain values that any wire carries, and `buffers`, in order. Buffers may be the very memory
    that was pushed.

    `ids` does not travel: it is the list that the payload names by its digest alone, if it does, so that `in_full` can
    still say it."""

    meta: dict[str, Any]
    buffers: Sequence[Any]
    ids: Array | None = None

    @property
    def nbytes(self) -> int:
        return sum(memoryview(each).nbytes for each in self.buffers)

    @property
    def digest(self) -> str | None:
        """The digest that stands for a list of ids which is not here. None: nothing is missing."""
        return self.meta.get("digest") if "ids" not in self.meta else None

    def in_full(self) -> Payload:
        """The same with the list of ids that it only named: the answer to NeedIds. Itself where nothing is missing."""
        if self.digest is None or self.ids is None:
            return self
        return Payload({**self.meta, "ids": len(self.ids)}, [self.ids, *self.buffers], self.ids)


@dataclass(frozen=True)
class NeedIds:
    """Server to worker: I do not have the list with this digest (any more); send that message again, in full. Nothing
    of it was counted."""

    digest: str


@dataclass(frozen=True)
class Decoded:
    """What a payload said. `values` has a row for each of `ids`, which may be a list that the server keeps: not to be
    written to. For a dense key it is the whole range, 0 where nothing was sent."""

    values: Array
    ids: Array | None = None
