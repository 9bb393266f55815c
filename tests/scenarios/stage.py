"""The stage on which a story is played: the state machines of a cluster, and a network that delivers in the order sent.

Nothing is random, and nothing happens but what the script says: after each of its lines everything that is under way
arrives, except on links that are held. Time stands still until the script lets it pass.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tests.scenarios.saving import Saving
from tests.scenarios.telling import tell
from windlass._wire import messages as m
from windlass._wire.effects import (
    Dial,
    Hangup,
    Later,
    Leave,
    LinkDown,
    LinkUp,
    Log,
    Persist,
    Received,
    Send,
    Sent,
    Stop,
    Tick,
)
from windlass.manager.records import AnyRecord, Image, Term
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.scheduler import Hosted
from windlass.server.state import ServerConfig, ServerState
from windlass.testing.history import KeyShape, WorkerLog
from windlass.testing.leases import LeaseProgram
from windlass.testing.network import PoisonedHeap
from windlass.testing.program import Plan
from windlass.types import MANAGER, Incarnation, Lease, Role, Sequential
from windlass.worker.ops import Op, Request
from windlass.worker.split import split
from windlass.worker.state import Call, Submit, WorkerState

FIRST_WORKER = 10
LEASE_SECONDS = 3.0
WORKER_LEASE_SECONDS = 30.0
BEAT_SECONDS = 0.25
SLOT_SIZE = 2
WORK = m.Workload(name="work", size=2, batch_size=1, epochs=1)


@dataclass(slots=True)
class Player(LeaseProgram):
    """A worker: it opens the key as Store.create does, then does what the script says. It pushes rank + 1."""

    calls: Any = None
    entry: Any = None
    batches: tuple[int, ...] = ()  # of leased work, that are its own
    done: tuple[int, ...] = ()
    reading: list[tuple[Callable[[], bool], Any, Callable[[str], None]]] = field(default_factory=list)
    saving: Any = None

    def run(self) -> Iterator[Callable[[], bool]]:
        self.calls = yield from self._open(self.plan.keys[0])
        self.entry = self.calls.entry
        self.is_ready = True

    def take(self, said: Callable[[str], None]) -> None:
        """Ask for a batch of leased work, two of one sample each."""

        def finish(granted: Any, data: Any, error: Any) -> None:
            self.batches = granted.batches
            said(f"has batch {granted.batches[0]}" if granted.batches else "hears that all is done")

        done, self.done = self.done, ()
        keys = (self.entry.key.id,) if self.log.events or done else ()
        self.submit(Request(MANAGER, lambda n: m.Take(request=n, workload=WORK, done=done, keys=keys), finish))

    def rest(self, said: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
        yield from self._rest([self.calls])
        said("rests")

    def begin_again(self, said: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
        yield from self._level([self.calls])
        said(f"begins again after push {self.entry.key.clock}")

    def push(self, said: Callable[[str], None], *, completes: bool = False) -> None:
        key = self.entry.key
        value = np.full(key.size, self.rank() + 1, np.int64)
        parts, _ = self.entry.parts(value, 0, split(key, 0, key.size), may_borrow=False)
        clock = key.clock + 1
        op = Op(key, parts, None, None, lambda error: said(f"has push {clock} done: {error or 'acknowledged'}"))
        if completes:
            op.completes = Lease(WORK.name, self.batches)
            self.done = self.batches
        self.submit(op)

    def pull(self, said: Callable[[str], None]) -> None:
        done = self._pull(self.calls, self.entry.key.clock, self.calls.whole())
        self.reading.append((done, self.log.events[-1], said))

    def tell_what_came(self) -> None:
        """Tell what was read: of each slot one element, for all of them are alike."""
        for one in [one for one in self.reading if one[0]()]:
            self.reading.remove(one)
            one[2](f"reads {' '.join(map(str, one[1].value[::SLOT_SIZE]))}")


@dataclass(slots=True, eq=False)
class Worker:
    state: WorkerState
    player: Player
    steps: Any
    waits_for: Callable[[], bool] | None = None


@dataclass
class Stage:
    """All nodes. `lines` is what happened so far, in words."""

    num_servers: int
    num_workers: int
    replicas: int
    slots: int
    server: type[ServerState] = ServerState
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = ManagerConfig(
            num_servers=self.num_servers, num_workers=self.num_workers, replicas=self.replicas,
            lease_seconds=LEASE_SECONDS, worker_lease_seconds=WORKER_LEASE_SECONDS,
        )  # fmt: skip
        self.now = 0.0
        self.records: list[AnyRecord] = [Term(term=1)]  # the manager's journal
        self.office = Hosted(ManagerState(config))
        self.manager = self.office.manager
        self.servers: dict[Incarnation, ServerState] = {}
        self.workers: dict[Incarnation, Worker] = {}
        self.queue: deque[tuple[Incarnation, Incarnation, Any]] = deque()  # from, to, event
        self.open: set[frozenset[Incarnation]] = set()
        self.told: set[tuple[Incarnation, Incarnation]] = set()  # who knows of its link to whom, and so can send
        self.held: set[tuple[Incarnation, Incarnation]] = set()
        self.stopped: set[Incarnation] = set()
        self.cut: set[frozenset[Incarnation]] = set()
        self.dead: set[Incarnation] = set()
        shape = KeyShape("w", Sequential(), SLOT_SIZE, self.slots)
        self.plan = Plan([shape], [], 0, self.num_workers, ranges=0.0, waits=1.0)
        for _ in range(self.num_servers):
            self.add_server()
        for _ in range(self.num_workers):
            self.add_worker()
        self.play()
        assert all(worker.player.is_ready for worker in self.workers.values()), self.lines[-20:]
        chains = "; ".join(
            f"w/{shard} on {' > '.join(map(name, chain))}"
            for shard, chain in enumerate(self.manager.chart.keys[1].chains)  # type: ignore[index]
        )
        self.lines = [f"in the beginning: {chains}"]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def add_server(self) -> None:
        me = Incarnation(len(self.servers) + 1)
        join = m.Join(role=Role.SERVER, pid=int(me), addresses=(str(me),), rank=int(me) - 1)
        config = ServerConfig(join=join, manager=(), lease_seconds=LEASE_SECONDS)
        self.servers[me] = self.server(me, PoisonedHeap(), config)
        self._dial(me, MANAGER)

    def add_worker(self) -> None:
        rank = len(self.workers)
        me = Incarnation(FIRST_WORKER + rank)
        state = WorkerState(me, m.Join(role=Role.WORKER, pid=int(me), addresses=(), rank=rank), (), LEASE_SECONDS)
        player = Player(
            self.plan, rank, WorkerLog(name(me)), random.Random(0),
            submit=lambda work: self._perform(me, state.handle(Submit(work), self.now)), use=state.use,
            is_pushing=state.is_pushing, holdings=state.holdings, now=lambda: self.now, rank=lambda: state.rank,
            is_shared=False,
        )  # fmt: skip
        player.saving = Saving(player.submit)
        self.workers[me] = Worker(state, player, player.run(), lambda: state.is_joined)
        self._dial(me, MANAGER)

    # --- what the script can do ---------------------------------------------------------------------------------------

    def kill(self, who: Incarnation) -> None:
        self.dead.add(who)
        self.queue = deque(one for one in self.queue if who not in one[:2])
        for link in sorted(self.open, key=sorted):
            if who in link:
                self._disconnect(*link, "its process died", is_death=True)

    def restart_manager(self) -> None:
        """Another manager goes on from the journal, and all who live dial it."""
        image = Image(self.records)
        self.records.append(Term(term=image.term + 1))
        self.manager = ManagerState(replace(self.manager.config, term=image.term + 1), image)
        self.office = Hosted(self.manager, image.epochs)
        self.dead.discard(MANAGER)
        for node in (*self.servers, *self.workers):
            self._dial(node, MANAGER)

    def part(self, one: Incarnation, other: Incarnation) -> None:
        """Cut a link for good: what is under way on it is lost, and nobody can dial."""
        self.cut.add(frozenset((one, other)))
        self._disconnect(one, other, "cut")

    def mend(self, one: Incarnation, other: Incarnation) -> None:
        self.cut.discard(frozenset((one, other)))
        self._dial(one, other)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_SECONDS)):
            self.now += BEAT_SECONDS
            for node in (MANAGER, *self.servers, *self.workers):
                if node not in self.dead | self.stopped:
                    self._handle(node, Tick())
            self.play()

    def act(self, who: Incarnation, steps: Iterator[Callable[[], bool]]) -> None:
        """A worker does something that takes several steps, each after what it waits for."""
        worker = self.workers[who]
        worker.steps, worker.waits_for = steps, next(steps, None)
        self._go_on(worker)

    def leave(self, server: Incarnation) -> None:
        self._handle(server, Leave())

    # --- playing ------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let everything arrive that is not held."""
        while (at := next((at for at, one in enumerate(self.queue) if not self._is_held(*one)), None)) is not None:
            source, node, event = self.queue[at]
            del self.queue[at]
            if isinstance(event, Received) and (text := tell(event.message, name)):
                self.lines.append(f"{name(source):>8} -> {name(node):<8}  {text}")
            if isinstance(event, LinkDown) and event.is_death and node == MANAGER:
                self.lines.append(f"{name(node):>8}    sees that {name(source)} is dead")
            if isinstance(event, LinkUp):
                self.told.add((node, source))
            self._handle(node, event)

    def _is_held(self, source: Incarnation, node: Incarnation, event: Any) -> bool:
        return ((source, node) in self.held and isinstance(event, Received)) or node in self.stopped

    def _handle(self, node: Incarnation, event: Any) -> None:
        if node == MANAGER:
            self._perform(node, self.office.handle(event, self.now))
        elif node in self.servers:
            self._perform(node, self.servers[node].handle(event, self.now))
        else:
            self._perform(node, self.workers[node].state.handle(event, self.now))
            self._go_on(self.workers[node])

    def _go_on(self, worker: Worker) -> None:
        while worker.waits_for is not None and worker.waits_for():
            worker.waits_for = next(worker.steps, None)
        worker.player.tell_what_came()

    def _perform(self, node: Incarnation, effects: Iterable[Any]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(node, effect)
                case Call():
                    effect.function()
                case Later():
                    self.queue.append((node, node, effect))
                case Dial(peer=peer):
                    self._dial(node, peer)
                case Hangup(peer=peer, reason=reason):
                    self._disconnect(node, peer, reason)
                case Persist(record=record):
                    self.records.append(record)
                case Log(text=text):
                    self.lines.append(f"{name(node):>8}    {text}")
                case Stop(reason=reason):
                    self.lines.append(f"{name(node):>8}    ends: {reason}")
                    self.kill(node)

    # --- links --------------------------------------------------------------------------------------------------------

    def _send(self, node: Incarnation, send: Send) -> None:
        if (node, send.peer) not in self.told:
            return  # as a hub does; the state machines say it again when the link is up
        data = tuple(block.array.copy() for block in send.data)
        self.queue.append((node, send.peer, Received(node, send.message, data)))
        self.queue.extend((node, node, Sent(pin)) for pin in send.pins)

    def _dial(self, node: Incarnation, peer: Incarnation) -> None:
        link = frozenset((node, peer))
        if peer in self.dead or node in self.dead or link in self.cut or link in self.open:
            return
        self.open.add(link)
        self.queue.append((peer, node, LinkUp(peer)))
        self.queue.append((node, peer, LinkUp(node)))

    def _disconnect(self, one: Incarnation, other: Incarnation, reason: str, *, is_death: bool = False) -> None:
        link = frozenset((one, other))
        if link not in self.open:
            return
        self.open.discard(link)
        self.told -= {(one, other), (other, one)}
        self.queue = deque(held for held in self.queue if set(held[:2]) != {one, other})
        for source, node in ((one, other), (other, one)):
            if node not in self.dead:
                self.queue.append((source, node, LinkDown(source, reason, is_death)))


def name(node: Incarnation) -> str:
    if node == MANAGER:
        return "manager"
    return f"server-{node - 1}" if node < FIRST_WORKER else f"worker-{node - FIRST_WORKER}"


def number(name: str) -> Incarnation:
    if name == "manager":
        return MANAGER
    role, _, rank = name.partition("-")
    return Incarnation(int(rank) + (FIRST_WORKER if role == "worker" else 1))
