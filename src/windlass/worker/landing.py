"""Where the pieces of one pull land, and what the caller gets in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass._wire.messages import Piece, Pulled
from windlass.errors import UsageError, WindlassError
from windlass.types import Array, Bytes
from windlass.worker.arrays import Like, as_bytes, fill, target, wrap
from windlass.worker.entry import Entry, copier
from windlass.worker.split import position
from windlass.worker.task import Task


class Landing:
    """One pull of elements lo to hi: `deliver` is called for each message that brings some, `finish` once."""

    __slots__ = (
        "_bytes",
        "_copy",
        "_flat",
        "_like",
        "_lo",
        "_out",
        "_pieces",
        "_waits_for_out",
        "entry",
        "result",
        "task",
        "version",
    )

    def __init__(
        self, entry: Entry, span: tuple[int, int], *, is_range: bool, out: Any = None, view: bool = False
    ) -> None:
        lo, hi = span
        self.entry = entry
        self.version = 0
        self.result: Any = None
        self.task: Task | None = None
        self._lo = lo
        self._out = out
        self._like = Like(entry.like.kind, entry.like.dtype, (hi - lo,)) if is_range else entry.like
        self._waits_for_out = False  # `out` is not contiguous: it is filled at the end
        self._flat: Array | None = None
        self._pieces: dict[Piece, Bytes] | None = None
        if view:
            self._check_view()
            self._pieces = {}
            return
        if out is not None:
            self._flat = target(out, self._like, f"pull('{entry.key.spec.name}')")
            self._waits_for_out = self._flat is None
        if self._flat is None:
            self._flat = entry.result(hi - lo)
        self._bytes = as_bytes(self._flat)
        self._copy: Callable[[Bytes, Bytes], None] = copier(self._bytes.nbytes)

    def _check_view(self) -> None:
        spec = self.entry.key.spec
        if not self.entry.key.is_sequential:
            raise UsageError(f"pull('{spec.name}'): view=True expects a sequential key, got {spec.consistency}")
        if self._out is not None:
            raise UsageError(f"pull('{spec.name}'): view=True and out= exclude each other")

    def deliver(self, pulled: Pulled, data: tuple[Bytes, ...], is_shared: bool) -> None:
        if pulled.version > self.version:
            self.version = pulled.version
        for piece, part in zip(pulled.pieces, data, strict=True):
            if self._pieces is not None:
                self._pieces[piece] = part if is_shared else part.copy()
            else:
                begin, end = position(self.entry.key, piece, self._lo)
                self._copy(self._bytes[begin:end], part)

    def finish(self, error: WindlassError | None) -> None:
        if error is None:
            self.result = self._make()
        # The task leads here for its result; with a way back, memory would be free only after a garbage collection.
        task, self.task = self.task, None
        if task is not None:
            task.finish(error)

    def abandon(self) -> None:
        """The caller has left: what still comes lands elsewhere."""
        if self._out is not None and self._flat is not None:
            self._flat, self._out = self._flat.copy(), None
            self._bytes = as_bytes(self._flat)

    def take(self) -> Any:
        return self.result

    def _make(self) -> Any:
        if self._pieces is not None:
            pieces = self._pieces
            return wrap(self.entry.view([pieces[piece] for piece in sorted(pieces)]), self._like)
        assert self._flat is not None
        if self._out is None:
            return wrap(self._flat, self._like)
        if self._waits_for_out:
            fill(self._out, self._like, self._flat)
        return self._out
