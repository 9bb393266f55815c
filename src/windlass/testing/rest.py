"""What must hold when an explored run has come to rest: nobody waits, nothing is kept that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from windlass._wire import messages as m
from windlass.server.content import Content, DenseContent
from windlass.server.held import AnyShard, inspect
from windlass.testing.calls import lay_out
from windlass.testing.leases import lease_problems
from windlass.testing.saving import residual_problems
from windlass.types import MANAGER, Array, Chain, Incarnation, KeyId

if TYPE_CHECKING:
    from windlass.testing.world import World


def at_rest(world: World) -> str:
    """What is left over, in words; empty when nothing is."""
    left: list[str] = [world.stalled] if world.stalled else []
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
        books = [calls.book for calls in worker.program.keys if calls.book is not None]
        left += [f"residual: {name}: {problem}" for book in books if (problem := book.problem())]
    for server in world.servers.values():
        if server.me not in world.net.dead and server.me not in world.deposed:
            left += _left_on(world, server)
    if not left:
        left += _unlike(world) + residual_problems(world)
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
        num_slots += sum(isinstance(slot.content, DenseContent) for slot in shard.slots.values())
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
        value = np.zeros(shape.size, shape.dtype)
        is_there = False
        for number, chain in enumerate(_chains(world, shape.name)):
            shard = _held(world, shape.name, number, chain[0]) if chain else None
            for slot in shard.slots.values() if shard is not None else ():
                is_there = True
                lay_out(shape, value, slot.number, slot.content.dump()[0])
        if is_there:
            values[shape.name] = value
    return values


def _chains(world: World, name: str) -> tuple[Chain, ...]:
    placed = world.manager.keys.find(name)
    return tuple(placed.charted.chains) if placed is not None else ()


def _held(world: World, name: str, number: int, me: Incarnation) -> AnyShard | None:
    placed = world.manager.keys.find(name)
    held = world.servers[me].keys.get(placed.id) if placed is not None else None
    return held.shards.get(number) if held is not None else None


def _unlike(world: World) -> list[str]:
    """Replicas that are not what their heads are, bit for bit."""
    left: list[str] = []
    for shape in world.plan.keys:
        for number, chain in enumerate(_chains(world, shape.name)):
            head, *others = [_held(world, shape.name, number, me) for me in chain] or [None]
            for me, other in zip(chain[1:], others, strict=True):
                if head is None or other is None or me in world.net.dead or chain[0] in world.net.dead:
                    continue
                who = f"{world.name(me)} and {world.name(chain[0])}"
                for number, slot in head.slots.items():
                    if not _is_same(slot.content, other.slots[number].content):
                        left.append(f"replica: {who} differ on '{shape.name}', slot {number}")
    return left


def _is_same(one: Content, other: Content) -> bool:
    arrays, meta = one.dump()
    others, other_meta = other.dump()
    same = arrays.keys() == others.keys() and meta == other_meta
    return same and all(np.array_equal(array, others[name]) for name, array in arrays.items())
