"""The units of work of a shard, each of which touches at most one slot, and the slot itself. Nothing leads from what
units hold back to them, so the garbage collector need not look at them (`gc=False`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass._wire import messages as m
from windlass.consistency.rounds import StagedPiece
from windlass.server.content import Content
from windlass.server.log import Whole
from windlass.types import Array, Bytes, Incarnation, KeyId

THE_SHARDS: tuple[str, ...] = ()
"""The slots of the classes that a shard is put together of: what they hold is the shard's."""

UNSEEN = 1 << 62
"""The base of a slot that a learner has not been shown: no entry applies to it."""

Rows = Sequence[tuple[m.Piece, Bytes]]
"""Pieces of a table, and the ids of each."""

ROUND = Incarnation(0)
"""In a unit of work: the push is nobody's own, it is a round."""


class Waiting(msgspec.Struct, gc=False):
    """A pull of one piece of a slot that cannot be answered yet, or of rows of a table, maybe of other slots, too.
    `rides` tells that it came with the push it follows."""

    peer: Incarnation
    pull: int
    clock: int
    lo: int
    hi: int
    rides: bool
    rows: Rows | None = None  # of a table
    ahead: int = 0

    def pieces(self, slot: int) -> tuple[m.Piece, ...]:
        """What it is answered with."""
        return ((slot, self.lo, self.hi),) if self.rows is None else tuple(piece for piece, _ in self.rows)


class HeldSlot(msgspec.Struct):
    number: int
    content: Content
    missing: int  # elements that have no first value yet
    rounds: int = 0
    waiting: list[Waiting] = msgspec.field(default_factory=list)
    base: int = 0  # the last entry that was in it when it came here


class Apply(msgspec.Struct, gc=False):
    """Unit of work: reduce these pieces and update one slot, once. `push` is whose (0: a round) and which. A follower's
    pieces come reduced; those of a draft are, on the head, too."""

    slot: int
    pieces: list[StagedPiece]
    divisor: int
    hyper: dict[str, float] | None
    push: tuple[Incarnation, int]
    now: float = 0.0
    is_reduced: bool = False
    is_drafted: bool = False


class ApplyRows(msgspec.Struct, gc=False):
    """Unit of work: what one push brings to several slots of a table; together it is little, unless it `is_slow`."""

    pieces: list[StagedPiece]
    divisor: int
    hyper: dict[str, float] | None
    push: tuple[Incarnation, int]
    now: float
    is_slow: bool = False

    def apart(self) -> list[Apply]:
        """The same, slot by slot."""
        return [Apply(piece[0], [piece], self.divisor, self.hyper, self.push, self.now) for piece in self.pieces]


class Draft(msgspec.Struct, gc=False, eq=False):
    """What a round will be, if it is closed with the members of its `entry`. Reduced pieces are in memory under our
    `pins`, or in that of the entry that brought them."""

    entry: m.LogEntry
    pieces: list[StagedPiece]
    divisor: int = 1
    number: int = 1
    error: str = ""  # why it changes nothing
    pins: list[int] = msgspec.field(default_factory=list)
    whole: Whole | None = None
    is_reduced: bool = False
    is_made: bool = False


class Reduce(msgspec.Struct, gc=False):
    """Unit of work: reduce these pieces of one slot, for a draft."""

    slot: int
    pieces: list[StagedPiece]
    draft: Draft


class Drafted(msgspec.Struct, gc=False):
    """Unit of work: a draft is made, and goes down the chain."""

    draft: Draft


class Keep(msgspec.Struct, gc=False):
    """Unit of work: a draft came from the predecessor, and is kept."""

    whole: Whole


class LetGo(msgspec.Struct, gc=False):
    """Unit of work: nobody needs this draft any more."""

    draft: Draft


class Check(msgspec.Struct, gc=False):
    """Unit of work: look whether every slot can take what these pieces bring, before any of them does. If one cannot,
    the push is refused, and what follows of it changes nothing."""

    pieces: list[StagedPiece]
    push: tuple[Incarnation, int]
    is_write: bool = False  # what a driver sets is taken without having been pushed to often enough


class SetAside(msgspec.Struct, gc=False):
    """Unit of work: set room aside for the ids of a push that is to come, if there is some; or give it back. Of a write
    its parts come one by one."""

    push: tuple[Incarnation, int]  # or write: as in Put
    request: int
    pieces: list[StagedPiece]  # the ids are enough
    is_write: bool = False


class End(msgspec.Struct, gc=False):
    """Unit of work: the round, or the part of a push of `push[0]`, is applied to every slot here, and its entry is
    made. Only now does it count as applied for its `members` (none, while other parts are still to come): an
    acknowledgement gives the pusher its memory back. `acks` are those who want one."""

    push: tuple[Incarnation, int]
    members: tuple[Incarnation, ...]
    acks: tuple[Incarnation, ...]
    entry: m.LogEntry
    is_followed: bool = False  # the entry came from the predecessor


class Put(msgspec.Struct, gc=False):
    """Unit of work: set elements lo to hi of a slot, or some rows, as the driver wants them; unless a Check of the same
    `write` has found that they cannot be taken."""

    slot: int
    lo: int
    hi: int
    data: Bytes
    write: tuple[Incarnation, int]  # of whom, and its number below 0, where no push has its clock
    now: float
    is_followed: bool = False


class First(msgspec.Struct, gc=False):
    """Unit of work: pieces of the first value. Those of a slot that has one already are passed over."""

    pieces: tuple[m.Piece, ...]
    data: tuple[Bytes, ...]
    request: tuple[Incarnation, int] | None  # who gave them; nobody on a follower


class Start(msgspec.Struct, gc=False):
    """Unit of work: count this worker from this clock on."""

    who: Incarnation
    clock: int
    request: int
    is_followed: bool = False  # as in End


class Rest(msgspec.Struct, gc=False):
    """Unit of work: do not wait for this worker until it starts again."""

    who: Incarnation
    request: int
    is_followed: bool = False


class Restored(msgspec.Struct, gc=False):
    """Unit of work: a slot becomes what was saved of it."""

    slot: int
    arrays: dict[str, Array]
    meta: dict[str, Any]
    request: tuple[Incarnation, int] | None
    count: int = -1  # how many updates the key had taken


class Echo(msgspec.Struct, gc=False):
    """Unit of work: what entry `index` from the predecessor does to one slot, unless the slot came with it."""

    index: int
    slot: int
    unit: Apply | Put | First | Restored


class Teach(msgspec.Struct, gc=False):
    """Unit of work: begin to show the shard to this learner, or show it one slot."""

    lesson: int
    learner: Incarnation
    slot: int = -1
    is_end: bool = False


class Learn(msgspec.Struct, gc=False):
    """Unit of work: a slot becomes what the last of the chain showed."""

    shown: m.ShowSlot
    arrays: dict[str, Array]


class Mark(msgspec.Struct, gc=False):
    """Unit of work: an entry that came from the predecessor is applied."""

    whole: Whole


class Freezing(msgspec.Struct, gc=False):
    """Unit of work: keep the shard as it is now, for a saver; it is told under `request`, unless that is 0."""

    which: tuple[Incarnation, int, KeyId, int]
    round: int
    request: int


Order = m.Read | m.Commit
Unit = (
    Apply | ApplyRows | Check | SetAside | End | Put | First | Start | Rest | Restored | Mark | Echo | Teach | Learn
    | Freezing | Reduce | Drafted | Keep | LetGo | Order
)  # fmt: skip
FREE = frozenset((End, Start, Rest, Mark, Freezing, Drafted, Keep, LetGo))
"""Units that touch no data."""


def unit_bytes(unit: Unit) -> int:
    """About how many bytes it touches; what is not known counts as many."""
    if not isinstance(unit, Apply | ApplyRows | Reduce) or (isinstance(unit, ApplyRows) and unit.is_slow):
        return 1 << 62
    return sum([piece[3].nbytes for piece in unit.pieces])


def count_staged(pieces: list[StagedPiece]) -> int:
    """How many elements are there to be applied."""
    if len(pieces) == 1:  # the usual case
        return pieces[0][2] - pieces[0][1]
    return sum([hi - lo for _, lo, hi, _ in pieces])


def count_given(push: m.Push) -> int:
    """How many elements a push was made of, filters or no filters."""
    return sum([hi - lo for _, lo, hi in push.pieces])


def count_elements(counted: dict[Incarnation, int], entry: m.LogEntry) -> None:
    """For whoever checks the books: add up how much of each one's data has gone into the value."""
    if entry.members:
        for who, elements in zip(entry.members, entry.elements, strict=True):
            counted[who] = counted.get(who, 0) + elements
    elif entry.elements:  # a push; a round may be empty
        counted[entry.who] = counted.get(entry.who, 0) + entry.elements[0]
