"""Setting values, and rows of tables, as whoever is alone may: the driver of a cluster, and an embedded store."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from windlass._wire import messages as m
from windlass.errors import UsageError, options_checked
from windlass.types import Block
from windlass.worker.arguments import no_ids, no_range
from windlass.worker.entry import Entry
from windlass.worker.packing import Packing
from windlass.worker.rows import TableEntry
from windlass.worker.split import Pieces, check_range
from windlass.worker.store import Store


class Assigns(Store):
    """A store that can write between two rounds."""

    @options_checked
    def assign(self, key: str, value: Any, *, ids: Any = None, range: tuple[int, int] | None = None) -> None:
        """Set a value between two rounds, the same two on every server; optimizer state stays. Blocks until done. Safe
        to repeat: a ClusterError, where a server is lost in the middle of it, asks for that.

        Of a table, set a row for each of `ids`, which are all different; rows that are not there are made. Where the
        table would outgrow `max_bytes` it is a UsageError, and no row has changed.
        """
        with self._client.writing:
            self._assign(key, value, ids, range)

    def _assign(self, key: str, value: Any, ids: Any, range: tuple[int, int] | None) -> None:
        entry, write = self._entry(key), next(self._client.write_numbers)
        if isinstance(entry, TableEntry):
            no_range(key, range)
            self._write_rows(entry, value, ids, write)
        else:
            no_ids(key, {} if ids is None else {key: ids})
            self._write(entry, value, range, write)
        key_id = entry.key.id
        if not self.is_driver:
            self._client.settle(entry.key)  # own pushes come first
        with self._saver.between:
            self._client.request(
                (entry.key, 0),
                lambda n: m.Commit(request=n, key=key_id, writer=self._client.state.me, write=write),
                f"assign('{key}')",
                answers=len(entry.key.whole),
            )

    def _write(self, entry: Entry, value: Any, range: tuple[int, int] | None, number: int) -> None:
        lo, hi = check_range(entry.key, range)
        flat = self._checked(entry, value, lo, hi, is_range=range is not None, verb="assign")
        what = f"assign('{entry.key.spec.name}')"
        for shard in entry.key.whole:
            self._give(entry, shard, flat, lo, partial(m.Write, write=number), what)

    def _write_rows(self, entry: TableEntry, value: Any, ids: Any, number: int) -> None:
        """Hand every shard its ids and rows, some at a time; one without any a message, so that it knows."""
        what = f"assign('{entry.name}')"
        like, flat = entry.ids(ids, "assign")
        rows = entry.rows(value, like, flat, check_finite=self.options.check_finite, what="assign")
        way = entry.route(flat)
        if not way.is_unique:
            twice = way.ids[np.bincount(way.inverse) > 1]
            raise UsageError(f"{what}: expected every id once, got {twice[0]} more than once: which is its row?")
        pieces = entry.pieces(way)
        packing = entry.packed(way, pieces, rows).rest()
        try:
            self._send_rows(entry, pieces, packing, number)
        except UsageError:  # every server has answered; after any other failure this memory may still be read
            self._free(packing.owned)
            self._drop_write(entry)
            raise
        self._free(packing.owned)

    def _send_rows(self, entry: TableEntry, pieces: Pieces, packing: Packing, number: int) -> None:
        for shard, wanted in pieces.items():
            single: list[tuple[tuple[m.Piece, ...], tuple[Block, ...]]] = [
                ((piece,), (block,)) for piece, block in zip(wanted, packing.blocks[shard], strict=True)
            ]
            for some, data in single or [((), ())]:
                write = partial(m.Write, key=entry.key.id, shard=shard, pieces=some, write=number)
                what = f"assign('{entry.name}')"
                self._client.request((entry.key, shard), lambda n, write=write: write(request=n), what, data=data)  # type: ignore[misc]

    def _drop_write(self, entry: TableEntry) -> None:
        """A shard has no room for its part: what the others keep ready, and have set room aside for, is replaced by
        nothing."""
        write = partial(m.Write, key=entry.key.id, pieces=(), write=next(self._client.write_numbers))
        for shard in entry.key.whole:
            self._client.request(
                (entry.key, shard),
                lambda n, shard=shard: write(request=n, shard=shard),  # type: ignore[misc]
                f"assign('{entry.name}')",
            )

    def _free(self, blocks: list[Block]) -> None:
        for block in blocks:
            self._client.hub.memory.free(block)
