"""What a worker has under way: operations on keys, and requests to nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from windlass._wire import messages as m
from windlass.errors import DeletedKey, UsageError, WindlassError
from windlass.filters import Payload
from windlass.store.batch import Route
from windlass.types import Array, Block, Bytes, Chain, Incarnation, KeyId, KeySpec, Lease, Sequential


class Part(NamedTuple):
    """What one message carries to one shard: pieces, and a block for each; or what filters made of them."""

    pieces: tuple[m.Piece, ...]
    blocks: tuple[Block, ...]
    sealed: Sealed | None = None


@dataclass(frozen=True, slots=True)
class Sealed:
    """What filters made of a part, as it travels."""

    filtered: tuple[m.Filtered, ...]
    traffic: tuple[int, ...]
    residual: float
    payloads: tuple[Payload, ...]


Filtered = tuple[dict[int, list[Part]], list[Block]]
"""The parts of every shard, and the blocks to free when they are done with."""


class Encoding(Protocol):
    """A push on its way to its filters. They take it when it starts: so residuals follow the order of clocks, and what
    is refused before that has cost nothing."""

    def __call__(self) -> dict[int, list[Part]]:
        """What every shard gets. From now on it counts as sent."""

    def own(self) -> None:
        """The caller has its memory back: copy what is still needed of it."""


class Packing(Protocol):
    """What a push brings, that is still to be written to where its servers read it."""

    def fill(self, shard: int) -> None:
        """Write what this shard gets, now that it is to be sent."""

    def rest(self) -> object:
        """The caller has its memory back: write all that is left."""


class Reserving(Protocol):
    """What has to be set aside for a push before any of it is sent."""

    error: WindlassError | None

    def ask(self, clock: int) -> list[Request] | None:
        """What is to be asked now, maybe nothing; None when all is said. `clock` is the push's."""


class Filtering(Protocol):
    """The filters of one key, in this worker."""

    def in_full(self, part: Part, digest: str, peer: Incarnation) -> Part:
        """The same with the ids that it only named: this peer has not got them."""

    def forget_peers(self) -> None:
        """The generation has changed."""

    def ask(self, peer: Incarnation, deposit: m.Deposit) -> None:
        """What is kept back is to be given to this peer, when it is so far."""

    def relink(self, peer: Incarnation) -> None:
        """The link to this peer is new."""

    def deposits(self) -> list[tuple[Incarnation, m.Deposited, tuple[Block, ...]]]:
        """What is due to be given, once; and to whom."""

    def take_back(self, residual: m.Residual, data: tuple[Bytes, ...]) -> None:
        """What was kept back when a checkpoint was saved."""

    def check(self, values: Array) -> None:
        """UsageError for what the filters will not take."""

    def dense(self, flat: Array, lo: int, pieces: dict[int, tuple[m.Piece, ...]]) -> Filtered: ...

    def rows(self, way: Route, pieces: dict[int, tuple[m.Piece, ...]], merged: Array) -> Filtered: ...

    def status(self) -> dict[str, Any]: ...

    def name_ids(self, way: Route, shards: Iterable[int]) -> tuple[dict[int, str], set[int]]: ...

    def miss(self, digest: str, peer: Incarnation) -> None: ...

    def open(self, pulled: m.Pulled, data: tuple[Bytes, ...], op: Op) -> tuple[Bytes, ...]:
        """What a filtered answer says: a buffer for each of its pieces. PeerError if it cannot be read."""



class Call(msgspec.Struct):
    """Effect: call this, in order with the other effects."""

    function: Callable[[], None]


class KeyInfo(msgspec.Struct, eq=False):
    """A key as this worker knows it. `clock` counts the own pushes that have started."""

    id: KeyId
    spec: KeySpec
    chains: list[Chain]
    clock: int = 0
    since: int = 0
    queue: deque[Op] = msgspec.field(default_factory=deque)
    open_pulls: int = 0
    unreleased: dict[Incarnation, list[int]] = msgspec.field(default_factory=dict)
    whole: dict[int, tuple[m.Piece, ...]] = msgspec.field(default_factory=dict)  # every piece, by shard
    is_sequential: bool = True
    size: int = 0
    itemsize: int = 0
    slot_size: int = 0
    num_slots: int = 1
    filtering: Filtering | None = None

    def __post_init__(self) -> None:
        self.is_sequential = isinstance(self.spec.consistency, Sequential)
        self.size, self.itemsize, self.slot_size = self.spec.size, self.spec.itemsize, self.spec.slot_size
        self.num_slots = self.spec.num_slots
        size = 0 if self.spec.table is not None else self.size  # of a table nothing is known
        cut = [(slot, 0, max(0, min(self.slot_size, size - slot * self.slot_size))) for slot in range(self.num_slots)]
        num_shards, num_slots = len(self.chains), self.num_slots
        self.whole = {  # by KeySpec.shard_slots
            shard: tuple(cut[shard * num_slots // num_shards : (shard + 1) * num_slots // num_shards])
            for shard in range(num_shards)
        }

    def head(self, shard: int) -> Incarnation | None:
        """Who speaks for this shard; None if it is lost."""
        chain = self.chains[shard]
        return chain[0] if chain else None

    def shard_of(self, slot: int) -> int:
        if slot >= self.num_slots:
            return 0
        return ((slot + 1) * len(self.chains) - 1) // self.num_slots  # as KeySpec.shard_of

    @property
    def heads(self) -> set[Incarnation]:
        return {chain[0] for chain in self.chains if chain}


class Op(msgspec.Struct, eq=False):
    """One push, pull or both on one key, from submission to completion.

    `push` holds the parts for every shard of the key (an empty one is a notice); `pull` the pieces wanted from each
    shard. With both, the pull rides on the push. `deliver` is called with each piece as it comes and must not raise;
    `finish` once, at the end, with None or the error.
    """

    key: KeyInfo
    push: dict[int, list[Part]] | None
    pull: dict[int, tuple[m.Piece, ...]] | None
    deliver: Callable[[m.Pulled, tuple[Bytes, ...], bool], None] | None
    finish: Callable[[WindlassError | None], None]
    hyper: dict[str, float] | None = None
    after: tuple[Any, ...] = ()  # what must be done first: anything with `is_done` and `error`
    completes: Lease | None = None
    encode: Encoding | None = None  # what `push` is to become when it starts
    packing: Packing | None = None  # of a table: what is written when it is sent
    room: Reserving | None = None  # of a table that may refuse it on one shard and not on another
    ids: dict[int, tuple[Block, ...]] | None = None  # of a table: those of every piece that is pulled
    digests: dict[int, str] = msgspec.field(default_factory=dict)  # of a table: what its shards are to call their ids
    known: set[int] = msgspec.field(default_factory=set)  # shards that are believed to have them
    ahead: int = 0  # how many more own pushes what is pulled is used after
    reads_newest: bool = False  # a driver's read, ordered by the keeper
    owner: object = None  # the task it belongs to
    asked_at: float = 0.0
    error: WindlassError | None = None  # what a server had against it; told when all have answered
    abandon: Callable[[], None] | None = None  # what was given to be filled is the caller's again
    number: int = 0
    clock: int = 0
    unacked: set[int] = msgspec.field(default_factory=set)  # shards
    unread: dict[int, set[m.Piece]] = msgspec.field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.unacked and not self.unread

    def filling(self, shard: int) -> list[Call]:
        """What comes before the first sending of what this shard gets."""
        return [] if self.packing is None else [Call(partial(self.packing.fill, shard))]

    def waits_for(self) -> set[int]:
        """The shards that have not answered all."""
        return self.unacked | set(self.unread)

    def waits_for_servers(self) -> set[Incarnation]:
        heads = (self.key.head(shard) for shard in self.waits_for())
        return {head for head in heads if head is not None}

    def pulls(self, shard: int) -> list[tuple[m.Pull, tuple[Block, ...]]]:
        """What asks this shard for what is not here yet."""
        assert self.pull is not None
        pieces, unread = self.pull[shard], self.unread[shard]
        ids = self.ids[shard] if self.ids is not None else ()
        digest = self.digests.get(shard, "")
        if len(unread) < len(pieces):  # some of it is here, or it is asked for twice
            left = [place for place, piece in enumerate(pieces) if piece in unread]
            ids = tuple([ids[place] for place in left]) if ids else ()
            digest = digest if len(left) == len(pieces) else ""
            pieces = tuple([pieces[place] for place in left])
        if digest and shard in self.known:
            ids = ()
        pull = m.Pull(
            pull=self.number,
            key=self.key.id,
            shard=shard,
            clock=self.clock,
            pieces=pieces,
            digest=digest,
            ahead=self.ahead,
        )
        return [(pull, ids)]

    def pushes(self, shard: int) -> list[tuple[m.Push, tuple[Block, ...]]]:
        """The messages of a push for this shard; the same ones when sent again."""
        assert self.push is not None
        parts = self.push[shard]
        return [(self._push(shard, number, len(parts), part), part.blocks) for number, part in enumerate(parts)]

    def _push(self, shard: int, number: int, num_parts: int, part: Part) -> m.Push:
        sealed = part.sealed
        return m.Push(
            key=self.key.id,
            shard=shard,
            clock=self.clock,
            since=self.key.since,
            part=number,
            parts=num_parts,
            pieces=part.pieces,
            pull=self.number if shard in self.unread else 0,
            hyper=self.hyper,
            completes=self.completes,
            filtered=sealed.filtered if sealed is not None else (),
            traffic=sealed.traffic if sealed is not None else (),
            residual=sealed.residual if sealed is not None else 0.0,
        )

    def disown(self) -> None:
        """The caller leaves before the end: what was borrowed of its memory is copied, should it be sent again, and
        what comes late does not go there."""
        if self.abandon is not None:
            self.abandon()
        if self.encode is not None:
            self.encode.own()
        if self.push is not None:
            self.push = {
                shard: [part._replace(blocks=tuple(_own(block) for block in part.blocks)) for part in parts]
                for shard, parts in self.push.items()
            }


def _own(block: Block) -> Block:
    return Block(block.array.copy()) if block.segment < 0 else block


class Heard(Protocol):
    """A task: whether somebody has been told of its error."""

    is_seen: bool


def give_up(task: Heard, ops: Iterable[Op]) -> None:
    """A call on several keys was refused for one of them, and its caller hears of it: these, of the others, will not
    be started, and their memory is free."""
    task.is_seen = True
    for op in ops:
        op.finish(UsageError("refused for another key of the same call"))


class Request(msgspec.Struct, eq=False):
    """One question to one node, or to whoever is the head of a shard; sent again if the link breaks or the shard moves,
    so it must be safe to repeat."""

    to: Incarnation | tuple[KeyInfo, int]
    make: Callable[[int], m.AnyMessage]
    finish: Callable[[m.AnyMessage | None, tuple[Bytes, ...], WindlassError | None], None]
    data: tuple[Block, ...] = ()
    answers: int = 1  # how many shards answer it
    number: int = 0
    asked_at: float = 0.0
    answered: set[Any] = msgspec.field(default_factory=set)

    @property
    def peer(self) -> Incarnation | None:
        """Whom to ask now; None if nobody is left."""
        if isinstance(self.to, tuple):
            key, shard = self.to
            return key.head(shard)
        return self.to


def refuse(request: Request, error: WindlassError) -> Call:
    """Tell whoever asked that there is no other answer."""
    return Call(partial(request.finish, None, (), error))


def finish(op: Op, error: WindlassError | None) -> Call:
    """Tell whoever started it that it has ended."""
    return Call(partial(op.finish, error))


def refusal(of: Incarnation | KeyInfo | tuple[KeyInfo, int], reason: str) -> UsageError:
    """What a server said, in full: one that has a key no more does not know its name."""
    key = of[0] if isinstance(of, tuple) else of
    if reason == m.DELETED and isinstance(key, KeyInfo):
        return deleted(key.spec.name)
    return UsageError(reason)


def deleted(name: str) -> UsageError:
    return DeletedKey(f"'{name}' was deleted; create it again")


def fits(pieces: tuple[m.Piece, ...], data: tuple[Bytes, ...], itemsize: int) -> bool:
    """Whether there is a buffer of the right length for each piece."""
    if len(pieces) == 1:  # the usual case
        return bool(data) and data[0].nbytes == (pieces[0][2] - pieces[0][1]) * itemsize
    expected = [(hi - lo) * itemsize for _, lo, hi in pieces]
    return expected == [part.nbytes for part in data[: len(pieces)]]


def only(pulled: m.Pulled, data: tuple[Bytes, ...], unread: set[m.Piece]) -> tuple[m.Pulled, tuple[Bytes, ...]]:
    """Those pieces of an answer that have not come before."""
    left = [place for place, piece in enumerate(pulled.pieces) if piece in unread]
    pieces = tuple(pulled.pieces[place] for place in left)
    return msgspec.structs.replace(pulled, pieces=pieces), tuple(data[place] for place in left if place < len(data))
