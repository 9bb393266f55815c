"""What goes wrong in an explored run: links break, are slow, lose a frame or bring one twice; nodes die, stop, or are
taken for dead, cannot reach each other for a while; others join; the manager dies and another takes its place."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

from windlass._wire.effects import Received
from windlass._wire.messages import Drain
from windlass.manager.cuts import joined
from windlass.testing.network import Pair
from windlass.testing.walls import cut, doubted_links, hear_at_once, raise_wall
from windlass.types import MANAGER, Chain, Incarnation, Role

if TYPE_CHECKING:
    from windlass.testing.limits import Limits
    from windlass.testing.world import World

MAX_SERVERS = 6


def draw_faults(rng: random.Random, limits: Limits) -> list[str]:
    """What will go wrong, in this order, if the run lasts long enough. A *zombie* is a worker whose link to the manager
    breaks: everybody else takes it for dead while it still talks to the servers."""
    allowed = {
        "break": limits.breaks, "drop": limits.drops, "copy": limits.copies, "slow": limits.slows,
        "partition": limits.partitions, "crash": limits.departures, "zombie": limits.zombies, "join": limits.joins,
        "server": limits.crashes, "depose": limits.deposed, "add": limits.additions, "drain": limits.drains,
        "manager": limits.restarts, "cut": limits.cuts, "orphan": limits.orphans,
    }  # fmt: skip
    faults = [kind for kind, most in allowed.items() if most for _ in range(rng.randint(0, most))]
    rng.shuffle(faults)
    return faults


def next_fault(world: World) -> None:
    """Do the next fault that can be done now; one that cannot waits for its moment."""
    kind = world.faults.pop()
    if not FAULTS[kind](world):
        world.faults.insert(0, kind)


# --- links ------------------------------------------------------------------------------------------------------------


def _loaded(world: World) -> list[Pair]:
    """Links, in the direction in which something is under way. Those to the manager are left alone: a node whose link
    to it ends is taken for dead."""
    net = world.net
    return sorted(pair for pair, box in net.open.items() if box.events and MANAGER not in pair)


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


def _drop(world: World) -> bool:
    pairs = _loaded(world)
    if not pairs:
        return False
    sender, receiver = world.rng.choice(pairs)
    if not world.net.drop(sender, receiver):
        return False
    world.tell(f"*** a frame from {world.name(sender)} to {world.name(receiver)} is lost")
    world.net.shots.drops += 1
    return True


def _copy(world: World) -> bool:
    """A message comes twice. All kinds are alike, however rare."""
    under_way = world.net.under_way()
    kinds = sorted(set(under_way).intersection(world.limits.kinds or under_way))
    if not kinds:
        return False
    kind = world.rng.choice(kinds)
    box, index = world.rng.choice(under_way[kind])
    world.tell(f"*** a {kind} to {world.name(box.node)} will come twice")
    world.net.copy(box, index)
    world.net.shots.copied[kind] += 1
    return True


def _slow(world: World) -> bool:
    """A link, or all that comes to a node, is slow for a while."""
    net, rng = world.net, world.rng
    if not net.busy:
        return False
    box = rng.choice(net.busy)
    until = world.now + rng.randint(30, 300)
    is_node = rng.random() < 0.5
    what = world.name(box.node) if is_node else f"{world.name(box.node)} <- {box.source}"
    world.tell(f"*** {what} is slow until {until}")
    net.slow([one for one in net.boxes.values() if one.node == box.node] if is_node else [box], until)
    net.shots.slows += 1
    return True


def _partition(world: World) -> bool:
    """Some nodes cannot reach others for a while. The manager reaches both sides; or one only, which then takes the
    others for dead."""
    rng, net = world.rng, world.net
    servers = [me for me in world.servers if me not in net.dead]
    workers = [me for me in world.workers if me not in net.dead]
    nodes = sorted([*servers, *workers])
    if len(nodes) < 2 or world.walls:
        return False
    some: set[Incarnation] = set()
    if rng.random() < 0.5:
        may_go = may_lose(world)
        going = may_depart(world, "zombie")
        if not may_go or MANAGER in net.dead:
            return False
        server = rng.choice(may_go)
        some = {server, *rng.sample(going, rng.randint(0, len(going) - 1) if going else 0)}
        for me in some - {server}:
            world.workers[me].log.departed = float(world.now)
            net.disconnect(me, MANAGER, "cut")
        world.depose(server, is_stopped=False)
    else:
        some = set(rng.sample(nodes, rng.randint(1, len(nodes) - 1)))
    world.tell(f"*** {', '.join(world.name(me) for me in sorted(some))} cannot reach the others")
    others = [me for me in nodes if me not in some]
    raise_wall(world, some, others)
    net.shots.partitions += 1
    return True


def _cut(world: World) -> bool:
    """Two servers cannot reach each other; the manager reaches both. Neighbours of a chain, mostly."""
    rng, net = world.rng, world.net
    there = [me for me in world.servers if net.is_open(me, MANAGER) and me not in world.deposed]
    pairs = [(one, other) for one, other in combinations(sorted(there), 2) if net.is_open(one, other)]
    pairs = [pair for pair in pairs if pair not in net.walls]
    if not pairs or any(not wall.is_cut for wall in world.walls):
        return False
    chained = [pair for pair in pairs if any(set(pair) <= set(chain) for chain in _chains(world))]
    one, other = rng.choice(chained if chained and rng.random() < 0.7 else pairs)
    is_silent = rng.random() < 0.3
    how = ", and nobody is told" if is_silent else ""
    world.tell(f"*** {world.name(one)} and {world.name(other)} cannot reach each other{how}")
    cut(world, one, other, is_silent=is_silent)
    return True


# --- nodes ------------------------------------------------------------------------------------------------------------


def _lose_manager(world: World) -> bool:
    if MANAGER in world.net.dead or world.manager.is_recovering:
        return False
    world.tell("*** the manager dies")
    world.net.shots.restarts += 1
    world.lose_manager()
    return True


def join(world: World) -> bool:
    """A worker joins, if there is a seat left."""
    if world.manager.generation.number == 0 or not world.has_seat:
        return False
    world.tell("*** a worker joins")
    world.add_worker(is_joiner=True)
    world.net.shots.joins += 1
    return True


def add_server(world: World) -> bool:
    """A server joins."""
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


def _chains(world: World) -> list[Chain]:
    """Those of all shards, now, or in a moment."""
    return [chain for key in world.manager.chart.keys.values() for chain in (*key.chains, *key.targets.values())]


def may_lose(world: World, *, is_noticed_at_once: bool = False) -> list[Incarnation]:
    """Servers that may go now: none that is the last of a chain, and at one time no more than there are replicas. Nor
    one that may be left alone by a cut before the manager hears of its end."""
    there = [me for me in world.servers if me not in world.net.dead | world.deposed | world.leaving]
    doubted = set() if is_noticed_at_once else doubted_links(world)
    chains = [joined(tuple(me for me in chain if me in there), doubted) for chain in _chains(world)]
    unnoticed = [me for me in world.servers if me in world.net.dead | world.deposed and me in world.manager.nodes]
    if len(there) < 2 or not chains or len(unnoticed) >= world.manager.config.replicas:
        return []
    return [me for me in there if not any(chain == (me,) for chain in chains)]


def crash_server(world: World, me: Incarnation) -> None:
    world.tell(f"*** {world.name(me)} dies")
    world.net.kill(me)
    world.net.shots.crashes += 1


def _crash(world: World) -> bool:
    may_go = may_lose(world)
    cut_off = [me for me in may_lose(world, is_noticed_at_once=True) if me not in may_go]
    if cut_off and not world.is_without_manager and MANAGER not in world.away:
        me = world.rng.choice(cut_off)
        world.net.lose(me, MANAGER)
        crash_server(world, me)
        hear_at_once(world, me, MANAGER)
        world.net.shots.beheaded += 1
        return True
    if may_go:
        crash_server(world, world.rng.choice(may_go))
    return bool(may_go)


def _orphan(world: World) -> bool:
    """A server dies that is the only one to hold a part of a key, has not heard so, and is not the last of any other
    chain. Nobody else is missing."""
    net, servers = world.net, world.servers
    members = [me for me in servers if me in world.manager.nodes]
    there = [me for me in members if me not in net.dead | world.deposed | world.leaving]
    if len(there) < 2 or any(me in net.dead | world.deposed for me in members):
        return False
    doubted = doubted_links(world)
    alone: dict[Incarnation, set[bool]] = {me: set() for me in there}  # whether it holds the keys that only it may hold
    for key in world.manager.chart.keys.values():
        for first, *others in (joined(chain, doubted) for chain in (*key.chains, *key.targets.values()) if chain):
            if not others and first in alone:
                alone[first].add(key.is_placed or key.id in servers[first].keys)
    may_go = [me for me in there if alone[me] == {False}]
    if may_go:
        crash_server(world, world.rng.choice(may_go))
        net.shots.orphans += 1
    return bool(may_go)


def _depose(world: World) -> bool:
    """The manager takes a server for dead, because they cannot reach each other, or it is stopped."""
    may_go = may_lose(world)
    if may_go:
        world.depose(world.rng.choice(may_go), is_stopped=world.rng.random() < 0.5)
    return bool(may_go)


def may_depart(world: World, kind: str) -> list[Incarnation]:
    """Workers that may go: not the last. Nobody would hear of it before the manager knows of them."""
    there = [
        me
        for me, worker in world.workers.items()
        if worker.log.departed is None
        and worker.state.role is Role.WORKER
        and (world.net.is_open(me, MANAGER) or (kind == "crash" and MANAGER in world.net.dead))
    ]
    return there if len(there) >= 2 else []


def depart(world: World, me: Incarnation, kind: str) -> None:
    """A worker dies, or only its link to the manager does."""
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


def _depart(world: World, kind: str) -> bool:
    may_go = [me for me in may_depart(world, kind) if world.workers[me].program.is_ready]
    if not may_go:
        return False
    talking = [me for me in may_go if world.workers[me].state.ops]
    depart(world, world.rng.choice(talking or may_go), kind)
    return True


FAULTS: dict[str, Callable[[World], bool]] = {
    "break": _break,
    "drop": _drop,
    "copy": _copy,
    "slow": _slow,
    "partition": _partition,
    "cut": _cut,
    "crash": lambda world: _depart(world, "crash"),
    "zombie": lambda world: _depart(world, "zombie"),
    "join": join,
    "server": _crash,
    "orphan": _orphan,
    "depose": _depose,
    "add": add_server,
    "drain": _drain_server,
    "manager": _lose_manager,
}
