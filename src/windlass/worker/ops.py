"""What a worker has under way: operations on keys, and requests to nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windlass._wire import messages as m
from windlass.errors import WindlassError
from windlass.types import Block, Bytes, Incarnation, KeyId, KeySpec, Sequential

Part = tuple[tuple[m.Piece, ...], tuple[Block, ...]]
"""What one message carries to one server: pieces, and a block for each."""


@dataclass(slots=True, eq=False)
class KeyInfo:
    """A key as this worker knows it. `clock` counts the own pushes that have started."""

    id: KeyId
    spec: KeySpec
    slots: tuple[Incarnation, ...]
    clock: int = 0
    since: int = 0
    queue: deque[Op] = field(default_factory=deque)
    open_pulls: int = 0
    unreleased: dict[Incarnation, list[int]] = field(default_factory=dict)
    whole: dict[Incarnation, tuple[m.Piece, ...]] = field(default_factory=dict)  # every piece, by server
    is_sequential: bool = True
    size: int = 0
    itemsize: int = 0
    slot_size: int = 0

    def __post_init__(self) -> None:
        self.is_sequential = isinstance(self.spec.consistency, Sequential)
        self.size, self.itemsize, self.slot_size = self.spec.size, self.spec.itemsize, self.spec.slot_size
        by_server: dict[Incarnation, list[m.Piece]] = {}
        for slot, server in enumerate(self.slots):
            lo, hi = self.spec.slot_range(slot)
            by_server.setdefault(server, []).append((slot, 0, hi - lo))
        self.whole = {server: tuple(pieces) for server, pieces in by_server.items()}

    @property
    def keeper(self) -> Incarnation:
        return self.slots[0]


@dataclass(slots=True, eq=False)
class Op:
    """One push, pull or both on one key, from submission to completion.

    `push` holds the parts for every server of the key (an empty one is a notice); `pull` the pieces wanted from each
    server. With both, the pull rides on the push. `deliver` is called with each piece as it comes and must not raise;
    `finish` once, at the end, with None or the error.
    """

    key: KeyInfo
    push: dict[Incarnation, list[Part]] | None
    pull: dict[Incarnation, tuple[m.Piece, ...]] | None
    deliver: Callable[[m.Pulled, tuple[Bytes, ...], bool], None] | None
    finish: Callable[[WindlassError | None], None]
    hyper: dict[str, float] | None = None
    after: tuple[Any, ...] = ()  # what must be done first: anything with `is_done` and `error`
    reads_newest: bool = False  # a driver's read, ordered by the keeper
    owner: object = None  # the task it belongs to
    asked_at: float = 0.0
    error: WindlassError | None = None  # what a server had against it; told when all have answered
    abandon: Callable[[], None] | None = None  # what was given to be filled is the caller's again
    number: int = 0
    clock: int = 0
    unacked: set[Incarnation] = field(default_factory=set)
    unread: dict[Incarnation, set[m.Piece]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.unacked and not self.unread

    def waits_for(self) -> set[Incarnation]:
        return self.unacked | set(self.unread)

    def disown(self) -> None:
        """The caller leaves before the end: what was borrowed of its memory is copied, should it be sent again, and
        what comes late does not go there."""
        if self.abandon is not None:
            self.abandon()
        if self.push is not None:
            self.push = {
                server: [(pieces, tuple(_own(block) for block in blocks)) for pieces, blocks in parts]
                for server, parts in self.push.items()
            }


def _own(block: Block) -> Block:
    return Block(block.array.copy()) if block.segment < 0 else block


@dataclass(slots=True, eq=False)
class Request:
    """One question to one node; sent again if the link breaks, so it must be safe to repeat."""

    peer: Incarnation
    make: Callable[[int], m.AnyMessage]
    finish: Callable[[m.AnyMessage | None, tuple[Bytes, ...], WindlassError | None], None]
    data: tuple[Block, ...] = ()
    answers: int = 1  # how many nodes answer it
    number: int = 0
    asked_at: float = 0.0
    answered: set[Incarnation] = field(default_factory=set)
