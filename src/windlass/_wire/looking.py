"""The messages of those who look at what servers hold, save it, and bring it back."""

from __future__ import annotations

from enum import Enum
from typing import Any

from windlass._wire.message import Message
from windlass.types import Incarnation, KeyId


class Inspect(Message, frozen=True):
    """Anyone to any node: tell me about yourself. Done's detail is a plain dictionary; with `key` not 0 it is what
    the asker's next answer on that key waits for, in words. `with_counts`: a server also says, shard by shard, what it
    has counted of every incarnation."""

    request: int
    key: KeyId = KeyId(0)
    with_counts: bool = False


class Freeze(Message, frozen=True):
    """Worker or driver to the head of a shard: keep it for me, as snapshot `snapshot`, as it is after round `round`; a
    shard of a bounded or eventual key as it is now. With a round of None, keep nothing, only tell. The answer is
    Frozen, at once; asked again for a round that is still to come, it tells whether that has come."""

    request: int
    key: KeyId
    shard: int
    snapshot: int
    round: int | None = None


class Frost(Enum):
    """What has become of a Freeze."""

    FROZEN = "frozen"
    AHEAD = "ahead"  # the round is still to come
    MISSED = "missed"  # it has gone by
    EMPTY = "empty"  # the key has no first value yet


class Frozen(Message, frozen=True):
    """Head to whoever saves: how the shard is kept, and after how many updates: then, if it is frozen, else now."""

    request: int
    frost: Frost
    count: int


class Thaw(Message, frozen=True):
    """Whoever saves to servers: I need nothing more of my snapshots up to this one."""

    snapshot: int


class Dump(Message, frozen=True):
    """Whoever saves to head: array number `part` of what one slot was made of, in this snapshot. The answer is Dumped.
    After its last array nothing is kept of the slot any more."""

    request: int
    key: KeyId
    slot: int
    part: int
    snapshot: int = 0


class Dumped(Message, frozen=True):
    """Server to whoever asked: the names and dtypes of all arrays of the slot, what else is needed to read them back,
    and as data the one array that was asked for. Without names: it is not kept here any more. `pins` as in Pulled."""

    request: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    meta: dict[str, Any]
    pins: tuple[int, ...] = ()


class Restore(Message, frozen=True):
    """Worker or driver to server: array `name` of what this slot is to become, or a stretch of it; they are numbered
    by `part`. Answered with Done; the last one makes it so. `count` is how many updates the key had taken (-1: not
    known), and the shard counts on from there. The slot after the last is what workers had kept back."""

    request: int
    key: KeyId
    slot: int
    name: str
    dtype: str
    meta: dict[str, Any]
    is_last: bool
    count: int = -1
    part: int = 0


class Deposit(Message, frozen=True):
    """Head of a key's first shard to worker: what have your filters kept back, after push `clock` of the key (-1: as it
    is now)? It is for this snapshot of `saver`. Answered with Deposited, when it is so far, once for each `attempt`."""

    key: KeyId
    saver: Incarnation
    snapshot: int
    clock: int
    attempt: int = 0


class Deposited(Message, frozen=True):
    """Worker to head: array `name` of it, or a stretch of one, as data; part `part` of `parts`. Or that push has gone
    by."""

    key: KeyId
    saver: Incarnation
    snapshot: int
    is_missed: bool = False
    name: str = ""
    dtype: str = ""
    meta: dict[str, Any] = {}
    part: int = 0
    parts: int = 1
    attempt: int = 0


class Residual(Message, frozen=True):
    """Head to worker: a checkpoint was loaded in which your rank had kept this back, as in Deposited."""

    key: KeyId
    name: str
    dtype: str
    meta: dict[str, Any]
    part: int
    parts: int


class Scan(Message, frozen=True):
    """Anyone to the head of a table's shard: up to `limit` rows of one slot, those after the page that ended with
    `after`; with `span`, of ids from its first up to its second, rising. The answer is Scanned."""

    request: int
    key: KeyId
    shard: int
    slot: int
    limit: int
    after: int | None = None
    span: tuple[int, int] | None = None


class Scanned(Message, frozen=True):
    """Head to whoever asked: ids and rows, as data, and what to ask on with (None: that was all). `pins` as in
    Pulled."""

    request: int
    after: int | None
    pins: tuple[int, ...] = ()


class Saved(Message, frozen=True):
    """Whoever saved to the manager: this checkpoint is complete, or was loaded. Answered with Done."""

    request: int
    path: str
