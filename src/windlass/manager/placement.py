"""Which chain of servers holds which shard: the least loaded by bytes, heads in runs, so that a view covers much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from windlass.types import Chain, Incarnation, KeySpec

SHARDS_PER_SERVER = 4
"""How finely a large key is cut, at most. More of them balance better when servers come and go; each costs every push
of its key a message."""

TABLE_SLOT_ROWS = 4096


@dataclass(slots=True)
class Load:
    """Bytes of values on each server: those of which it is the head, and all that it holds."""

    heads: dict[Incarnation, int] = field(default_factory=dict)
    held: dict[Incarnation, int] = field(default_factory=dict)

    def add(self, spec: KeySpec, chains: Sequence[Chain], *, times: int = 1) -> None:
        sizes = shard_bytes(spec, len(chains))
        for shard, chain in enumerate(chains):
            self.move(sizes[shard] * times, chain)

    def move(self, nbytes: int, chain: Chain) -> None:
        for position, server in enumerate(chain):
            if position == 0:
                self.heads[server] = self.heads.get(server, 0) + nbytes
            self.held[server] = self.held.get(server, 0) + nbytes


def place(
    spec: KeySpec, num_shards: int, servers: Sequence[Incarnation], load: Load, replicas: int
) -> tuple[Chain, ...]:
    """The chain of each shard of a new key.

    Heads are dealt so that every server ends as near to the same total as whole shards allow; equal servers are taken
    in the order given. Replicas go to whoever holds least. Where there are too few servers, chains are shorter.
    """
    dealt = dict.fromkeys(servers, 0)
    totals = {server: load.heads.get(server, 0) for server in servers}
    sizes = shard_bytes(spec, num_shards)
    for nbytes in sizes:
        lightest = min(servers, key=totals.__getitem__)
        totals[lightest] += nbytes
        dealt[lightest] += 1
    heads = [server for server in servers for _ in range(dealt[server])]
    held = {server: load.held.get(server, 0) for server in servers}
    for shard, head in enumerate(heads):
        held[head] += sizes[shard]
    return tuple(
        (head, *_followers(head, servers, held, nbytes, replicas)) for head, nbytes in zip(heads, sizes, strict=True)
    )


def _followers(
    head: Incarnation, servers: Sequence[Incarnation], held: dict[Incarnation, int], nbytes: int, replicas: int
) -> list[Incarnation]:
    others = sorted((server for server in servers if server != head), key=held.__getitem__)[:replicas]
    for server in others:
        held[server] += nbytes
    return others


def shard_bytes(spec: KeySpec, num_shards: int) -> list[int]:
    """Bytes of each shard's value. A zero-size one counts one byte: it costs its server messages. How large a table
    will be nobody knows: each of its slots counts as some thousand rows."""
    itemsize = spec.itemsize
    ranges = [spec.shard_range(shard, num_shards) for shard in range(num_shards)]
    if spec.table is not None:
        return [(hi - lo) * TABLE_SLOT_ROWS * itemsize for lo, hi in ranges]
    return [max(1, (hi - lo) * itemsize) for lo, hi in ranges]
