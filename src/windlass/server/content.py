"""What a slot holds: a stretch of a dense value, or rows of a table. A shard does the same with both.

Pieces are as in the messages, with their data: (slot, lo, hi, data).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from windlass.consistency.rounds import StagedPiece
from windlass.server.pins import Pins
from windlass.store.dense import Contribution, DenseSlot, Reduced
from windlass.types import Array, Block, Bytes, Incarnation

Hyper = Mapping[str, float] | None
Room = Callable[[int], Bytes]


class Frozen(Protocol):
    """A slot as it was at one moment."""

    @property
    def meta(self) -> dict[str, Any]: ...

    def arrays(self) -> dict[str, Array]:
        """What it was made of, by name; not to be written to."""

    def block(self, name: str) -> Block | None:
        """Where this array lies, if others can read it there."""

    def thaw(self) -> None:
        """Nobody needs it any more."""


class Content(Protocol):
    """One owner: not thread-safe."""

    @property
    def missing(self) -> int:
        """How many elements must be given before anybody may read it."""

    @property
    def value_bytes(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    @property
    def latest(self) -> float:
        """How late it was, by the time of its shard, when something in it was last changed; 0 where nothing ages."""

    def misfit(self, lo: int, hi: int, data: Bytes | None, *, is_read: bool) -> str:
        """What is wrong with a piece that a peer named, and with what came with it, if anything."""

    def write(self, lo: int, hi: int, data: Bytes, *, now: float) -> None:
        """Set elements lo to hi; of a table, some rows by their ids."""

    @property
    def is_growing(self) -> bool:
        """Whether an update may take much longer than its bytes say."""

    @property
    def may_refuse(self) -> bool:
        """Whether there is something in order that it cannot take."""

    def refusal(
        self, pieces: list[StagedPiece], *, is_write: bool = False, promised: Sequence[StagedPiece] = ()
    ) -> str:
        """Why it cannot take these, all together, if so. Changes nothing. What is promised keeps its room."""

    def apply(self, pieces: list[StagedPiece], *, divisor: int, hyper: Hyper, now: float) -> None:
        """Reduce these, and update once."""

    def reduce(self, pieces: list[StagedPiece], *, divisor: int, room: Room) -> list[StagedPiece]:
        """What `apply` would update with, each piece in so many bytes of `room`."""

    def update(self, reduced: list[StagedPiece], *, hyper: Hyper, now: float) -> None:
        """Update with what `reduce` gave, here or on another server; the outcome is that of `apply`, bit for bit."""

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Copies of everything that later updates depend on."""

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Become what `dump` gave."""

    def freeze(self) -> Frozen:
        """Keep it as it is now; it goes on changing elsewhere."""

    def release(self) -> None:
        """Give its memory back."""


class DenseContent:
    """A stretch of a dense value, whose block others may be reading."""

    def __init__(self, dense: DenseSlot, itemsize: int, pins: Pins, me: Incarnation) -> None:
        self.dense, self._itemsize, self._pins, self._me = dense, itemsize, pins, me

    @property
    def missing(self) -> int:
        return self.dense.size

    @property
    def value_bytes(self) -> int:
        return self.dense.value_bytes

    @property
    def state_bytes(self) -> int:
        return self.dense.state_bytes

    @property
    def latest(self) -> float:
        return 0.0

    def misfit(self, lo: int, hi: int, data: Bytes | None, *, is_read: bool) -> str:
        size = self.dense.size
        if not 0 <= lo <= hi <= size:
            return f"elements [{lo}, {hi}) are outside a slot that has {size}"
        if data is not None and data.nbytes != (hi - lo) * self._itemsize:
            return f"expected {(hi - lo) * self._itemsize} bytes, got {data.nbytes}"
        return ""

    def write(self, lo: int, hi: int, data: Bytes, *, now: float) -> None:
        self._pins.retire(self.dense.write(lo, hi, data, is_pinned=self._is_pinned))

    @property
    def is_growing(self) -> bool:
        return False

    @property
    def may_refuse(self) -> bool:
        return False

    def refusal(
        self, pieces: list[StagedPiece], *, is_write: bool = False, promised: Sequence[StagedPiece] = ()
    ) -> str:
        return ""

    def apply(self, pieces: list[StagedPiece], *, divisor: int, hyper: Hyper, now: float) -> None:
        given = [Contribution(lo, hi, data) for _, lo, hi, data in pieces]
        self._pins.retire(self.dense.apply(given, divisor=divisor, hyper=hyper, is_pinned=self._is_pinned))

    def reduce(self, pieces: list[StagedPiece], *, divisor: int, room: Room) -> list[StagedPiece]:
        given = [Contribution(lo, hi, data) for _, lo, hi, data in pieces]
        reduced = self.dense.reduce(given, divisor=divisor, room=room)
        slot = pieces[0][0]
        return [(slot, one.lo, one.hi, one.data) for one in reduced]

    def update(self, reduced: list[StagedPiece], *, hyper: Hyper, now: float) -> None:
        given = [Reduced(lo, hi, data) for _, lo, hi, data in reduced]
        self._pins.retire(self.dense.update(given, hyper=hyper, is_pinned=self._is_pinned))

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return self.dense.dump()

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        self._pins.retire(self.dense.restore(arrays, meta, is_pinned=self._is_pinned))

    def freeze(self) -> Frozen:
        return FrozenDense(self.dense, self._pins, self._pins.pin(self._me, self.dense.block))

    def release(self) -> None:
        self._pins.retire(self.dense.block)

    @property
    def _is_pinned(self) -> bool:
        return self._pins.is_pinned(self.dense.block)


class FrozenDense:
    """Its block is pinned, so the next update goes to another one; what the updater keeps is copied when it changes."""

    def __init__(self, dense: DenseSlot, pins: Pins, pin: int) -> None:
        self._dense, self._pins, self.pin = dense, pins, pin
        self._frozen = dense.freeze()

    @property
    def meta(self) -> dict[str, Any]:
        return self._frozen.meta

    def arrays(self) -> dict[str, Array]:
        return self._dense.frozen_arrays(self._frozen)

    def block(self, name: str) -> Block | None:
        return self._frozen.block if name == "value" else None

    def thaw(self) -> None:
        self._dense.thaw(self._frozen)
        self._pins.release(self.pin)
