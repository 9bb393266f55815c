"""The rows of a batch, and their ids, on their way into memory that their servers read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from windlass._transport.base import Hub
from windlass.errors import WindlassError
from windlass.store.batch import Route, bytes_address, pack_ids, pack_rows
from windlass.types import Array, Block
from windlass.worker.split import Pieces

ID_BYTES = 8
_LINE = 64


class Packing:
    """Pieces of ids, or of ids and the row of each. `blocks` is the memory of every piece, by shard; `owned` is what to
    free when all have been read.

    A shard's pieces are written just before they are sent, by `fill`; so the first shard is worked on while the next is
    written. `rest` writes what is left: the caller's rows are needed no longer."""

    def __init__(
        self, way: Route, pieces: Pieces, *, row_bytes: int, hub: Hub, shares: Callable[[int], bool]
    ) -> None:
        """`shares` says whether the server of a shard can map this process's memory."""
        self.blocks: dict[int, tuple[Block, ...]] = {}
        self.owned: list[Block] = []
        self._way, self._hub, self._width = way, hub, ID_BYTES + row_bytes
        self._rows: Array | None = None
        self._plans: dict[int, Array] = {}  # of the shards that are still to be written
        bounds = way.bounds.tolist()
        for shard, wanted in pieces.items():
            self._allot(shard, [(bounds[slot] + lo, bounds[slot] + hi) for slot, lo, hi in wanted], shares(shard))

    def _allot(self, shard: int, spans: list[tuple[int, int]], is_shared: bool) -> None:
        """Memory for these ids: where the server can map it, if it is worth it."""
        starts, total = [], 0
        for begin, end in spans:
            starts.append(total)
            total += -(-(end - begin) * self._width // _LINE) * _LINE
        if is_shared and total > self._hub.copied_bytes:
            whole = self._hub.memory.allocate(_rounded(total))
            self.owned.append(whole)
        else:
            whole = Block(np.empty(total, np.uint8))
        array, segment, offset, base = whole.array, whole.segment, whole.offset, bytes_address(whole.array)
        both = list(zip(spans, starts, strict=True))
        self.blocks[shard] = tuple([
            Block(array[start : start + (end - begin) * self._width], segment, offset + start)
            for (begin, end), start in both
        ])
        lines = [(begin, end, base + start) for (begin, end), start in both]
        self._plans[shard] = np.array(lines, np.int64).reshape(-1, 3)

    def take(self, rows: Array) -> Packing:
        """The rows to write: those of the batch if every id came once, else one for each id of the way."""
        self._rows = rows
        return self

    def fill(self, shard: int) -> None:
        """Write what this shard gets, unless it is written. What was sent before leaves first."""
        if shard in self._plans:
            self._hub.flush()
            self._write(shard)

    def rest(self) -> Packing:
        for shard in list(self._plans):
            self._write(shard)
        self._rows = None
        return self

    def _write(self, shard: int) -> None:
        plan = self._plans.pop(shard)
        if self._rows is None:
            pack_ids(self._way, plan)
        else:
            pack_rows(self._way, self._rows, plan)

    def ending(self, finish: Callable[[WindlassError | None], None]) -> Callable[[WindlassError | None], None]:
        """What ends the push: from then on the memory may be somebody else's, and is not written to."""

        def end(error: WindlassError | None) -> None:
            self._plans.clear()
            self._rows = None
            finish(error)

        return end


def _rounded(nbytes: int) -> int:
    """A little more, so that batches of nearly the same size use the same memory again."""
    grain = 1 << max(12, nbytes.bit_length() - 3)
    return -(-nbytes // grain) * grain


def ids_of(blocks: Mapping[int, tuple[Block, ...]], pieces: Pieces) -> dict[int, tuple[Block, ...]]:
    """The ids at the beginning of each packed piece."""
    found: dict[int, tuple[Block, ...]] = {}
    for shard, wanted in pieces.items():
        both = zip(wanted, blocks[shard], strict=True)
        found[shard] = tuple(
            Block(block.array[: ID_BYTES * (hi - lo)], block.segment, block.offset) for (_, lo, hi), block in both
        )
    return found
