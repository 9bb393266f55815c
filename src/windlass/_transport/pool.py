"""Buffers for payloads received by value, used again: fresh pages cost more than the transfer that fills them."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np

from windlass.types import Bytes

MIN_POOLED_BYTES = 16 << 10


class BufferPool:
    """Lends arrays of an exact size and takes them back. Not thread-safe. Keeps at most `max_bytes`; what is given
    back beyond that pushes out the size that came first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self._spare: dict[int, list[Bytes]] = {}
        # Who may come back, and once only: an array given back twice would be lent to two messages.
        self._lent: dict[int, weakref.ref[Bytes]] = {}

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    def take(self, nbytes: int) -> Bytes:
        """A writable array of this size, contents undefined."""
        if nbytes < MIN_POOLED_BYTES:
            return np.empty(nbytes, np.uint8)
        spare = self._spare.get(nbytes)
        if spare:
            array = spare.pop()
            self._kept_bytes -= nbytes
            if not spare:
                del self._spare[nbytes]
        else:
            array = np.empty(nbytes, np.uint8)
        self._lent[id(array)] = weakref.ref(array, partial(_forget, self._lent, id(array)))
        return array

    def give(self, arrays: tuple[Bytes, ...]) -> None:
        """Take back what `take` lent; anything else, and anything given back before, is left alone."""
        for array in arrays:
            lent = self._lent.get(id(array))
            if lent is None or lent() is not array:
                continue
            del self._lent[id(array)]
            if array.nbytes <= self._max_bytes:
                self._make_room(array.nbytes)
                self._spare.setdefault(array.nbytes, []).append(array)
                self._kept_bytes += array.nbytes

    def _make_room(self, nbytes: int) -> None:
        while self._kept_bytes + nbytes > self._max_bytes:
            size = next(iter(self._spare))
            spare = self._spare[size]
            spare.pop()
            self._kept_bytes -= size
            if not spare:
                del self._spare[size]


def _forget(lent: dict[int, weakref.ref[Bytes]], key: int, dead: weakref.ref[Bytes]) -> None:
    if lent.get(key) is dead:
        del lent[key]
