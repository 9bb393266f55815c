"""Every message that nodes exchange, in one place. docs/protocol.md gives their bytes.

Messages of one subject lie together: members and keys here, pushes and pulls in pushing.py, what servers say to each
other in chains.py, leased work in leases.py, looking, saving and loading in looking.py.

A message names things; the bytes it speaks of travel beside it as *data*: one buffer per piece, in order. A *piece*
is `(slot, lo, hi)`: elements lo to hi of a slot, counted from the slot's own start. A *shard* is a run of a key's slots
that one chain of servers holds; the first of the chain is its head, and speaks for it.

Of a table, a piece is numbers lo to hi of the ids of one slot that the sender speaks of. What is pushed to it is one
buffer: the ids, and then their rows, each different id once. A pull of it comes with the ids as data.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._wire.chains import Beat as Beat
from windlass._wire.chains import Close as Close
from windlass._wire.chains import Drain as Drain
from windlass._wire.chains import Kind as Kind
from windlass._wire.chains import LogEntry as LogEntry
from windlass._wire.chains import PassOn as PassOn
from windlass._wire.chains import Propose as Propose
from windlass._wire.chains import Ready as Ready
from windlass._wire.chains import Recruited as Recruited
from windlass._wire.chains import Replicate as Replicate
from windlass._wire.chains import Replicated as Replicated
from windlass._wire.chains import Settle as Settle
from windlass._wire.chains import Settled as Settled
from windlass._wire.chains import Show as Show
from windlass._wire.chains import Shown as Shown
from windlass._wire.chains import ShowSlot as ShowSlot
from windlass._wire.chains import Staged as Staged
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
from windlass._wire.pushing import Ack as Ack
from windlass._wire.pushing import Attach as Attach
from windlass._wire.pushing import Commit as Commit
from windlass._wire.pushing import Detach as Detach
from windlass._wire.pushing import Filtered as Filtered
from windlass._wire.pushing import Hold as Hold
from windlass._wire.pushing import Init as Init
from windlass._wire.pushing import NeedIds as NeedIds
from windlass._wire.pushing import Piece as Piece
from windlass._wire.pushing import Pull as Pull
from windlass._wire.pushing import Pulled as Pulled
from windlass._wire.pushing import Push as Push
from windlass._wire.pushing import Read as Read
from windlass._wire.pushing import Release as Release
from windlass._wire.pushing import Reserve as Reserve
from windlass._wire.pushing import Write as Write
from windlass.types import Chain, Incarnation, KeyId, KeySpec, Node, Role

DELETED = "the key was deleted"
"""The reason for which a server refuses what names a key that it has no more."""


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
    | Reserve
    | NeedIds
    | Ack
    | Pull
    | Read
    | Pulled
    | Release
    | Hold
    | Staged
    | Propose
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
