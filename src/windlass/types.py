"""The nouns that every part shares: plain data, no behaviour beyond checking itself.

Words are those of docs/concepts.md. A *value* is what a key holds; it is cut into *slots*, each at most
`chunk_bytes` long. A *shard* is a run of slots: what placement assigns to a chain of servers.
"""

from __future__ import annotations

import math
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, NewType, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from windlass.errors import UsageError

Incarnation = NewType("Incarnation", int)
"""A fresh number for every process that joins; a rank is a seat, an incarnation is who sits in it."""

KeyId = NewType("KeyId", int)
"""The manager's number for one declaration of a key; a key deleted and declared again has a new one."""

MANAGER = Incarnation(0)
"""The manager answers to this number, whichever process it is; its term tells one from the next."""

Chain = tuple[Incarnation, ...]
"""The servers that hold a shard: its head, then its replicas in the order in which updates reach them."""

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


MAX_CHUNK_BYTES = 32 << 20
"""The largest slot: its widest array, a float32 copy of a 16-bit value, still fits into one frame."""

FITTING_SLOTS = (48, 24, 12, 6, 4, 3, 2, 1)
"""How a value is cut where nobody says: into as many slots as it fills, or into a multiple of the first. They can be
shared out evenly among many numbers of servers."""
FITTING_CHUNK_BYTES = (3 << 18, 4 << 20)
"""From how much a slot is one, for each costs a round some work of its own; and up to how much."""

MAX_SLOTS = 1 << 16
RESERVED = "windlass/"
"""Names of keys that begin so are the store's own."""


class Role(StrEnum):
    MANAGER = "manager"
    SERVER = "server"
    WORKER = "worker"
    DRIVER = "driver"


SERVER, WORKER = Role.SERVER, Role.WORKER
"""By names of their own, because a member of an enum takes long to be found, and these are asked for all the time."""


class Generation(NamedTuple):
    """One membership. Ordered: a later term beats any number of an earlier one."""

    term: int
    number: int

    def __str__(self) -> str:
        return f"{self.term}.{self.number}"


NO_GENERATION = Generation(0, 0)
"""Before the first: everybody knows it, or a later one."""


class Sequential(msgspec.Struct, frozen=True, tag="sequential"):
    """A pull after n own pushes returns the value after exactly n rounds."""


class Bounded(msgspec.Struct, frozen=True, tag="bounded"):
    """A pull after n own pushes waits until every live worker's first n - delay pushes are in."""

    delay: int = 1

    def __post_init__(self) -> None:
        if type(self.delay) is not int or self.delay < 1:
            raise UsageError(
                f"Bounded(delay) expects a whole number of at least 1, got {self.delay!r}; Sequential() is delay 0"
            )


class Eventual(msgspec.Struct, frozen=True, tag="eventual"):
    """A pull never waits for another worker."""


Consistency = Sequential | Bounded | Eventual


def check_consistency(given: object) -> None:
    """Raise UsageError for anything that is not a consistency."""
    if not isinstance(given, Sequential | Bounded | Eventual):
        expected = "wl.Sequential(), wl.Bounded(delay) or wl.Eventual()"
        raise UsageError(f"consistency expects {expected}, got {given!r:.60}")


class Rule(msgspec.Struct, frozen=True):
    """How an updater or reducer is named on the wire: an import path ("package.module:Name", or a built-in's short
    name) and the plain values it is constructed with. Code never travels."""

    path: str
    config: dict[str, Any] = {}


STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        "float16",
        "float32",
        "float64",
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    )
} | {"bfloat16": np.dtype("uint16")}
"""The numpy dtype that holds each element type; bfloat16, which numpy lacks, travels and rests as its bits."""


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Batches of a workload, by their numbers, that a push completes: it counts only if none of them has been counted
    before."""

    workload: str
    numbers: tuple[int, ...]


class TableSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a table is declared with, beside what every key is: rows of `dim` elements, found by an id. Its ids are
    spread over `slots` by their hash."""

    dim: int
    init: Rule
    slots: int = 24
    admit_after: int = 1
    max_rows: int | None = None
    ttl_updates: int | None = None
    ttl_seconds: float | None = None
    max_bytes: int | None = None


class KeySpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One declaration of a key. Equal specs are the same declaration. The *elements* of a table are its rows; it has as
    many as were pushed to, so its shape is (0, dim). What follows from its fields is computed once."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    reduce: Rule
    update: Rule
    consistency: Consistency
    chunk_bytes: int
    priority: int = 0
    """On a busy link a key of higher priority travels first. One per key, so that its messages stay in order."""
    namespace: str = ""
    """Whose key it is: its name is one of this namespace, and only workers of it take part in its rounds."""
    table: TableSpec | None = None
    """None: it is dense."""
    filters: tuple[Rule, ...] = ()
    """What is done to pushes on their way, in order."""
    together: str = ""
    """Sequential keys of the same one are saved after the same round, however long a save waits for that: they are
    parts of one model."""

    def check(self) -> None:
        """Raise UsageError for a declaration that no server should try to hold."""
        if self.dtype not in STORAGE:
            raise UsageError(f"'{self.name}': expected a dtype among {', '.join(STORAGE)}, got {self.dtype!r:.40}")
        if any(length < 0 for length in self.shape):
            raise UsageError(f"'{self.name}': expected a shape without negative lengths, got {self.shape}")
        if not 1 <= self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise UsageError(f"'{self.name}': chunk_bytes expects 1 to {MAX_CHUNK_BYTES}, got {self.chunk_bytes}")
        if self.num_slots > MAX_SLOTS:
            raise UsageError(
                f"'{self.name}' of shape {self.shape} has {self.num_slots} slots, at most {MAX_SLOTS} are held; "
                "raise chunk_bytes, or split it into several keys"
            )

    @property
    def full_name(self) -> str:
        """As it is told where keys of several namespaces are named."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @cached_property
    def size(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def itemsize(self) -> int:
        """The bytes of an element; of a table's row."""
        width = 1 if self.table is None else self.table.dim
        return STORAGE[self.dtype].itemsize * width

    @cached_property
    def slot_size(self) -> int:
        """Elements in every slot but the last."""
        return max(1, self.chunk_bytes // self.itemsize)

    @cached_property
    def num_slots(self) -> int:
        """At least one, so that a zero-size key has a keeper and rounds like any other."""
        if self.table is not None:
            return self.table.slots
        return max(1, -(-self.size // self.slot_size))

    def slot_range(self, slot: int) -> tuple[int, int]:
        """The elements of a slot; nothing of a table's, where no two neighbours are in one slot."""
        if self.table is not None:
            return 0, 0
        slot_size = self.slot_size
        lo = slot * slot_size
        return lo, min(self.size, lo + slot_size)

    def shard_slots(self, shard: int, num_shards: int) -> range:
        """The slots of one of so many shards: as equal as whole slots allow."""
        num_slots = self.num_slots
        return range(shard * num_slots // num_shards, (shard + 1) * num_slots // num_shards)

    def shard_of(self, slot: int, num_shards: int) -> int:
        """The first, for the slot after the last: what workers keep back is saved as such."""
        num_slots = self.num_slots
        return ((slot + 1) * num_shards - 1) // num_slots if slot < num_slots else 0

    def shard_range(self, shard: int, num_shards: int) -> tuple[int, int]:
        """The elements of a shard; of a table, its slots."""
        slots = self.shard_slots(shard, num_shards)
        if self.table is not None:
            return slots.start, slots.stop
        slot_size = self.slot_size
        return slots.start * slot_size, min(self.size, slots.stop * slot_size)


def fitting_chunk_bytes(nbytes: int) -> int:
    """How large the slots of a value are where nobody says. It depends on nothing else, so that every worker, and a
    checkpoint that is loaded on another number of servers, come to the same."""
    least, most = FITTING_CHUNK_BYTES
    slots = next((slots for slots in FITTING_SLOTS if slots * least <= nbytes), 1)
    times = -(-nbytes // (slots * most)) or 1
    return -(-nbytes // (slots * times * 4096)) * 4096 or 4096


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One member of the cluster as the manager's generation names it."""

    name: str
    role: Role
    incarnation: Incarnation
    rank: int
    pid: int
    addresses: tuple[str, ...]
    state: str = "alive"
    namespace: str = ""
    is_late: bool = False
    """A worker that came to a run under way: on keys that were there before it, it counts once it uses them."""

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


class Block(msgspec.Struct, eq=False, gc=False):
    """Bytes with a known home. `segment` is -1 for private memory; else the block starts at `offset` in that
    shared segment of the process that owns it, and links to processes of this machine carry it by reference."""

    array: Bytes
    segment: int = -1
    offset: int = 0


class Memory(Protocol):
    """Where a node keeps what others may read. Not thread-safe: one owner."""

    def allocate(self, nbytes: int) -> Block: ...

    def free(self, block: Block) -> None: ...


class Heap:
    """Private memory: what an embedded store and a TCP-only node use. Freed blocks are kept for reuse, because
    fresh pages cost more than the transfer that fills them."""

    def __init__(self) -> None:
        self._free: dict[int, list[Block]] = {}

    def allocate(self, nbytes: int) -> Block:
        try:
            return self._free[nbytes].pop()
        except LookupError:
            return Block(np.empty(nbytes, np.uint8))

    def free(self, block: Block) -> None:
        self._free.setdefault(block.array.nbytes, []).append(block)
