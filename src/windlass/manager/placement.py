"""Which chain of servers holds which shard: the least loaded by bytes, heads in runs, so that a view covers much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from windlass.types import Chain, Incarnation, KeySpec

TOLERANCE = 1.1
"""How far above the mean the fullest server may be."""

LEAST_SHARDS = 4
"""Shards of a large key on each server, at least: what is moved at a time, and what a failure stops at a time."""

MANY_SLOTS = 20
"""Of shards of so many slots, one may have a slot more than another."""

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


@cache
def count_shards(num_slots: int, num_servers: int, replicas: int) -> int:
    """Into how many shards a key of so many slots is cut: the fewest, of about the same size, that lie evenly enough on
    these servers, on one less, and on any number up to twice as many, without being cut anew; if there is no such
    number, every slot is one. Each shard costs every push of its key a message."""

    def is_even(shards: int, count: int) -> bool:
        copies = shards * min(replicas + 1, count)
        return -(-copies // count) * count <= TOLERANCE * copies

    counts = range(max(1, num_servers - 1), 2 * num_servers + 1)
    for shards in range(LEAST_SHARDS * num_servers, num_slots):
        if num_slots % shards and num_slots < MANY_SLOTS * shards:
            continue  # some would be a slot larger than others, and that is much
        if all(is_even(shards, count) for count in counts):
            return shards
    return num_slots


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
    followers: dict[int, list[Incarnation]] = {}
    by_turns = sorted(range(num_shards), key=lambda shard: shard - heads.index(heads[shard]))
    for shard in by_turns:  # a shard of each head, then the next: nobody is left whom the last ones cannot choose
        followers[shard] = _followers(heads[shard], servers, held, sizes[shard], replicas)
    return tuple((head, *followers[shard]) for shard, head in enumerate(heads))


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
