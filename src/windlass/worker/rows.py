"""Rows of tables on their way to the servers and back: every id once, and those of a slot side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from windlass._transport.base import Hub
from windlass._wire.messages import Piece, Pulled
from windlass.errors import UsageError, WindlassError
from windlass.store.batch import (
    Route,
    bytes_address,
    check_ids,
    check_rows_finite,
    expand_rows,
    merge_rows,
    route,
    unpack_rows,
)
from windlass.store.reduce import Reducer
from windlass.types import STORAGE, Array, Block, Bytes, TableSpec
from windlass.worker.arguments import no_such_ids
from windlass.worker.arrays import Like, fill, look, target, wrap
from windlass.worker.entry import Entry
from windlass.worker.ops import KeyInfo, Part
from windlass.worker.packing import ID_BYTES, Packing
from windlass.worker.split import Pieces
from windlass.worker.task import Task

PIECE_BYTES = 8 << 20
"""How much of one slot a message carries, at most."""

NUM_ROUTES = 4
"""How many lists of ids a table remembers the way of: what is pulled is usually pushed to, a step or two later."""


class TableEntry(Entry):
    """A table that this process uses."""

    def __init__(self, key: KeyInfo, hub: Hub, table: TableSpec, reducer: Reducer) -> None:
        super().__init__(key, "numpy", hub)
        self.table, self.reducer = table, reducer
        self.name, self.dim, self.dtype = key.spec.name, table.dim, key.spec.dtype
        self.storage = STORAGE[self.dtype]
        self._routes: tuple[tuple[Array, Route, Pieces], ...] = ()

    def ids(self, ids: Any, what: str) -> tuple[Like, Array]:
        """The caller's ids, and as int64, flat. UsageError if they are none."""
        if ids is None:
            raise UsageError(f"{what}('{self.name}'): it is a table: say which rows, by ids=")
        try:
            like, flat = look(ids, f"{what}('{self.name}', ids=...)")
            return like, check_ids(self.name, flat)
        except (TypeError, ValueError, OverflowError, UsageError):
            raise UsageError(f"{what}('{self.name}'): {no_such_ids(ids)}") from None

    def rows(self, value: Any, like: Like, ids: Array, *, check_finite: bool, what: str = "push") -> Array:
        """The caller's rows, one for each id. UsageError if they are not."""
        what = f"{what}('{self.name}')"
        found, flat = look(value, what)
        expected = (*like.shape, self.dim)
        if found.dtype != self.dtype and not (found.dtype == "uint16" and self.dtype == "bfloat16"):
            is_easy = found.kind == "numpy" and self.dtype != "bfloat16"
            hint = f"; rows.astype(np.{self.dtype}) makes some" if is_easy else ""
            raise UsageError(f"{what}: expected rows of {self.dtype}, got {found.dtype}{hint}")
        if found.shape != expected:
            raise UsageError(
                f"{what}: expected shape {expected}, a row of {self.dim} for each id, got {found.shape}"
            )
        rows = flat.reshape(ids.size, self.dim)
        if check_finite:
            check_rows_finite(self.name, ids, rows, self.dtype)
        return rows

    def route(self, ids: Array) -> Route:
        """Which slot each id goes to; remembered for the last few lists."""
        for known, way, _ in self._routes:
            if known.size == ids.size and np.array_equal(known, ids):
                return way
        way = route(ids, self.key.num_slots)
        self._routes = ((ids.copy(), way, self._cut(way)), *self._routes[: NUM_ROUTES - 1])
        return way

    def pieces(self, way: Route) -> Pieces:
        """What every shard gets of it, or gives."""
        for _, known, pieces in self._routes:
            if known is way:
                return pieces
        return self._cut(way)

    def _cut(self, way: Route) -> Pieces:
        step = max(1, PIECE_BYTES // (ID_BYTES + self.key.itemsize))
        counts = np.diff(way.bounds).tolist()
        found: dict[int, list[Piece]] = {shard: [] for shard in self.key.whole}
        for slot, count in enumerate(counts):
            if count:
                pieces = found[self.key.shard_of(slot)]
                pieces += [(slot, lo, min(count, lo + step)) for lo in range(0, count, step)]
        return {shard: tuple(pieces) for shard, pieces in found.items()}

    def wanted(self, way: Route, pieces: Pieces) -> Packing:
        """The ids of each piece, as a pull sends them."""
        return self._packing(way, pieces, 0).rest()

    def merged(self, way: Route, rows: Array) -> Array:
        """One row for each different id, in the order of its way."""
        return merge_rows(way, rows, dtype=self.dtype, reducer=self.reducer)

    def packed(self, way: Route, pieces: Pieces, rows: Array) -> Packing:
        """The ids and rows of each piece, those of the same id reduced; to be written when they are sent."""
        merged = rows if way.is_unique else self.merged(way, rows)
        return self._packing(way, pieces, self.key.itemsize).take(merged)

    def _packing(self, way: Route, pieces: Pieces, row_bytes: int) -> Packing:
        return Packing(way, pieces, row_bytes=row_bytes, hub=self._hub, shares=self._shares)

    def parts(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a table is not cut by ranges")

    def grouped(self, pieces: Pieces, blocks: Mapping[int, tuple[Block, ...]]) -> dict[int, list[Part]]:
        """One message for each shard where only references travel; else one for each piece."""
        found: dict[int, list[Part]] = {}
        for shard, wanted in pieces.items():
            if self._shares(shard) or len(wanted) <= 1:
                found[shard] = [Part(wanted, blocks[shard])]
            else:
                found[shard] = [Part((piece,), (block,)) for piece, block in zip(wanted, blocks[shard], strict=True)]
        return found

    def _shares(self, shard: int) -> bool:
        head = self.key.head(shard)
        return head is not None and self._hub.shares_memory_with(head)


class RowLanding:
    """One pull of rows: `deliver` is called for each message that brings some, `finish` once."""

    __slots__ = ("_bounds", "_like", "_out", "_rows", "_waits_for_out", "_way", "entry", "result", "task", "version")

    def __init__(self, entry: TableEntry, way: Route, like: Like, out: Any = None) -> None:
        self.entry = entry
        self.version = 0
        self.result: Any = None
        self.task: Task | None = None
        self._way, self._bounds = way, way.bounds.tolist()
        self._like = Like(like.kind, entry.dtype, (*like.shape, entry.dim))
        self._out = out
        # Where every id came once, rows land where they belong; else once each, to be copied at the end.
        what = f"pull('{entry.name}')"
        found = None if out is None else target(out, self._like, what)  # raises for what cannot be filled
        self._waits_for_out = out is not None and (found is None or not way.is_unique)
        if found is None or not way.is_unique:
            found = np.empty(way.ids.size * entry.dim, entry.storage)
        self._rows = found.reshape(-1, entry.dim)

    def deliver(self, pulled: Pulled, data: tuple[Bytes, ...], is_shared: bool) -> None:
        self.version = max(self.version, pulled.version)
        row_bytes, bounds, lines = self.entry.key.itemsize, self._bounds, []
        for (slot, lo, _), part in zip(pulled.pieces, data, strict=True):
            begin = bounds[slot] + lo
            lines.append((begin, begin + part.nbytes // row_bytes, bytes_address(part)))
        unpack_rows(self._way, np.array(lines, np.int64).reshape(-1, 3), self._rows)

    def finish(self, error: WindlassError | None) -> None:
        if error is None:
            self.result = self._make()
        task, self.task = self.task, None
        if task is not None:
            task.finish(error)

    def abandon(self) -> None:
        """The caller has left: what still comes lands elsewhere."""
        if self._out is not None:
            self._rows, self._out = self._rows.copy(), None

    def take(self) -> Any:
        return self.result

    def _make(self) -> Any:
        if self._out is not None and not self._waits_for_out:
            return self._out
        rows = self._rows if self._way.is_unique else expand_rows(self._way, self._rows)
        flat = rows.reshape(-1)
        if self._out is None:
            return wrap(flat, self._like)
        fill(self._out, self._like, flat)
        return self._out
