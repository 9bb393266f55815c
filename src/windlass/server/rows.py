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
from windlass.server.content import Frozen, Hyper, Room
from windlass.store.batch import address
from windlass.store.reduce import Op
from windlass.store.table import Batch, Contribution, TableSlot
from windlass.types import Array, Block, Bytes

ID_BYTES = 8
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

    def pull(self, ids: Bytes, out: Bytes, place: int) -> None:
        """The rows of these ids, to `out`, which is at this address."""
        start = address(ids)
        if start % ID_BYTES:
            self.table.pull(ids, out)
        else:
            self.table.pull_at(start, ids.nbytes // ID_BYTES, place)

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
    def may_refuse(self) -> bool:
        return self.table.options.max_bytes is not None

    def refusal(self, pieces: list[StagedPiece]) -> str:
        return self.table.refusal([data[: ID_BYTES * (hi - lo)] for _, lo, hi, data in pieces])

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
        _, lo, hi, data = piece
        cut, start = ID_BYTES * (hi - lo), address(data)
        if start % ID_BYTES or hi == lo or not self.table.is_fused:
            self.table.update(Batch(data[:cut], data[cut:]), hyper=hyper, now=now)
        else:
            self.table.update_at(start, start + cut, hi - lo, hyper=hyper, now=now)

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


def ids_of(pieces: Sequence[Piece], data: Sequence[Bytes]) -> tuple[Bytes, ...]:
    """Copies of the ids of what was pushed: the memory is given back when it has been applied."""
    return tuple(part[: ID_BYTES * (hi - lo)].copy() for (_, lo, hi), part in zip(pieces, data, strict=True))
