"""Every message that nodes exchange, in one place. docs/protocol.md gives their bytes.

A message names things; the bytes it speaks of travel beside it as *data*: one buffer per piece, in order. A *piece*
is `(slot, lo, hi)`: elements lo to hi of a slot, counted from the slot's own start. A *shard* is a run of a key's slots
that one chain of servers holds; the first of the chain is its head, and speaks for it.

Of a table, a piece is numbers lo to hi of the ids of one slot that the sender speaks of. What is pushed to it is one
buffer: the ids, and then their rows, each different id once. A pull of it comes with the ids as data.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from windlass._wire.leases import Granted as Granted
from windlass._wire.leases import Holding as Holding
from windlass._wire.leases import Loaded as Loaded
from windlass._wire.leases import Take as Take
from windlass._wire.leases import Tallied as Tallied
from windlass._wire.leases import Tally as Tally
from windlass._wire.leases import Waits as Waits
from windlass._wire.leases import Workload as Workload
from windlass._wire.looking import Deposit as Deposit
from windlass._wire.looking import Deposited as Deposited
from windlass._wire.looking import Dump as Dump
from windlass._wire.looking import Dumped as Dumped
from windlass._wire.looking import Freeze as Freeze
from windlass._wire.looking import Frost as Frost
from windlass._wire.looking import Frozen as Frozen
from windlass._wire.looking import Inspect as Inspect
from windlass._wire.looking import Residual as Residual
from windlass._wire.looking import Restore as Restore
from windlass._wire.looking import Saved as Saved
from windlass._wire.looking import Scan as Scan
from windlass._wire.looking import Scanned as Scanned
from windlass._wire.looking import Thaw as Thaw
from windlass._wire.message import Message as Message
from windlass.types import Chain, Incarnation, KeyId, KeySpec, Lease, Node, Role

Piece = tuple[int, int, int]
DELETED = "the key was deleted"
"""The reason for which a server refuses what names a key that it has no more."""


class Filtered(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What filters made of numbers, beside its data: what they say of it, and the lengths of the buffers that lie in
    the data one after the other, each at a multiple of 8 bytes."""

    meta: dict[str, Any]
    lengths: tuple[int, ...]


# --- joining, and who is here ---------------------------------------------------------------------------------------


class Join(Message, frozen=True):
    """Node to manager, first on the link: let me in. `rank` is a wish; -1 takes the next free seat."""

    role: Role
    pid: int
    addresses: tuple[str, ...]
    rank: int = -1
    namespace: str = ""
    is_late: bool = False  # a worker that comes to a run under way: nobody waits for it where it is not yet


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From this generation on, this chain holds the shard; an empty one: nobody does, it is lost. The last of it brings
    `learner`, if there is one, up to date."""

    key: KeyId
    shard: int
    chain: Chain
    learner: Incarnation = Incarnation(0)
    is_settled: bool = False  # the old head has paused: the new one may speak at once


class Membership(Message, frozen=True):
    """Manager to every node: the generation, its members, and the shards that have moved since the one before. A node
    acts on nothing else. `dead` are those whose end is certain; others who are missing may only have been silent."""

    term: int
    number: int
    nodes: tuple[Node, ...]
    reason: str
    moves: tuple[Move, ...] = ()
    dead: tuple[Incarnation, ...] = ()
    checkpoint: str = ""  # where the last complete one is that the manager was told of


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
    namespace: str = ""


class Declared(Message, frozen=True):
    """Manager to worker: the key's number and the chain of each shard, as of this generation."""

    request: int
    key: KeyId
    spec: KeySpec
    chains: tuple[Chain, ...]
    term: int = 0
    number: int = 0


class Forget(Message, frozen=True):
    """Worker to manager, manager to servers: delete the key. With `key` not 0, only that declaration of it."""

    request: int
    name: str
    key: KeyId = KeyId(0)
    namespace: str = ""


class Place(Message, frozen=True):
    """Manager to server: you hold some shards of this key. Safe to repeat."""

    key: KeyId
    spec: KeySpec
    chains: tuple[Chain, ...]


class Placed(Message, frozen=True):
    """Server to manager: the key's shards are ready (error: they cannot be made)."""

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


class Misplaced(Message, frozen=True):
    """Server to anyone: I do not hold this shard, in the generation that I know of. Ask its head, in a moment."""

    key: KeyId
    shard: int


# --- the data path --------------------------------------------------------------------------------------------------


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
    then attaches with that clock is level with it, and nobody waits for what it has not pushed."""

    request: int
    key: KeyId
    shard: int
    clock: int = -1


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


# --- between servers ------------------------------------------------------------------------------------------------


class Staged(Message, frozen=True):
    """Head to keeper: in this generation the shard has all pieces of round `round` from these workers, and every live
    worker is among them. With `error`, it cannot take them, and says why."""

    key: KeyId
    shard: int
    round: int
    term: int
    number: int
    members: tuple[Incarnation, ...]
    error: str = ""


class Close(Message, frozen=True):
    """Keeper to the head of another shard: round `round` is closed with exactly these members. With `error`, it is
    refused: some shard cannot take it, and none does."""

    key: KeyId
    shard: int
    round: int
    members: tuple[Incarnation, ...]
    error: str = ""


class Kind(Enum):
    """What an entry of a shard's log does."""

    ROUND = "round"  # reduced pieces, applied once: round `clock` of `members`
    PUSH = "push"  # the same: part `part` of `parts` of push `clock` of `who`
    FIRST = "first"  # pieces of the first value
    WRITE = "write"  # pieces that the driver set
    START = "start"  # `who` is counted from `clock` on
    REST = "rest"  # `who` is not waited for until it starts again
    RESTORE = "restore"  # one slot becomes what `meta` and the arrays `names` say


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one entry is, beside its data."""

    kind: Kind
    clock: int = 0
    who: Incarnation = Incarnation(0)
    part: int = 0
    parts: int = 1
    members: tuple[Incarnation, ...] = ()
    hyper: dict[str, float] | None = None
    error: str = ""
    names: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    meta: dict[str, Any] | None = None
    leases: tuple[Lease, ...] = ()  # what it completes
    elements: tuple[int, ...] = ()  # of a round or push: how many elements of the shard each of those in it gave
    now: float = 0.0  # of a round, a push or a write to a table: when, by the time of the shard
    count: int = -1  # as in Restore
    is_refused: bool = False  # of a round: as Close says, for this `error`


class Replicate(Message, frozen=True):
    """To the next of a shard's chain: part `part` of entry `index` of its log; the last one says what the entry is.
    Accepted only from one's own predecessor, and only in order. `pins` as in Pulled."""

    key: KeyId
    shard: int
    index: int
    part: int
    pieces: tuple[Piece, ...]
    entry: LogEntry | None = None
    pins: tuple[int, ...] = ()


class Replicated(Message, frozen=True):
    """Back up the chain: I, and all after me, have the log up to `index`. With `resumes`: and send me what follows."""

    key: KeyId
    shard: int
    index: int
    resumes: bool = False


class Ready(Message, frozen=True):
    """Learner to the last of the chain: show me the shard, from the beginning. The generation is one that made it the
    learner: whoever was told to stop, and then to learn again, must know of both before it is shown anything."""

    key: KeyId
    shard: int
    term: int = 0
    number: int = 0


class Show(Message, frozen=True):
    """To the learner: what a shard counts, after entry `index` of its log. Its slots follow, and its entries. `lesson`
    numbers the attempts: what belongs to an earlier one is void."""

    key: KeyId
    shard: int
    lesson: int
    index: int
    counts: dict[str, Any]


class ShowSlot(Message, frozen=True):
    """To the learner: array `name` of a slot as it is after entry `index`; the last one completes it. An array that is
    too long for one message comes in several, one after the other; `part` counts them all. `pins` as in Pulled."""

    key: KeyId
    shard: int
    lesson: int
    slot: int
    index: int
    name: str
    dtype: str
    is_last: bool
    meta: dict[str, Any]
    pins: tuple[int, ...] = ()
    part: int = 0


class Shown(Message, frozen=True):
    """To the learner: that was all. And its answer: I have it. From then on the chain waits for it."""

    key: KeyId
    shard: int
    lesson: int
    is_answer: bool = False


class Recruited(Message, frozen=True):
    """The last of a chain to the manager, in this generation: the learner has all that the chain has, and the chain
    waits for it."""

    key: KeyId
    shard: int
    learner: Incarnation
    term: int
    number: int


class Settle(Message, frozen=True):
    """Manager to the head of a shard: pause, until a generation tells who goes on."""

    key: KeyId
    shard: int


class Settled(Message, frozen=True):
    """The answer, in this generation: I speak for the shard no more, and all of its chain have all of its log."""

    key: KeyId
    shard: int
    term: int
    number: int


class Drain(Message, frozen=True):
    """Driver to manager, or server to manager about itself: move everything away from this server, then let it go."""

    request: int
    server: Incarnation


class Beat(Message, frozen=True):
    """Server to server, and to the manager: I am here, and know of this generation. `sent` is the sender's clock, and
    comes back in the answer. To the manager: members that I have not been able to reach for a lease, and `echo`: its
    clock when it last answered me."""

    sent: float
    is_answer: bool = False
    term: int = 0
    number: int = 0
    unreachable: tuple[Incarnation, ...] = ()
    echo: float = -1.0


class PassOn(Message, frozen=True):
    """Server to manager: tell `peer` this, for I cannot reach it. And manager to server: `peer` says this."""

    peer: Incarnation
    message: Staged | Close | Read | Commit


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
    | Misplaced
    | Init
    | Write
    | Commit
    | Attach
    | Detach
    | Push
    | NeedIds
    | Ack
    | Pull
    | Read
    | Pulled
    | Release
    | Hold
    | Staged
    | Close
    | Replicate
    | Replicated
    | Ready
    | Show
    | ShowSlot
    | Shown
    | Recruited
    | Settle
    | Settled
    | Drain
    | Beat
    | PassOn
    | Take
    | Holding
    | Granted
    | Tally
    | Tallied
    | Inspect
    | Freeze
    | Frozen
    | Thaw
    | Dump
    | Dumped
    | Restore
    | Deposit
    | Deposited
    | Residual
    | Scan
    | Scanned
    | Saved
    | Loaded
)
