"""A key that this process uses: how to cut it, what kind of array its user wants, and the memory kept for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from windlass._transport.base import Hub
from windlass._wire.messages import Piece
from windlass.errors import UsageError
from windlass.store.update import built_in
from windlass.types import STORAGE, Array, Block, Bytes
from windlass.worker.arguments import numbers_of
from windlass.worker.arrays import Like, as_bytes
from windlass.worker.ops import KeyInfo, Part
from windlass.worker.split import Pieces, position
from windlass.worker.task import Task

PAST_CACHE_BYTES = 8 << 20
"""From this size on a value is copied past the cache: its reader would not find it there anyway."""

MAX_PIECES = 1024
"""How many pieces one message carries, at most."""


def _references_when_unused() -> int:
    """What sys.getrefcount says, in a loop over a list, of an array that only the list holds: it depends on Python."""
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    return 0


_UNUSED = _references_when_unused()


class Entry:
    def __init__(self, key: KeyInfo, kind: str, hub: Hub) -> None:
        self.key = key
        self.like = Like(kind, key.spec.dtype, key.spec.shape)
        self._hub = hub
        self.is_resting = False  # nobody waits for this worker's pushes on it
        self._updater = built_in(key.spec.update)
        self._last_hyper: Mapping[str, float] = {}
        self.failed: list[Task] = []  # pushes that failed; their callers may not know
        self._results: list[Array] = []
        self._buffers: list[tuple[Block, int]] = []  # and the address where each begins
        self._next_buffer = 0

    def hyper(self, given: Mapping[str, float] | None) -> dict[str, float] | None:
        """The numbers that a push sets for its round. UsageError for what the updater has not got, or cannot be; of a
        user's own updater, and of torch's, only the servers know."""
        if not given:
            return None
        numbers, name = numbers_of(given), self.key.spec.name
        if self._updater is not None and numbers != self._last_hyper:
            if not self._updater.config():
                raise UsageError(
                    f"push('{name}'): hyper={numbers}, but update='{self.key.spec.update.path}' has no numbers to set; "
                    "an updater such as wl.SGD(lr=0.1) has some"
                )
            try:
                self._updater.with_hyper(numbers)
            except UsageError as error:
                raise UsageError(f"push('{name}', hyper={numbers}): {error}") from None
            self._last_hyper = numbers
        return numbers

    # --- what goes out ----------------------------------------------------------------------------------------------

    def parts(
        self, flat: Array, lo: int, pieces: Pieces, *, may_borrow: bool
    ) -> tuple[dict[int, list[Part]], list[Block]]:
        """The messages' contents for each shard, and the blocks to free when they are done with. A plain array is
        copied, unless the caller will stay until the end (`may_borrow`); one of our own buffers goes as it is."""
        data = as_bytes(flat)
        copy = copier(data.nbytes)
        buffer = self._find_buffer(data) if self._buffers else None
        owned: list[Block] = []
        parts: dict[int, list[Part]] = {}
        for shard, wanted in pieces.items():
            head = self.key.head(shard)
            shares = head is not None and self._hub.shares_memory_with(head)
            blocks: list[Block] = []
            for piece in wanted:
                begin, end = position(self.key, piece, lo)
                part = data[begin:end]
                if buffer is not None:
                    blocks.append(Block(part, buffer[0].segment, buffer[0].offset + buffer[1] + begin))
                elif part.nbytes <= self._hub.copied_bytes:  # it travels inside the frame
                    blocks.append(Block(part if may_borrow else part.copy()))
                elif may_borrow and not shares:
                    blocks.append(Block(part))
                else:
                    block = self._hub.memory.allocate(part.nbytes)
                    copy(block.array, part)
                    owned.append(block)
                    blocks.append(block)
            parts[shard] = _group(wanted, blocks, together=shares)
        return parts, owned

    def buffer(self) -> Array:
        """One of the two buffers of this key, by turns."""
        nbytes = self.key.spec.size * self.key.itemsize
        if len(self._buffers) < 2:
            block = self._hub.dedicated(max(1, nbytes))
            self._buffers.append((block, block.array.__array_interface__["data"][0]))
        else:
            block = self._buffers[self._next_buffer][0]
            self._next_buffer = 1 - self._next_buffer
        return block.array[:nbytes].view(STORAGE[self.key.spec.dtype])

    def _find_buffer(self, data: Bytes) -> tuple[Block, int] | None:
        """The buffer that this memory lies in, and how far from its start."""
        address = data.__array_interface__["data"][0]
        for block, start in self._buffers:
            if start <= address and address + data.nbytes <= start + block.array.nbytes:
                return block, address - start
        return None

    # --- what comes in ----------------------------------------------------------------------------------------------

    def result(self, size: int) -> Array:
        """A flat array to pull into: one that an earlier pull gave and nobody holds any more, or a new one. Fresh
        pages cost more than the transfer that fills them."""
        for flat in self._results:
            if flat.size == size and sys.getrefcount(flat) <= _UNUSED:
                return flat
        flat = np.empty(size, STORAGE[self.key.spec.dtype])
        if len(self._results) < 4:
            self._results.append(flat)
        return flat

    def view(self, arrays: Sequence[Bytes]) -> Array:
        """The pieces as one read-only array: the servers' own memory where it can be mapped in one stretch, else a
        copy."""
        joined = self._hub.contiguous(arrays)
        if joined is None:
            joined = np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
        flat = joined.view(STORAGE[self.key.spec.dtype])
        flat.flags.writeable = False
        return flat


def copier(nbytes: int) -> Callable[[Bytes, Bytes], None]:
    """How to copy the pieces of a value of this size."""
    if nbytes < PAST_CACHE_BYTES:
        return np.copyto
    from windlass.store.copying import copy_past_cache  # here, because importing numba takes most of a second

    return copy_past_cache


def _group(pieces: tuple[Piece, ...], blocks: list[Block], *, together: bool) -> list[Part]:
    """One message for all where only references travel; else one for each piece, so that a link is never taken for
    longer than a chunk."""
    step = MAX_PIECES if together else 1
    if len(pieces) <= step:
        return [Part(pieces, tuple(blocks))]
    return [
        Part(pieces[start : start + step], tuple(blocks[start : start + step]))
        for start in range(0, len(pieces), step)
    ]
