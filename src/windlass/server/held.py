"""A key of which a server holds some shards; and what may be said of them: nothing from the wire indexes unchecked."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Send
from windlass.server.arrival import ArrivalShard
from windlass.server.decoding import misfiltered
from windlass.server.freezing import Freezer
from windlass.server.host import Members, Routes
from windlass.server.log import Standing
from windlass.server.pins import Pins
from windlass.server.rows import TableContent
from windlass.server.sequential import SequentialShard
from windlass.server.shard import Shard
from windlass.types import MANAGER, SERVER, Bytes, Incarnation, KeyId, KeySpec, Node

AnyShard = SequentialShard | ArrivalShard
KEYED = frozenset((m.Pull, m.Reserve, m.Init, m.Write, m.Attach, m.Detach, m.Freeze, m.Dump, m.Restore, m.Scan))
"""What is asked of one shard."""
OF_SLOTS = frozenset((m.Dump, m.Restore))
OF_WORKERS = frozenset((m.Push, m.Pull, m.Reserve, m.Attach, m.Detach))
"""What only a live worker may send."""
OF_ANYBODY = frozenset((m.Release, m.Hold, m.Inspect))
"""What may still come of one who was one."""
WRITES = (m.Init, m.Write)


@dataclass(slots=True)
class HeldKey:
    """A key of which this server holds some shards, and where the others are."""

    spec: KeySpec
    routes: Routes
    shards: dict[int, AnyShard] = field(default_factory=dict)

    def of_slot(self, slot: int) -> AnyShard | None:
        return self.shards.get(self.spec.shard_of(slot, len(self.routes.chains)))

    def needs(self) -> set[Incarnation | None]:
        """Servers without whose word something here does not go on; None for one that is lost."""
        needed: set[Incarnation | None] = set()
        keeper = self.routes.keeper
        for shard in self.shards.values():
            log = shard.log
            needed.add(log.downstream or log.learner)
            if log.is_head:
                needed.add(keeper)
        return needed

    def describe(self, members: Members) -> dict[str, Any]:
        """What `status` shows of it: plain data."""
        shards = list(self.shards.values())
        slots = [slot for shard in shards for slot in shard.slots.values()]
        heads = [shard for shard in shards if shard.log.is_head]
        clocks = min(heads or shards, key=lambda shard: shard.version).clocks.applied if shards else {}
        return {
            "version": min((shard.version + shard.base for shard in heads or shards), default=0),
            "value_bytes": sum(slot.content.value_bytes for slot in slots),
            "state_bytes": sum(slot.content.state_bytes for slot in slots),
            "staged_bytes": sum(shard.staged_bytes for shard in shards),
            "slots": sum(len(shard.slots) for shard in heads),
            "replicas": sum(len(shard.slots) for shard in shards if not shard.log.is_head),
            "replicated_bytes": sum(shard.log.replicated_bytes for shard in heads),
            "replicated_bytes_per_update": sum(shard.log.bytes_per_update for shard in heads),
            "clocks": {members.name(who): clock for who, clock in clocks.items()},
            "waiting_pulls": sum(len(slot.waiting) for slot in slots),
        } | self._describe_rows(heads) | self._describe_filters(heads, members)

    def _describe_filters(self, heads: list[AnyShard], members: Members) -> dict[str, Any]:
        """Bytes before and after each filter, and the norm of what each worker has kept back; of the departed, what
        is lost."""
        if not self.spec.filters:
            return {}
        traffic = [sum(sizes) for sizes in zip(*(shard.traffic for shard in heads if shard.traffic), strict=True)]
        norms: dict[Incarnation, float] = {}
        for shard in heads:
            for who, norm in shard.residuals.items():
                norms[who] = max(norm, norms.get(who, 0.0))
        lost = [norm for who, norm in norms.items() if who not in members.live]
        return {
            "filters": [
                {"filter": rule.path, "before": before, "after": after}
                for rule, before, after in zip(self.spec.filters, traffic, traffic[1:], strict=False)
            ],
            "residual_norms": {members.name(who): norm for who, norm in norms.items() if who in members.live},
            "lost_residual_norm": math.sqrt(sum(norm * norm for norm in lost)),
        }

    def _describe_rows(self, heads: list[AnyShard]) -> dict[str, Any]:
        if self.spec.table is None:
            return {}
        contents = [slot.content for shard in heads for slot in shard.slots.values()]
        tables = [content.table for content in contents if isinstance(content, TableContent)]
        return {
            "rows": sum(table.num_rows for table in tables),
            "candidates": sum(table.num_candidates for table in tables),
            "table_bytes": sum(table.nbytes for table in tables),
        }

    def counts(self) -> dict[str, Any]:
        """What was counted here of every incarnation, shard by shard: plain data."""
        shards = {
            number: {
                "is_head": shard.log.is_head,
                "version": shard.version,
                "applied": dict(shard.clocks.applied),
                "counted": dict(shard.counted),
                "batches": shard.batches.dump(),
                "repeats": dict(shard.batches.repeats),
            }
            for number, shard in self.shards.items()
        }
        return {"id": next((shard.id for shard in self.shards.values()), 0), "counts": shards}


def is_parted(nodes: Mapping[Incarnation, Node], linked: Collection[Incarnation], peer: Incarnation) -> bool:
    """Whether this is a server of the generation to which there is no link that we have heard of."""
    return peer not in linked and peer in nodes and nodes[peer].role is SERVER


def refused(push: m.Push, problem: str) -> m.Ack | m.Pulled:
    """What the sender of a push that cannot be taken is told."""
    if push.pull:
        return m.Pulled(pull=push.pull, key=push.key, clock=push.clock, version=0, pieces=push.pieces, error=problem)
    return m.Ack(key=push.key, shard=push.shard, clock=push.clock, error=problem)


def learns_from(shard: Shard | None, teacher: Incarnation) -> bool:
    """Whether it is being shown to this server, by that one."""
    return shard is not None and shard.log.standing is Standing.LEARNER and shard.log.predecessor == teacher


def misfit(
    shard: Shard, pieces: tuple[m.Piece, ...], data: tuple[Bytes, ...] | None, *, is_read: bool = False
) -> str:
    """What is wrong with pieces that a peer named, if anything: nothing from the wire indexes memory unchecked. Where
    it reads, only a table's come with data."""
    if is_read and not shard.is_table:
        data = None
    if data is not None and len(data) != len(pieces):
        return f"{len(pieces)} pieces came with {len(data)} buffers"
    for position, (number, lo, hi) in enumerate(pieces):
        slot = shard.slots.get(number)
        if slot is None:
            return f"slot {number} of '{shard.spec.name}' is not in shard {shard.number}"
        problem = slot.content.misfit(lo, hi, data[position] if data is not None else None, is_read=is_read)
        if problem:
            return f"slot {number} of '{shard.spec.name}': {problem}"
    return ""


def mispushed(shard: Shard, push: m.Push, data: tuple[Bytes, ...]) -> str:
    """The same for a push. What filters made is looked at when it is read."""
    problem = misfiltered(push, data, is_table=shard.is_table, has_filters=shard.decoder is not None)
    if problem:
        return f"'{shard.spec.name}': {problem}"
    if not push.filtered:
        return misfit(shard, push.pieces, data)
    for number, lo, hi in push.pieces:
        slot = shard.slots.get(number)
        if slot is None:
            return f"slot {number} of '{shard.spec.name}' is not in shard {shard.number}"
        if not shard.is_table and (problem := slot.content.misfit(lo, hi, None, is_read=False)):
            return f"slot {number} of '{shard.spec.name}': {problem}"
    return ""


def misasked(shard: Shard, message: Any, data: tuple[Bytes, ...]) -> str:
    """The same for whatever else was asked of a shard."""
    if isinstance(message, m.Pull):
        if message.digest and not data and shard.decoder is not None:
            return ""  # until the ids are found
        return misfit(shard, message.pieces, data, is_read=True)
    if isinstance(message, m.Reserve):
        if not shard.may_refuse or isinstance(shard, SequentialShard):
            return f"'{shard.spec.name}' sets no room aside"
        return misfit(shard, message.pieces, data, is_read=True)
    if not isinstance(message, WRITES):
        return ""
    if shard.is_table and isinstance(message, m.Init):
        return f"'{shard.spec.name}' is a table: it has no first value"
    return misfit(shard, message.pieces, data)


def misread(key: HeldKey, read: m.Read) -> str:
    """The same for a read, which names everybody's pieces."""
    if len(read.ids) != (len(read.pieces) if key.spec.table is not None else 0):
        return f"{len(read.pieces)} pieces of '{key.spec.name}' came with {len(read.ids)} lists of ids"
    for position, piece in enumerate(read.pieces):
        if not 0 <= piece[0] < key.spec.num_slots:
            return f"'{key.spec.name}' has no slot {piece[0]}"
        shard = key.of_slot(piece[0])
        ids = (np.frombuffer(read.ids[position], np.uint8),) if read.ids else ()
        problem = misfit(shard, (piece,), ids, is_read=True) if shard is not None else ""
        if problem:
            return problem
    return ""


def tallied(tally: m.Tally, keys: Mapping[KeyId, HeldKey]) -> Iterator[tuple[AnyShard | None, Send]]:
    """What is counted on the shards here of the keys that a tally names, or of all that know of the workload; with the
    shard, if it speaks for itself and must not say what is not safe. The last one says how many there were."""
    shards = [shard for key in keys.values() for shard in key.shards.values()]
    if tally.keys:
        shards = [shard for shard in shards if shard.id in tally.keys]
    else:
        shards = [shard for shard in shards if tally.workload in shard.batches.workloads]
    for shard in shards:
        yield shard if shard.log.is_head else None, Send(MANAGER, shard.tally(tally))
    count = m.Tallied(ask=tally.ask, key=KeyId(0), shard=-1, num_shards=len(shards), floor=0, above=())
    yield None, Send(MANAGER, count)


def drop_absent(
    keys: Mapping[KeyId, HeldKey], absent: dict[Incarnation, float], linked: Collection[Incarnation], before: float
) -> None:
    """Those who have had no link since before then: what they have not committed they will not commit any more."""
    for who in [who for who, since in absent.items() if since < before]:
        del absent[who]
        for key in keys.values() if who not in linked else ():
            for shard in key.shards.values():
                shard.drop_writer(who)


class Looked(Protocol):
    keys: dict[KeyId, HeldKey]
    members: Members
    pins: Pins
    freezer: Freezer


def inspect(server: Looked, peer: Incarnation, asked: m.Inspect, trouble: str = "") -> Any:
    """What a server says of itself, or of what `peer` waits for on a key: plain data. `trouble` is whom it misses."""
    if asked.key:
        key = server.keys.get(asked.key)
        if key is None:
            return m.DELETED
        said = dict.fromkeys(shard.explain(peer) for shard in key.shards.values() if shard.log.is_head)
        trouble = trouble if said else ""
        return "; ".join([*said, *filter(None, [trouble])]) or f"'{key.spec.name}' has moved away from here"
    return {
        "generation": str(server.members.generation),
        "pins": len(server.pins),
        "frozen": len(server.freezer),
        "keys": {
            key.spec.full_name: key.describe(server.members) | (key.counts() if asked.with_counts else {})
            for key in server.keys.values()
        },
    }


def refusal(order: m.Read | m.Commit, problem: str) -> Send:
    """What whoever gave this order is told instead."""
    if isinstance(order, m.Commit):
        return Send(order.writer, m.Refused(request=order.request, is_usage=True, reason=problem))
    answer = m.Pulled(pull=order.pull, key=order.key, clock=0, version=0, pieces=order.pieces, error=problem)
    return Send(order.reader, answer)
