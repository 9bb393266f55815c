"""Asking the servers which batches of a workload are counted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from windlass._wire import messages as m
from windlass.consistency import Counted, common
from windlass.types import Incarnation, KeyId

NOT_HEAD = -1


@dataclass(slots=True)
class Inquiry:
    """One question to all servers, until everybody has answered. A batch is counted if it is on every shard of every
    key that it went to. `batches` are those that it is about; None: all that there may be."""

    ask: int
    workload: str
    keys: tuple[KeyId, ...]  # none: all that know of the workload
    batches: frozenset[int] | None
    _announced: dict[Incarnation, int] = field(default_factory=dict)  # how many reports each server said it makes
    _made: dict[Incarnation, int] = field(default_factory=dict)
    _shards: dict[KeyId, dict[int, Counted | None]] = field(default_factory=dict)
    _num_shards: dict[KeyId, int] = field(default_factory=dict)

    @property
    def message(self) -> m.Tally:
        return m.Tally(ask=self.ask, workload=self.workload, keys=self.keys)

    def hear(self, server: Incarnation, tallied: m.Tallied) -> None:
        if tallied.shard < 0:
            self._announced[server] = tallied.num_shards
            return
        self._made[server] = self._made.get(server, 0) + 1
        self._num_shards[tallied.key] = tallied.num_shards
        shards = self._shards.setdefault(tallied.key, {})
        if tallied.floor == NOT_HEAD:
            shards.setdefault(tallied.shard, None)
        else:
            shards[tallied.shard] = Counted(tallied.floor, tallied.above)

    def is_heard(self, servers: Collection[Incarnation]) -> bool:
        """Whether all of them have told all that they know."""
        return all(self._announced.get(one, -1) == self._made.get(one, 0) for one in servers)

    def is_answered(self, servers: Collection[Incarnation]) -> bool:
        """And whether it is enough. A shard that nobody speaks for at the moment is asked for again."""
        return self.is_heard(servers) and all(
            len(shards) == self._num_shards[key] and None not in shards.values()
            for key, shards in self._shards.items()
        )

    @property
    def counted(self) -> Counted:
        """What is on all of them."""
        return common([
            counted for shards in self._shards.values() for counted in shards.values() if counted is not None
        ])

    @property
    def seen(self) -> set[KeyId]:
        """The keys that somebody knows of."""
        return set(self._shards)
