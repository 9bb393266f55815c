"""Faults that are aimed: something happens to a node just before, or just after, it handles a certain kind of message.

Random faults seldom hit the few steps in which a rare message counts. An *aim* names a kind of message, "before" or
"after", and what happens then to whoever receives it:

    crash      it dies
    stop       it is stopped for a while; a server is taken for dead meanwhile
    part       it loses its link to the manager, which takes it for dead
    restart    it dies, and another of its kind joins at once; of a manager: its successor starts at once
    join       a worker or a server joins at that moment
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass.testing.faults import MAX_SERVERS, add_server, crash_server, depart, join, may_depart, may_lose
from windlass.types import MANAGER, Incarnation, Role

if TYPE_CHECKING:
    from windlass.testing.limits import Limits
    from windlass.testing.world import World

BEFORE, AFTER = "before", "after"
KINDS = (
    "Join", "Membership", "Declare", "Lookup", "Declared", "Place", "Placed", "Done", "Misplaced", "Init", "Attach",
    "Push", "Ack", "Pull", "Read", "Pulled", "Release", "Hold", "Staged", "Propose", "Close", "Replicate", "Replicated",
    "Ready", "Show", "ShowSlot", "Shown", "Recruited", "Settle", "Settled", "Drain", "Beat", "PassOn",
)  # fmt: skip
"""Every kind of message that flows in explored runs."""
RARE = (
    "Misplaced", "Release", "Release", "Staged", "Propose", "Propose", "Close", "Settle", "Drain",
    "PassOn",
)  # fmt: skip
"""Those of them that seldom come when their receiver may go: aimed at more often."""
NAMED = ("NeedIds", "NeedIds")
"""Those that come where keys have filters."""
LEASED = ("Take", "Granted", "Tally", "Tallied", "Detach", "Holding")
"""Those of leased work. They, and the next ones, are aimed at where a test asks for it."""
SAVED = ("Freeze", "Frozen", "Dump", "Dumped", "Thaw", "Deposit", "Deposited", "Scan", "Scanned", "NeedIds")
"""Those that come where somebody saves, or reads tables."""
PASSES = (0, 0, 0, 1, 3, 8)


@dataclass(slots=True)
class Aim:
    """`passes`: how many chances are let go by first."""

    kind: str
    moment: str
    what: str
    passes: int


def draw_aims(rng: random.Random, limits: Limits) -> list[Aim]:
    """What to aim at in this run. All of it need not happen: the message may not come, or its receiver be needed."""
    kinds = limits.kinds or (*KINDS, *RARE, *(NAMED if limits.filters else ()))
    return [
        Aim(rng.choice(kinds), rng.choice((BEFORE, AFTER)), rng.choice(limits.whats), rng.choice(PASSES))
        for _ in range(limits.aims)
    ]


def shoot(world: World, node: Incarnation, kind: str, moment: str) -> bool:
    """This node is about to handle such a message, or has just done so: do what is aimed at that, if it can be done."""
    for aim in world.aims:
        if aim.kind == kind and aim.moment == moment and _may(world, node, aim.what):
            if aim.passes:
                aim.passes -= 1
                continue
            world.aims.remove(aim)
            world.tell(f"*** {moment} {kind} comes to {world.name(node)}: {aim.what}")
            world.net.shots.aimed[kind, moment, aim.what] += 1
            _do(world, node, aim.what)
            return True
    return False


def _may(world: World, node: Incarnation, what: str) -> bool:
    """Whether this may happen to this node within what is promised."""
    if node in world.net.dead or node in world.away:
        return False
    if what == "join":
        return world.manager.generation.number > 0 and (world.has_seat or len(world.servers) < MAX_SERVERS)
    if node == MANAGER:
        return what != "part"
    if node in world.servers:
        may_go = node in may_lose(world)
        return may_go and (what != "restart" or len(world.servers) < MAX_SERVERS)
    if what == "stop":
        return world.workers[node].log.departed is None
    if world.workers[node].state.role is not Role.WORKER:
        return what == "crash"
    kind = "zombie" if what == "part" else "crash"
    return node in may_depart(world, kind) and (what != "restart" or world.has_seat)


def _do(world: World, node: Incarnation, what: str) -> None:
    if what == "join":
        can_add = len(world.servers) < MAX_SERVERS
        if can_add and (not world.has_seat or world.rng.random() < 0.5):
            add_server(world)
        else:
            join(world)
    elif node == MANAGER:
        if what == "stop":
            world.stop(node)
        else:
            world.net.shots.restarts += 1
            world.lose_manager(is_replaced=what == "restart")
    elif node in world.servers:
        if what in ("stop", "part"):
            world.depose(node, is_stopped=what == "stop")
        else:
            crash_server(world, node)
            if what == "restart":
                add_server(world)
    elif what == "stop":
        world.stop(node)
    elif world.workers[node].state.role is not Role.WORKER:
        world.workers[node].is_over = True
        world.net.kill(node)
    else:
        depart(world, node, "zombie" if what == "part" else "crash")
        if what == "restart":
            join(world)
