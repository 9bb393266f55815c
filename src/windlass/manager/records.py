"""What the manager writes down before it acts on it, and what can be read from that: its last generation, and every
key. Learners, settling and servers that are about to leave are not in it: a new manager begins those anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from windlass._wire.messages import Move
from windlass._wire.records import EpochDone, Record
from windlass.types import Chain, Incarnation, KeyId, KeySpec, Node


class Term(Record, frozen=True):
    """A manager has started. `next_key` is for a journal that was written anew, without the keys deleted before."""

    term: int
    next_key: KeyId = KeyId(1)


class NewKey(Record, frozen=True):
    """A key was declared; its servers were, or will be, told to hold it."""

    key: KeyId
    spec: KeySpec
    chains: tuple[Chain, ...]


class KeyPlaced(Record, frozen=True):
    """All of them hold it."""

    key: KeyId


class KeyDropped(Record, frozen=True):
    """A key was deleted; its servers were, or will be, told to."""

    key: KeyId


class Published(Record, frozen=True):
    """A generation, as it differs from the one before. `dead` are those of `left` whose end is certain."""

    number: int
    joined: tuple[Node, ...] = ()
    left: tuple[Incarnation, ...] = ()
    dead: tuple[Incarnation, ...] = ()
    moves: tuple[Move, ...] = ()


class Checkpointed(Record, frozen=True):
    """The last complete checkpoint is there."""

    path: str


NOBODY = Incarnation(0)

AnyRecord = Term | NewKey | KeyPlaced | KeyDropped | Published | EpochDone | Checkpointed


class KeyImage(msgspec.Struct):
    """`doubted` are shards that a server may still think it speaks for, though it was taken out of the chain: it had
    been silent, and nobody knows that it is dead."""

    spec: KeySpec
    chains: list[Chain]
    is_placed: bool = False
    doubted: set[int] = msgspec.field(default_factory=set)

    def move(self, move: Move, dead: Iterable[Incarnation]) -> None:
        head = self.chains[move.shard][:1]
        self.chains[move.shard] = move.chain
        if move.is_settled:
            self.doubted.discard(move.shard)
        elif head and head[0] not in move.chain and head[0] not in dead:
            self.doubted.add(move.shard)


class Image:
    """All that the records say together. `apply` takes them in their order."""

    def __init__(self, records: Iterable[AnyRecord] = ()) -> None:
        self.term = 0
        self.number = 0
        self.next_key = KeyId(1)
        self.nodes: dict[Incarnation, Node] = {}
        self.departed: dict[Incarnation, Node] = {}
        self.dead: set[Incarnation] = set()
        self.keys: dict[KeyId, KeyImage] = {}
        self.dropped: dict[KeyId, str] = {}
        self.epochs: dict[tuple[str, str], int] = {}  # done, by namespace and workload
        self.checkpoint = ""
        for record in records:
            self.apply(record)

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Term(term=term, next_key=next_key):
                self.term = term
                self.next_key = max(self.next_key, next_key)
            case NewKey(key=key, spec=spec, chains=chains):
                self.keys[key] = KeyImage(spec, list(chains))
                self.next_key = max(self.next_key, KeyId(key + 1))
            case KeyPlaced(key=key):
                self.keys[key].is_placed = True
            case KeyDropped(key=key):
                self.dropped[key] = self.keys.pop(key).spec.name
            case EpochDone(namespace=namespace, workload=workload, epochs=epochs):
                self.epochs[(namespace, workload)] = epochs
            case Published():
                self._publish(record)
            case Checkpointed(path=path):
                self.checkpoint = path

    def _publish(self, published: Published) -> None:
        self.number = published.number
        self.nodes |= {node.incarnation: node for node in published.joined}
        for who in published.left:
            self.departed[who] = self.nodes.pop(who)
        self.dead.update(published.dead)
        for move in published.moves:
            if move.key in self.keys:
                self.keys[move.key].move(move, self.dead)

    def records(self) -> Iterator[AnyRecord]:
        """As few records as say the same, but for keys that were deleted."""
        yield Term(term=self.term, next_key=self.next_key)
        for key, image in self.keys.items():
            yield NewKey(key=key, spec=image.spec, chains=tuple(image.chains))
            if image.is_placed:
                yield KeyPlaced(key=key)
        if self.number:
            everybody = (*self.departed.values(), *self.nodes.values())
            yield Published(number=self.number, joined=everybody, left=tuple(self.departed), dead=tuple(self.dead))
        for (namespace, workload), epochs in self.epochs.items():
            yield EpochDone(namespace=namespace, workload=workload, epochs=epochs)
        if self.checkpoint:
            yield Checkpointed(path=self.checkpoint)
        for key, image in self.keys.items():
            yield from _doubts(key, image, self.number)


def _doubts(key: KeyId, image: KeyImage, number: int) -> Iterator[AnyRecord]:
    """A shard is in doubt when somebody left it who was its head: say that of nobody in particular."""
    for shard in sorted(image.doubted):
        chain = image.chains[shard]
        before = Move(key=key, shard=shard, chain=(NOBODY, *chain), is_settled=True)
        yield Published(number=number, moves=(before,))
        yield Published(number=number, moves=(Move(key=key, shard=shard, chain=chain),))
