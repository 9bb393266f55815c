"""What goes wrong in an explored run: links break, workers die or are taken for dead, others join."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from windlass.types import MANAGER, Role

if TYPE_CHECKING:
    from windlass.testing.world import Limits, World


def draw_faults(rng: random.Random, limits: Limits) -> list[str]:
    """What will go wrong, in this order, if the run lasts long enough. A *zombie* is a worker whose link to the manager
    breaks: everybody else takes it for dead while it still talks to the servers."""
    faults = ["break"] * rng.randint(0, limits.breaks)
    faults += ["crash"] * rng.randint(0, limits.departures)
    faults += ["zombie"] * rng.randint(0, limits.zombies)
    faults += ["join"] * rng.randint(0, limits.joins)
    rng.shuffle(faults)
    return faults


def next_fault(world: World) -> None:
    """Do the next fault that can be done now; one that cannot waits for its moment."""
    kind = world.faults.pop()
    if kind == "break":
        done = _break(world)
    elif kind == "join":
        done = _join(world)
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


def _join(world: World) -> bool:
    if world.manager.generation.number == 0:
        return False
    world.tell("*** a worker joins")
    world.add_worker(is_joiner=True)
    world.net.shots.joins += 1
    return True


def _depart(world: World, kind: str) -> bool:
    there = [
        me for me, worker in world.workers.items()
        if worker.log.departed is None and worker.state.role is Role.WORKER and world.net.is_open(me, MANAGER)
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
