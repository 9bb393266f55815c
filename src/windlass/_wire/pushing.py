"""The messages of the data path: first values, pushes, pulls, and what a driver writes."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._wire.message import Message
from windlass.types import Incarnation, KeyId, Lease

Piece = tuple[int, int, int]


class Filtered(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What filters made of numbers, beside its data: what they say of it, and the lengths of the buffers that lie in
    the data one after the other, each at a multiple of 8 bytes."""

    meta: dict[str, Any]
    lengths: tuple[int, ...]


class Init(Message, frozen=True):
    """Rank 0 to server: the first value of these pieces. Ignored where the key has a value already."""

    request: int
    key: KeyId
    shard: int
    pieces: tuple[Piece, ...]


class Write(Message, frozen=True):
    """Driver to server: keep these pieces of write number `write` ready; Commit will make them the value. Answered
    with Done. A later number replaces an earlier one."""

    request: int
    key: KeyId
    shard: int
    pieces: tuple[Piece, ...]
    write: int


class Commit(Message, frozen=True):
    """Driver to keeper, keeper to the other heads (`is_passed_on`): after round `round`, which the keeper names, make
    write number `write` of `writer` the value. Each shard answers the writer with Done and its number; again, if it is
    asked again."""

    request: int
    key: KeyId
    writer: Incarnation
    write: int
    round: int = -1
    is_passed_on: bool = False


class Attach(Message, frozen=True):
    """Worker to keeper: I begin to use this key; at which clock do I start? Done's detail is the clock. The answer
    waits for the first value, so that no push can come before it. Then to the heads of the other shards, with that
    clock: count me from here on. A clock of -2 only asks: where is whoever has made most pushes? Who
    then attaches with that clock is level with it, and nobody waits for what it has not pushed. That answer waits until
    the keeper knows the generation `term`.`number`, or a later one. Of Attach and Detach the one with the higher
    `request` is the later one, whichever comes last."""

    request: int
    key: KeyId
    shard: int
    clock: int = -1
    term: int = 0
    number: int = 0


class Detach(Message, frozen=True):
    """Worker to head: I have nothing to push on this shard for a while, and all my pushes are acknowledged: do not wait
    for me. Answered with Done; Attach takes it back."""

    request: int
    key: KeyId
    shard: int


class Push(Message, frozen=True):
    """Worker to head: part `part` of `parts` of my push number `clock` on this shard. A push without pieces still
    counts: it is the notice that tells a shard of a push that does not touch it. With `pull` not 0 the answer is
    Pulled, under that id, for the same pieces; else it is Ack. One that `completes` work that the shard has counted
    already contributes nothing, and is answered all the same.

    On a key with filters the data is what they made: one buffer for each piece, and for all pieces of a table. The
    first number of `traffic` is how many bytes that was before, the others what each filter left of it; `residual` is
    the norm of what the worker has kept back."""

    key: KeyId
    shard: int
    clock: int
    since: int
    part: int
    parts: int
    pieces: tuple[Piece, ...]
    pull: int = 0
    hyper: dict[str, float] | None = None
    completes: Lease | None = None
    filtered: tuple[Filtered, ...] = ()
    traffic: tuple[int, ...] = ()
    residual: float = 0.0


class Reserve(Message, frozen=True):
    """Worker to head, before push `clock` of a table that has `max_bytes` and no rounds, with ids as data: set room for
    these aside until the push has come, or its worker leaves. Without pieces: it will not come. Answered with Done, or
    Refused if there is no room."""

    request: int
    key: KeyId
    shard: int
    clock: int
    pieces: tuple[Piece, ...]


class NeedIds(Message, frozen=True):
    """Head to worker: that part of your push, or that pull, names a list of ids that is not here (any more). Nothing of
    it was counted: send it again with the list, and what comes after it."""

    key: KeyId
    shard: int
    clock: int
    part: int
    digest: str
    pull: int = 0


class Ack(Message, frozen=True):
    """Head to worker: your push `clock` on this shard is applied and replicated, and all before it (error: it was
    refused, and changed nothing)."""

    key: KeyId
    shard: int
    clock: int
    error: str = ""


class Pull(Message, frozen=True):
    """Worker to head: read these pieces as they are after my first `clock` pushes. Of a table, the ids are data; with a
    `digest`, they are to be kept under it, or, where there is no data, those that are. With `ahead`, others have pushed
    as much as they must have when I have made so many more."""

    pull: int
    key: KeyId
    shard: int
    clock: int
    pieces: tuple[Piece, ...]
    digest: str = ""
    ahead: int = 0


class Read(Message, frozen=True):
    """Driver to keeper, keeper to the other heads (`is_passed_on`): send `reader` these pieces as they are after round
    `round`, which the keeper names: its newest. The answer is Pulled; pieces of others' shards are passed over."""

    pull: int
    key: KeyId
    reader: Incarnation
    pieces: tuple[Piece, ...]
    round: int = -1
    is_passed_on: bool = False
    ids: tuple[bytes, ...] = ()  # of a table: those of every piece


class Pulled(Message, frozen=True):
    """Server to worker: some pieces of your pull, and that your first `clock` pushes are applied to them. `pins` are
    what the server keeps unchanged until told by Release; it has none where bytes were copied into the frame.

    Where filters were applied, each piece's data is what they made, or that of all pieces of a table. `threshold` is up
    to which gradient a weight of 0 stays 0: one for all, or, where it is -1, one float32 for each element, in as many
    buffers more."""

    pull: int
    key: KeyId
    clock: int
    version: int
    pieces: tuple[Piece, ...]
    pins: tuple[int, ...] = ()
    error: str = ""
    filtered: tuple[Filtered, ...] = ()
    threshold: float | None = None


class Release(Message, frozen=True):
    """Worker to server: I have read what these pins kept."""

    pins: tuple[int, ...]


class Hold(Message, frozen=True):
    """Worker or driver to server, first on a new link: of the pins of the old one I still read these, and no others."""

    pins: tuple[int, ...]
