"""The messages between servers, and between them and the manager about chains: rounds, logs, learners, leases."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from windlass._wire.message import Message
from windlass._wire.pushing import Commit, Piece, Read
from windlass.types import Incarnation, KeyId, Lease


class Staged(Message, frozen=True):
    """Head to keeper: in this generation the shard has all pieces of round `round` from `members`, and every live
    worker is among them; and its chain has `draft` of it, which is of those who are `drafted`. With `error`, it cannot
    take them, and says why."""

    key: KeyId
    shard: int
    round: int
    term: int
    number: int
    members: tuple[Incarnation, ...]
    error: str = ""
    draft: int = 0
    drafted: tuple[Incarnation, ...] = ()


class Propose(Message, frozen=True):
    """Keeper to the head of a shard, in this generation: shards have drafts of round `round` of different members. Make
    one of exactly these, in place of `draft`."""

    key: KeyId
    shard: int
    round: int
    term: int
    number: int
    draft: int
    members: tuple[Incarnation, ...]


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

    ROUND = "round"  # reduced pieces, applied once: round `clock` of `members`; those of `draft`, if there is one
    DRAFT = "draft"  # reduced pieces, kept until round `clock` is closed, if it is with just these `members`
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
    draft: int = 0  # which of a round's drafts it is, or was made of
    skipped: tuple[int, ...] = ()  # of a round that failed: slots that took nothing of its draft
    request: int = 0  # of a start, a rest or a slot restored: under which number `who` asked for it


class Replicate(Message, frozen=True):
    """To the next of a shard's chain: part `part` of entry `index` of its log; the last one says what the entry is.
    Accepted only from one's own predecessor, and only in order. `pins` as in Pulled. What is sent from its first part
    again, the same entry or another, is another `attempt`: a sender's numbers rise."""

    key: KeyId
    shard: int
    index: int
    part: int
    pieces: tuple[Piece, ...]
    entry: LogEntry | None = None
    pins: tuple[int, ...] = ()
    attempt: int = 0


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
    """Manager to the head of a shard: pause, until a generation after this one tells who goes on."""

    key: KeyId
    shard: int
    term: int
    number: int


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
    clock when it last answered me. From the manager, which answers workers, too: `makers`, the servers that make room
    for a key, which may mean to compile; nobody is to wonder that they are silent."""

    sent: float
    is_answer: bool = False
    term: int = 0
    number: int = 0
    unreachable: tuple[Incarnation, ...] = ()
    echo: float = -1.0
    makers: tuple[Incarnation, ...] = ()


class PassOn(Message, frozen=True):
    """Server to manager: tell `peer` this, for I cannot reach it. And manager to server: `peer` says this."""

    peer: Incarnation
    message: Staged | Propose | Close | Read | Commit
