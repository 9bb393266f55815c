"""Every message that nodes exchange, in one place. docs/protocol.md gives their bytes.

A message names things; the bytes it speaks of travel beside it as *data*: one buffer per piece, in order. A *piece*
is `(slot, lo, hi)`: elements lo to hi of a slot, counted from the slot's own start.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.types import Incarnation, KeyId, KeySpec, Node, Role

Piece = tuple[int, int, int]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """Frozen, tagged, keyword-only. Fields are only ever added, at the end, with a default."""


# --- joining, and who is here ---------------------------------------------------------------------------------------


class Join(Message, frozen=True):
    """Node to manager, first on the link: let me in. `rank` is a wish; -1 takes the next free seat."""

    role: Role
    pid: int
    addresses: tuple[str, ...]
    rank: int = -1


class Membership(Message, frozen=True):
    """Manager to every node: the generation and its members. A node acts on nothing else."""

    term: int
    number: int
    nodes: tuple[Node, ...]
    reason: str


class Abort(Message, frozen=True):
    """Driver to manager, manager to workers: the run is over; every wait raises with this reason."""

    reason: str


# --- declaring keys -------------------------------------------------------------------------------------------------


class Declare(Message, frozen=True):
    """Worker to manager: make this key, or tell me where it is."""

    request: int
    spec: KeySpec


class Lookup(Message, frozen=True):
    """Worker or driver to manager: where is this key? Refused when nobody declared it."""

    request: int
    name: str


class Declared(Message, frozen=True):
    """Manager to worker: the key's number and the server of each slot."""

    request: int
    key: KeyId
    spec: KeySpec
    slots: tuple[Incarnation, ...]


class Forget(Message, frozen=True):
    """Worker to manager, manager to servers: delete the key. With `key` not 0, only that declaration of it."""

    request: int
    name: str
    key: KeyId = KeyId(0)


class Place(Message, frozen=True):
    """Manager to server: you hold some slots of this key. Safe to repeat."""

    key: KeyId
    spec: KeySpec
    slots: tuple[Incarnation, ...]


class Placed(Message, frozen=True):
    """Server to manager: the key's slots are ready (error: they cannot be made)."""

    key: KeyId
    error: str = ""


class Done(Message, frozen=True):
    """The request is carried out. `detail` is what it asked for, if it asked for anything."""

    request: int
    detail: Any = None


class Refused(Message, frozen=True):
    """The request cannot be carried out: the caller's mistake (usage) or the cluster's state."""

    request: int
    is_usage: bool
    reason: str


# --- the data path --------------------------------------------------------------------------------------------------


class Init(Message, frozen=True):
    """Rank 0 to server: the first value of these pieces. Ignored where the key has a value already."""

    request: int
    key: KeyId
    pieces: tuple[Piece, ...]


class Write(Message, frozen=True):
    """Driver to server: keep these pieces of write number `write` ready; Commit will make them the value. Answered
    with Done. A later number replaces an earlier one."""

    request: int
    key: KeyId
    pieces: tuple[Piece, ...]
    write: int


class Commit(Message, frozen=True):
    """Driver to keeper, keeper to the key's servers: after round `round`, which the keeper names, make write number
    `write` of `writer` the value. Each server answers the writer with Done; again, if it is asked again."""

    request: int
    key: KeyId
    writer: Incarnation
    write: int
    round: int = -1


class Attach(Message, frozen=True):
    """Worker to keeper: I begin to use this key; at which clock do I start? Done's detail is the clock. The answer
    waits for the first value, so that no push can come before it. Then to the key's other servers, with that clock:
    count me from here on."""

    request: int
    key: KeyId
    clock: int = -1


class Push(Message, frozen=True):
    """Worker to server: part `part` of `parts` of my push number `clock` on this key. A push without pieces still
    counts: it is the notice that tells a server of a push that does not touch it. With `pull` not 0 the answer is
    Pulled, under that id, for the same pieces; else it is Ack."""

    key: KeyId
    clock: int
    since: int
    part: int
    parts: int
    pieces: tuple[Piece, ...]
    pull: int = 0
    hyper: dict[str, float] | None = None


class Ack(Message, frozen=True):
    """Server to worker: everything of your push `clock` on this key that is mine to hold is applied, and all before
    it (error: it was refused, and changed nothing)."""

    key: KeyId
    clock: int
    error: str = ""


class Pull(Message, frozen=True):
    """Worker to server: read these pieces as they are after my first `clock` pushes."""

    pull: int
    key: KeyId
    clock: int
    pieces: tuple[Piece, ...]


class Read(Message, frozen=True):
    """Driver to keeper, keeper to the key's servers: send `reader` these pieces as they are after round `round`, which
    the keeper names: its newest. The answer is Pulled; pieces that another server holds are passed over."""

    pull: int
    key: KeyId
    reader: Incarnation
    pieces: tuple[Piece, ...]
    round: int = -1


class Pulled(Message, frozen=True):
    """Server to worker: some pieces of your pull, and that your first `clock` pushes are applied to them. `pins` are
    what the server keeps unchanged until told by Release; it has none where bytes were copied into the frame."""

    pull: int
    key: KeyId
    clock: int
    version: int
    pieces: tuple[Piece, ...]
    pins: tuple[int, ...] = ()
    error: str = ""


class Release(Message, frozen=True):
    """Worker to server: I have read what these pins kept."""

    pins: tuple[int, ...]


class Hold(Message, frozen=True):
    """Worker or driver to server, first on a new link: of the pins of the old one I still read these, and no others."""

    pins: tuple[int, ...]


# --- between servers ------------------------------------------------------------------------------------------------


class Staged(Message, frozen=True):
    """Server to keeper: in this generation I hold all pieces of round `round` from these workers, and every live
    worker is among them."""

    key: KeyId
    round: int
    term: int
    number: int
    members: tuple[Incarnation, ...]


class Close(Message, frozen=True):
    """Keeper to servers: round `round` is closed with exactly these members."""

    key: KeyId
    round: int
    members: tuple[Incarnation, ...]


# --- looking --------------------------------------------------------------------------------------------------------


class Inspect(Message, frozen=True):
    """Anyone to any node: tell me about yourself. Done's detail is a plain dictionary; with `key` not 0 it is what
    the asker's next answer on that key waits for, in words."""

    request: int
    key: KeyId = KeyId(0)


class Dump(Message, frozen=True):
    """Worker or driver to server: array number `part` of what one slot is made of, to be saved. The answer is
    Dumped."""

    request: int
    key: KeyId
    slot: int
    part: int


class Dumped(Message, frozen=True):
    """Server to whoever asked: the names and dtypes of all arrays of the slot, what else is needed to read them back,
    and as data the one array that was asked for."""

    request: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    meta: dict[str, Any]


class Restore(Message, frozen=True):
    """Worker or driver to server: array `name` of what this slot is to become. Answered with Done; the last one makes
    it so."""

    request: int
    key: KeyId
    slot: int
    name: str
    dtype: str
    meta: dict[str, Any]
    is_last: bool


AnyMessage = (
    Join
    | Membership
    | Abort
    | Declare
    | Lookup
    | Declared
    | Forget
    | Place
    | Placed
    | Done
    | Refused
    | Init
    | Write
    | Commit
    | Attach
    | Push
    | Ack
    | Pull
    | Read
    | Pulled
    | Release
    | Hold
    | Staged
    | Close
    | Inspect
    | Dump
    | Dumped
    | Restore
)
