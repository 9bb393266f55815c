"""What must hold when an explored run has come to rest: nobody waits, nothing is kept that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windlass._wire import messages as m
from windlass.server.content import DenseContent
from windlass.server.held import inspect
from windlass.testing.leases import lease_problems
from windlass.types import MANAGER, Array, KeyId

if TYPE_CHECKING:
    from windlass.testing.world import World


def at_rest(world: World) -> str:
    """What is left over, in words; empty when nothing is."""
    left: list[str] = []
    for me, worker in world.workers.items():
        if me in world.net.dead:
            continue
        name, state = worker.log.name, worker.state
        if worker.program.error is not None and worker.log.departed is None:
            left.append(f"failed: {name}: {worker.program.error}")
        for op in state.ops.values():
            verb = "pull" if op.push is None else "push"
            whom = ", ".join(world.name(peer) for peer in sorted(op.waits_for_servers()))
            why = _why(world, me, op.key.id)
            left.append(f"stuck: {name}: {verb} {op.clock} of '{op.key.spec.name}' waits for {whom}{why}")
        for request in state.requests.values():
            what, whom = type(request.make(0)).__name__, world.name(request.peer or MANAGER)
            left.append(f"stuck: {name}: {what} to {whom} has no answer")
        if not worker.is_over and not left:
            left.append(f"stuck: {name}: its program waits, though nothing is under way")
        if worker.log.departed is None and worker.program.memory.live:
            left.append(f"leak: {name} keeps {len(worker.program.memory.live)} blocks of finished pushes")
    for server in world.servers.values():
        if server.me not in world.net.dead and server.me not in world.deposed:
            left += _left_on(world, server)
    if world.plan.leased is not None and not left:
        left += lease_problems(world, final_values(world))
    return "\n".join(left[:8])


def _left_on(world: World, server: object) -> list[str]:
    from windlass.server.state import ServerState

    assert isinstance(server, ServerState)
    left: list[str] = []
    name = world.name(server.me)
    num_slots = 0
    for shard in (shard for key in server.keys.values() for shard in key.shards.values()):
        num_slots += len(shard.slots)
        for slot in shard.slots.values():
            for waiting in slot.waiting:
                worker = world.workers.get(waiting.peer)
                if worker is not None and worker.log.departed is None:
                    left.append(f"stuck: {name}: a pull of {worker.log.name} on '{shard.spec.name}' is not answered")
    if len(server.freezer):
        left.append(f"leak: {name} keeps {len(server.freezer)} frozen shards that nobody saves")
    num_blocks = len(world.heaps[server.me].live)
    if not len(server.pins) and num_blocks != num_slots:
        left.append(f"leak: {name} keeps {num_blocks} blocks for {num_slots} slots")
    return left


def _why(world: World, me: object, key: KeyId) -> str:
    told = [
        f"{world.name(server.me)} says {inspect(server, me, m.Inspect(request=0, key=key))}"  # type: ignore[arg-type]
        for server in world.servers.values() if key in server.keys and server.me not in world.net.dead
    ]  # fmt: skip
    return f" ({'; '.join(told)})" if told else ""


def final_values(world: World) -> dict[str, Array]:
    """Each key as its servers hold it now; a key that nobody got to declare is left out."""
    values: dict[str, Array] = {}
    for shape in world.plan.keys:
        value = np.zeros(shape.size, np.int64)
        is_there = False
        placed = world.manager._keys.get(("", shape.name))
        for number, chain in enumerate(placed.charted.chains if placed is not None else ()):
            held = world.servers[chain[0]].keys.get(placed.id) if placed is not None and chain else None
            if held is None or number not in held.shards:
                continue
            is_there = True
            for slot in held.shards[number].slots.values():
                assert isinstance(slot.content, DenseContent)
                lo, dense = slot.number * shape.slot_size, slot.content.dense
                value[lo : lo + dense.size] = dense.block.array.view(np.int64)
        if is_there:
            values[shape.name] = value
    return values
