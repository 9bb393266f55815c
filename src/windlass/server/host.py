"""What the shards of one server share, and what those of one key do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass._wire import messages as m
from windlass.filters import IdLists
from windlass.server.pins import Pins
from windlass.server.shard_time import Clock
from windlass.types import Chain, Generation, Incarnation, Memory, Node

if TYPE_CHECKING:
    from windlass.server.freezing import Freezer


@dataclass(slots=True)
class Members:
    """The workers of the current generation, those of each namespace, those who came late, and the rank of everyone
    seen so far (the departed included)."""

    generation: Generation = field(default_factory=lambda: Generation(0, 0))
    live: dict[Incarnation, str] = field(default_factory=dict)
    ranks: dict[Incarnation, int] = field(default_factory=dict)
    late: set[Incarnation] = field(default_factory=set)
    crews: dict[str, dict[Incarnation, str]] = field(default_factory=dict)

    def update(self, generation: Generation, workers: Sequence[Node]) -> None:
        self.generation = generation
        self.live = {node.incarnation: node.name for node in workers}
        self.ranks |= {node.incarnation: node.rank for node in workers}
        self.late = {node.incarnation for node in workers if node.is_late}
        self.crews = {}
        for node in workers:
            self.crews.setdefault(node.namespace, {})[node.incarnation] = node.name

    def of(self, namespace: str) -> Mapping[Incarnation, str]:
        """The live workers of this namespace."""
        return self.crews.get(namespace, {})

    def rank(self, who: Incarnation) -> int:
        return self.ranks.get(who, 1 << 30)

    def name(self, who: Incarnation) -> str:
        return self.live.get(who) or f"a departed worker (rank {self.ranks.get(who, '?')})"


@dataclass(slots=True)
class Host:
    """What the shards of one server share."""

    me: Incarnation
    memory: Memory
    pins: Pins
    members: Members
    freezer: Freezer
    clock: Clock
    lists: IdLists
    local: Mapping[str, object]
    at_once_bytes: int


@dataclass(slots=True)
class Routes:
    """The chain of every shard of one key, as the generation has them."""

    chains: list[Chain]

    def head(self, shard: int) -> Incarnation | None:
        chain = self.chains[shard]
        return chain[0] if chain else None

    @property
    def keeper(self) -> Incarnation | None:
        return self.head(0)

    def heads(self) -> list[Incarnation]:
        return list(dict.fromkeys(chain[0] for chain in self.chains if chain))


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`join` is how this node presents itself to the manager. `local` holds reducers and updaters of this process
    that have no import path (an embedded store's lambdas)."""

    join: m.Join
    manager: tuple[str, ...]
    local: Mapping[str, object] = field(default_factory=dict)
    lease_seconds: float = 3.0
    id_list_bytes: int = 64 << 20
    """How much is kept of the lists of ids that workers name by their digests. Raise it if workers send theirs again
    and again."""
    at_once_bytes: int = 1 << 20
    """How much one event may touch beyond its first slot. Each slot that has to wait for its turn costs a little."""
    warmed: set[tuple[str, str, str]] = field(default_factory=set)
    """Kinds of keys whose kernels are loaded. Servers of one process may share it."""
    compiling: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while kernels are loaded, which may mean to compile them: who knows how can tell the user."""
