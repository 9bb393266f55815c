"""What goes wrong in an explored run: links break, nodes die or are taken for dead, others join, the manager dies and
another takes its place."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from windlass._wire.effects import Received
from windlass._wire.messages import Drain
from windlass.types import MANAGER, Role

if TYPE_CHECKING:
    from windlass.testing.world import Limits, World

MAX_SERVERS = 6


def draw_faults(rng: random.Random, limits: Limits) -> list[str]:
    """What will go wrong, in this order, if the run lasts long enough. A *zombie* is a worker whose link to the manager
    breaks: everybody else takes it for dead while it still talks to the servers."""
    faults = ["break"] * rng.randint(0, limits.breaks)
    faults += ["crash"] * rng.randint(0, limits.departures)
    faults += ["zombie"] * rng.randint(0, limits.zombies)
    faults += ["join"] * rng.randint(0, limits.joins)
    faults += ["server"] * rng.randint(0, limits.crashes)
    faults += ["depose"] * rng.randint(0, limits.deposed)
    faults += ["add"] * rng.randint(0, limits.additions)
    faults += ["drain"] * rng.randint(0, limits.drains)
    faults += ["manager"] * (rng.randint(0, limits.restarts) if limits.restarts else 0)
    rng.shuffle(faults)
    return faults


def next_fault(world: World) -> None:
    """Do the next fault that can be done now; one that cannot waits for its moment."""
    kind = world.faults.pop()
    if kind == "break":
        done = _break(world)
    elif kind == "join":
        done = _join(world)
    elif kind == "add":
        done = _add_server(world)
    elif kind == "drain":
        done = _drain_server(world)
    elif kind == "manager":
        done = _lose_manager(world)
    elif kind in ("server", "depose"):
        done = _lose_server(world, kind)
    else:
        done = _depart(world, kind)
    if not done:
        world.faults.insert(0, kind)


def _break(world: World) -> bool:
    links = sorted((a, b) for a, b in world.net.open if 0 < a < b)
    loaded = [link for link in links if world.net.load(*link)]  # a break that loses something shows more
    if not links:
        return False
    one, other = world.rng.choice(loaded or links)
    world.tell(f"*** the link {world.name(one)} - {world.name(other)} breaks")
    world.net.disconnect(one, other, "cut")
    world.net.shots.breaks += 1
    return True


def _lose_manager(world: World) -> bool:
    if MANAGER in world.net.dead or world.manager.is_recovering:
        return False
    world.tell("*** the manager dies")
    world.net.shots.restarts += 1
    world.lose_manager()
    return True


def _join(world: World) -> bool:
    if world.manager.generation.number == 0:
        return False
    world.tell("*** a worker joins")
    world.add_worker(is_joiner=True)
    world.net.shots.joins += 1
    return True


def _add_server(world: World) -> bool:
    if world.manager.generation.number == 0 or len(world.servers) >= MAX_SERVERS:
        return False
    world.tell("*** a server joins")
    world.add_server()
    world.net.shots.additions += 1
    return True


def _drain_server(world: World) -> bool:
    there = [
        me for me in world.servers
        if me in world.manager.nodes and me not in world.net.dead and me not in world.deposed | world.leaving
    ]  # fmt: skip
    if len(there) < 2 or MANAGER in world.net.dead:
        return False
    me = world.rng.choice(there)
    world.tell(f"*** {world.name(me)} is asked to leave")
    world.leaving.add(me)
    world.net.put(world.net.box(MANAGER, "operator"), Received(MANAGER, Drain(request=0, server=me)))
    world.net.shots.drains += 1
    return True


def _lose_server(world: World, kind: str) -> bool:
    """A server dies; or only the manager thinks so, because they cannot reach each other, or the server is stopped."""
    there = [me for me in world.servers if me not in world.net.dead | world.deposed | world.leaving]
    keys = world.manager.chart.keys.values()
    held = [chain for key in keys for chain in (*key.chains, *key.targets.values())]  # now, or in a moment
    chains = [tuple(me for me in chain if me in there) for chain in held]
    may_go = [me for me in there if chains and not any(chain == (me,) for chain in chains)]
    unnoticed = [me for me in world.servers if me in world.net.dead | world.deposed and me in world.manager.nodes]
    if len(there) < 2 or not may_go or len(unnoticed) >= world.manager.config.replicas:
        return False  # so many may go at the same time, and no more
    me = world.rng.choice(may_go)
    world.tell(f"*** {world.name(me)} is lost ({kind})")
    if kind == "server":
        world.net.kill(me)
        world.net.shots.crashes += 1
    else:
        world.deposed.add(me)
        world.part(me, is_stopped=world.rng.random() < 0.5)
        world.net.shots.deposed += 1
    return True


def _depart(world: World, kind: str) -> bool:
    there = [
        me
        for me, worker in world.workers.items()
        if worker.log.departed is None
        and worker.state.role is Role.WORKER
        and (world.net.is_open(me, MANAGER) or (kind == "crash" and MANAGER in world.net.dead))
    ]
    may_go = [me for me in there if world.workers[me].program.is_ready]
    if len(there) < 2 or not may_go:
        return False
    talking = [me for me in may_go if world.workers[me].state.ops]
    me = world.rng.choice(talking or may_go)
    worker = world.workers[me]
    worker.log.departed = float(world.now)
    world.tell(f"*** {world.name(me)} departs ({kind})")
    if kind == "crash":
        worker.is_over = True
        world.net.kill(me)
        world.net.shots.departures += 1
    else:
        world.net.disconnect(me, MANAGER, "cut")
        world.net.shots.zombies += 1
    return True
