"""Between whom nothing gets through, in an explored run, and for how long.

A *wall* keeps some nodes from others: their links break, and cannot be opened. A *cut* is one between two servers that
both reach the manager: it must not stop anybody for long, so it stays until nobody waits any more. If somebody still
waits after so much time that others should have found a way around it, that is told, and a fault. A *silent* cut breaks
no link: what is sent comes when the cut is over, as TCP has it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windlass._wire.effects import Received, Tick
from windlass._wire.messages import Beat
from windlass.manager.cuts import pair
from windlass.testing.network import Pair
from windlass.types import MANAGER, Incarnation

if TYPE_CHECKING:
    from windlass.testing.world import World

PATIENCE = 40
"""How often time passes, with nothing else to do, before a cut counts as one that stops somebody."""
PAUSE_SECONDS = 0.5
MAX_CUT_STEPS = 6000


@dataclass(slots=True)
class Wall:
    """Between nodes that cannot reach each other, until so many steps have been made."""

    until: int
    stones: set[Pair]
    is_cut: bool = False
    patience: int = 0


def raise_wall(world: World, some: Collection[Incarnation], others: Collection[Incarnation]) -> None:
    """Keep these and those from each other for some while."""
    world.is_odd = True
    world.walls.append(Wall(world.now + world.rng.randint(30, 400), world.net.part(some, others)))


def cut(world: World, one: Incarnation, other: Incarnation, *, is_silent: bool) -> None:
    """Keep two servers from each other until nobody waits, or for some while."""
    world.is_odd = True
    if is_silent:
        stones = world.net.mute(one, other)
        until = world.now + world.rng.randint(200, 1500)
    else:
        stones = world.net.part((one,), (other,))
        until = world.now + (MAX_CUT_STEPS if world.rng.random() < 0.5 else world.rng.randint(100, 1500))
    world.walls.append(Wall(until, stones, is_cut=True, patience=PATIENCE))
    world.net.shots.cuts += 1


def heal(world: World, wall: Wall) -> None:
    world.walls.remove(wall)
    world.net.heal(wall.stones)
    world.tell("*** and can reach them again")


def outlast(world: World) -> bool:
    """Nothing moves. If that is for a cut, let time pass for everybody, that they may find a way around it; whether
    that is so."""
    cuts = [wall for wall in world.walls if wall.is_cut]
    waiting = world.waiting()
    if not cuts or not waiting or len(cuts) < len(world.walls) or world.away or world.is_without_manager:
        return False
    if not cuts[0].patience:
        names = sorted({world.name(who) for wall in cuts for stone in wall.stones for who in stone})
        world.stalled = f"stuck: {', '.join(map(world.name, waiting))} waited while {', '.join(names)} were kept apart"
        return False
    cuts[0].patience -= 1
    let_pass(world, PAUSE_SECONDS)
    for me in (*waiting, *(me for me in world.servers if me not in world.net.dead)):
        world.net.put(world.net.box(me, "tick"), Tick())
    if world.plan.leased is not None:
        world.net.put(world.net.box(MANAGER, "tick"), Tick())
    return True


def let_pass(world: World, seconds: float) -> None:
    """Time passes; for the manager, too, while it is there and not about to lose patience."""
    world.seconds += seconds
    if not world.is_without_manager:
        world.manager_seconds += seconds


def doubted_links(world: World) -> set[Pair]:
    """Links that somebody knows, or may soon know, to be cut: what was on their far side may be out of its chain."""
    found = {pair(*stone) for wall in world.walls for stone in wall.stones} | world.manager.chart.doubted
    for me, server in world.servers.items():
        said = [event for event in world.net.box(MANAGER, f"from {me}").events if type(event) is Received]
        named = {who for event in said if type(event.message) is Beat for who in event.message.unreachable}
        found |= {pair(me, who) for who in named | server._pulse.missed}
    return found


def hear_at_once(world: World, source: Incarnation, node: Incarnation) -> None:
    """Let what is on its way there, and no message, arrive now."""
    box = world.net.links[source, node]
    while box.events:
        world._deliver(box, world.net.take(box))
