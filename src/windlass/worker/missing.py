"""What a worker does when a server has not got a list of ids that it was only told the digest of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from windlass._wire import messages as m
from windlass._wire.effects import Effect
from windlass.types import Incarnation, KeyId
from windlass.worker.ops import Op

if TYPE_CHECKING:
    from windlass.worker.state import Call


class Sending(Protocol):
    """What is under way in a worker."""

    ops: dict[int, Op]
    pushing: dict[KeyId, dict[int, Op]]

    def send(self, op: Op, shard: int) -> list[Effect | Call]: ...

    def renumber(self, op: Op) -> None: ...


def send_in_full(worker: Sending, peer: Incarnation, need: m.NeedIds) -> list[Effect | Call]:
    """That push again, with its ids, and those after it, which were not admitted either; or that pull."""
    pull = worker.ops.get(need.pull)
    if pull is not None and pull.key.filtering is not None and need.shard in pull.unread:
        pull.known.discard(need.shard)
        pull.key.filtering.miss(need.digest, peer)
        return [*worker.send(pull, need.shard), *_ask_after(worker, pull, need.shard)]
    effects: list[Effect | Call] = []
    for op in list(worker.pushing.get(need.key, {}).values()):
        waits = need.shard in op.unacked and op.clock >= need.clock and op.key.head(need.shard) == peer
        if not waits or op.push is None or op.key.filtering is None:
            continue
        if op.clock == need.clock:
            parts = op.push[need.shard]
            if need.part < len(parts):
                parts[need.part] = op.key.filtering.in_full(parts[need.part], need.digest, peer)
        effects += worker.send(op, need.shard)
    return effects


def _ask_after(worker: Sending, pull: Op, shard: int) -> list[Effect | Call]:
    """Ask anew what was asked after this pull: the answers that are on their way are of an earlier moment than its own
    will be, and calls take effect in the order issued."""
    later = [
        op for op in worker.ops.values()
        if op.key is pull.key and op.push is None and op.number > pull.number and shard in op.unread
    ]  # fmt: skip
    effects: list[Effect | Call] = []
    for op in later:
        worker.renumber(op)
        for other in op.unread:
            effects += worker.send(op, other)
    return effects
