"""The rows of one slot of a table, as a shard holds them, and reads them to others.

What is pushed is one buffer: the ids, then a row for each, all ids different. What an update is made of looks the same,
with rows of float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windlass._wire.messages import Piece
from windlass.consistency.rounds import StagedPiece
from windlass.server.content import Content, Frozen, Hyper, Room
from windlass.store.batch import bytes_address
from windlass.store.reduce import Op
from windlass.store.table import Asked, Batch, Contribution, TableSlot, pull_rows, update_rows
from windlass.types import Array, Block, Bytes

ID_BYTES = 8
GROWING_IDS = 128
"""A slot that lacked so many ids in its last update is growing: the next may need memory that the system has to clear,
2 MB at a time."""
MAX_SCANNED_BYTES = 16 << 20


class TableContent:
    def __init__(self, table: TableSlot, row_bytes: int) -> None:
        self.table, self.row_bytes = table, row_bytes
        self._ice: _Ice | None = None  # the last freeze, while nothing has changed since

    @property
    def missing(self) -> int:
        """Rows start as they are declared to: nobody gives a table its first value."""
        return 0

    @property
    def value_bytes(self) -> int:
        return self.table.num_rows * self.row_bytes

    @property
    def state_bytes(self) -> int:
        """What it has beside its values: optimizer state, the index, room for more rows."""
        return max(0, self.table.nbytes - self.value_bytes)

    @property
    def latest(self) -> float:
        return self.table.latest

    def misfit(self, lo: int, hi: int, data: Bytes | None, *, is_read: bool) -> str:
        if not 0 <= lo <= hi:
            return f"[{lo}, {hi}) are no ids"
        expected = (hi - lo) * (ID_BYTES if is_read else ID_BYTES + self.row_bytes)
        if data is None or data.nbytes != expected:
            return f"{hi - lo} ids expected {expected} bytes, got {0 if data is None else data.nbytes}"
        return ""

    def write(self, lo: int, hi: int, data: Bytes, *, now: float) -> None:
        self._unshare()
        cut = ID_BYTES * (hi - lo)
        self.table.write(data[:cut], data[cut:], now=now)

    def threshold(self, ids: Bytes) -> Array | float | None:
        """As the updater's, of the rows of these ids."""
        return self.table.threshold(ids)

    def scan(self, after: int | None, limit: int, span: tuple[int, int] | None) -> tuple[Array, Array, int | None]:
        """Ids, their rows, and what to ask on with. With a span, those of it, rising; else all, in the order of their
        hashes."""
        limit = max(1, min(limit, MAX_SCANNED_BYTES // (ID_BYTES + self.row_bytes)))
        if span is None:
            page = self.table.page(-1 if after is None else after, limit)
            return page.ids, page.rows, page.after
        lo, hi = span
        found = self.table.ids_between(lo if after is None else max(lo, after + 1), hi)
        ids = np.ascontiguousarray(found[:limit])
        return ids, self.table.pull(ids), int(ids[-1]) if found.size > limit else None

    @property
    def is_growing(self) -> bool:
        return self.table.num_lacked >= GROWING_IDS

    @property
    def may_refuse(self) -> bool:
        return self.table.options.max_bytes is not None

    def refusal(
        self, pieces: list[StagedPiece], *, is_write: bool = False, promised: Sequence[StagedPiece] = ()
    ) -> str:
        ids, others = ([data[: ID_BYTES * (hi - lo)] for _, lo, hi, data in some] for some in (pieces, promised))
        return self.table.refusal(ids, admit_after=1 if is_write else None, promised=others)

    def apply(self, pieces: list[StagedPiece], *, divisor: int, hyper: Hyper, now: float) -> None:
        self._unshare()
        if len(pieces) == 1 and self._takes_as_they_are(divisor):
            self._update(pieces[0], hyper, now)
        else:
            self.table.apply([_contribution(piece) for piece in pieces], divisor=divisor, hyper=hyper, now=now)

    def _takes_as_they_are(self, divisor: int) -> bool:
        """Whether reducing one contribution changes nothing."""
        is_mean = self.table.reducer.op is Op.MEAN
        return self.table.options.dtype == "float32" and (divisor == 1 or not is_mean)

    def _update(self, piece: StagedPiece, hyper: Hyper, now: float) -> None:
        """Update with ids and float32 rows, which are different ids, where they lie."""
        asked = self._asked(piece)
        if asked is None:
            _, lo, hi, data = piece
            cut = ID_BYTES * (hi - lo)
            self.table.update(Batch(data[:cut], data[cut:]), hyper=hyper, now=now)
        else:
            update_rows([asked], hyper=hyper, now=now)

    def _asked(self, piece: StagedPiece) -> Asked | None:
        """The same as the kernels take it, if they do."""
        _, lo, hi, data = piece
        start, expected = bytes_address(data), (ID_BYTES + 4 * self.table.options.dim) * (hi - lo)
        if start % ID_BYTES or hi == lo or not self.table.is_fused or data.nbytes != expected:
            return None
        return Asked(self.table, start, hi - lo, start + ID_BYTES * (hi - lo))

    def joins(self, piece: StagedPiece, divisor: int) -> Asked | None:
        """What `apply` would update with, if it can be together with other slots of the table, by `update_rows`, which
        it is about to be; None if it had better be alone."""
        if self.may_refuse or not self._takes_as_they_are(divisor):
            return None
        asked = self._asked(piece)
        if asked is not None:
            self._unshare()
        return asked

    def reduce(self, pieces: list[StagedPiece], *, divisor: int, room: Room) -> list[StagedPiece]:
        data: list[Bytes] = []

        def keep(nbytes: int) -> Bytes:
            data.append(room(nbytes))
            return data[0]

        batch = self.table.reduce([_contribution(piece) for piece in pieces], divisor=divisor, room=keep)
        return [(pieces[0][0], 0, batch.ids.size, data[0])]

    def update(self, reduced: list[StagedPiece], *, hyper: Hyper, now: float) -> None:
        self._unshare()
        for piece in reduced:
            self._update(piece, hyper, now)

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self.table.dump()

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        self._unshare()
        self.table.restore(arrays, meta)

    def freeze(self) -> Frozen:
        if self._ice is None:
            self._ice = _Ice()
        self._ice.num_holders += 1
        return _FrozenTable(self.table, self._ice)

    def release(self) -> None:
        self.table.close()

    def _unshare(self) -> None:
        """About to change: what others keep stays as it is."""
        ice, self._ice = self._ice, None
        if ice is not None and ice.num_holders:
            ice.fill(self.table)


class _Ice:
    """A table's slot at one moment: a copy of it, but only once it changes or is looked at."""

    def __init__(self) -> None:
        self.num_holders = 0
        self.arrays: dict[str, Array] | None = None
        self.meta: dict[str, Any] = {}

    def fill(self, table: TableSlot) -> dict[str, Array]:
        if self.arrays is None:
            self.arrays, self.meta = table.dump()
        return self.arrays


class _FrozenTable:
    def __init__(self, table: TableSlot, ice: _Ice) -> None:
        self._table, self._ice = table, ice

    @property
    def meta(self) -> dict[str, Any]:
        self._ice.fill(self._table)
        return self._ice.meta

    def arrays(self) -> dict[str, Array]:
        return self._ice.fill(self._table)

    def block(self, name: str) -> Block | None:
        return None

    def thaw(self) -> None:
        self._ice.num_holders -= 1


def _contribution(piece: StagedPiece) -> Contribution:
    _, lo, hi, data = piece
    cut = ID_BYTES * (hi - lo)
    return Contribution(data[:cut], data[cut:], is_unique=True)


def read_rows(wanted: Sequence[tuple[TableContent, Bytes]], out: int) -> None:
    """The rows of these ids, one after the other, to this address."""
    asked: list[Asked] = []
    copies: list[Bytes] = []  # of ids that do not lie as they should; kept until they are read
    for content, ids in wanted:
        start = bytes_address(ids)
        if start % ID_BYTES:
            copies.append(ids.copy())
            start = bytes_address(copies[-1])
        asked.append(Asked(content.table, start, ids.nbytes // ID_BYTES, out))
        out += ids.nbytes // ID_BYTES * content.row_bytes
    if asked:
        pull_rows(asked)


def apply_together(
    contents: Sequence[Content], pieces: Sequence[StagedPiece], *, divisor: int, hyper: Hyper, now: float
) -> None:
    """Update each of these, slots of one table, once, with its piece."""
    asked: list[Asked] = []
    for content, piece in zip(contents, pieces, strict=True):
        assert isinstance(content, TableContent)
        joining = content.joins(piece, divisor)
        if joining is None:
            content.apply([piece], divisor=divisor, hyper=hyper, now=now)
        else:
            asked.append(joining)
    if asked:
        update_rows(asked, hyper=hyper, now=now)


def ids_of(pieces: Sequence[Piece], data: Sequence[Bytes]) -> tuple[Bytes, ...]:
    """Copies of the ids of what was pushed: the memory is given back when it has been applied."""
    return tuple(part[: ID_BYTES * (hi - lo)].copy() for (_, lo, hi), part in zip(pieces, data, strict=True))
