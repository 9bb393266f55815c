"""All nodes of one explored run, and the order in which things happen to them: drawn from the seed, nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Dial, Hangup, Later, LinkDown, Log, Persist, Received, Recycle, Send, Stop, Tick
from windlass.manager.records import AnyRecord, Image, Term
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.scheduler import Hosted
from windlass.server.state import ServerConfig, ServerState
from windlass.testing.aims import AFTER, BEFORE, draw_aims, shoot
from windlass.testing.faults import draw_faults, next_fault
from windlass.testing.history import History, Pulled, WorkerLog
from windlass.testing.leases import LeaseProgram
from windlass.testing.limits import Limits
from windlass.testing.network import Box, Network, PoisonedHeap
from windlass.testing.plans import draw_plan
from windlass.testing.program import Condition, Program, Reader
from windlass.testing.rest import at_rest, final_values
from windlass.testing.saving import Saver
from windlass.testing.shapes import ID_LIST_BYTES
from windlass.testing.story import event_text
from windlass.testing.walls import Wall, heal, let_pass, outlast
from windlass.types import MANAGER, Incarnation, KeyId, Role
from windlass.worker.links import GIVE_UP_SECONDS, REDIAL_SECONDS
from windlass.worker.ops import Op, Request
from windlass.worker.state import ASK_AGAIN_SECONDS, Call, Submit, WorkerState

FIRST_WORKER = 10
READER = Incarnation(99)
SAVER = Incarnation(98)
MAX_STEPS = 100_000
MAX_PAUSES = 60
LEASE_SECONDS = 3.0


@dataclass(slots=True)
class Away:
    """A node that the manager cannot reach, until so many steps have been made; stopped, or at work. What the manager
    says to `late` is on its way for as long. Or, not `is_parted`, one that is only stopped."""

    until: int
    is_stopped: bool
    late: Incarnation | None = None
    is_parted: bool = True


@dataclass(slots=True, eq=False)
class WorkerNode:
    """A worker of the run: its state machine and the program that calls it."""

    state: WorkerState
    log: WorkerLog
    program: Program = field(init=False)
    steps: Any = None
    waits_for: Condition | None = None
    ahead: float = 0.0  # of the common clock, in seconds
    is_over: bool = False


class _Step:
    """Event of the rig: go on with this worker's program."""

    def __repr__(self) -> str:
        return "goes on"


class World:
    """All nodes of one run. `run` takes it to its end."""

    # With more than 30 attributes in a dictionary, each instance has keys of its own, and is three times as slow.
    __slots__ = (
        "_aimed_at", "_fault_at", "_flown", "_has_tables", "_heads", "_is_sparse", "_manager_at", "_manager_by",
        "_num_pauses", "_server_kind", "_skews", "_warmed", "aims", "away", "candidates", "deposed", "disturbs_start",
        "faults", "heaps", "hurry", "is_odd", "large", "leaving", "limits", "manager", "manager_seconds",
        "net", "now", "office", "pace", "plan", "reader", "records", "rng", "saver", "seconds", "sent",
        "servers", "stalled", "story", "tells", "walls", "workers",
    )  # fmt: skip

    def __init__(self, seed: int, limits: Limits, server: type[ServerState], tells: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.limits = limits
        self.tells = tells
        self.story: list[str] = []
        self.now = 0
        self._num_pauses = 0
        self.seconds = 0.0  # what the state machines are told; only Ticks move it
        self.large = rng.random() < limits.large
        self.net = Network(rng, is_shared=rng.random() < 0.5)
        self.plan = draw_plan(rng, limits, is_large=self.large)
        if limits.filters:
            self.plan.id_list_bytes = rng.choice(ID_LIST_BYTES)
        if limits.tables:
            self.plan.at_once_bytes = rng.choice((0, 1 << 20))
        self._has_tables = any(shape.table is not None for shape in self.plan.keys)
        self._is_sparse = self._has_tables or any(shape.filters for shape in self.plan.keys)
        self._heads: dict[tuple[KeyId, int], Incarnation] = {}  # of the shards of tables
        num_workers = self.plan.num_seats - limits.joins - limits.aims
        num_servers = rng.randint(*limits.servers)
        replicas = min(rng.randint(*limits.replicas), num_servers - 1)
        config = ManagerConfig(
            num_servers=num_servers, num_workers=num_workers, replicas=replicas, lease_seconds=LEASE_SECONDS,
            shards_per_server=rng.choice((1, 4)),
        )  # fmt: skip
        self.records: list[AnyRecord] = [Term(term=1)]  # the manager's journal
        self.manager = ManagerState(config)
        self.office = Hosted(self.manager)
        self._manager_at = 0  # the step at which a dead manager's successor starts
        self._manager_by = 0.0  # and the time: before those who ask it something give up
        self.manager_seconds = 0.0  # its own clock, which runs while it waits for those who cannot come
        self.servers: dict[Incarnation, ServerState] = {}
        self.heaps: dict[Incarnation, PoisonedHeap] = {}
        self._skews: dict[Incarnation, float] = {}  # how far each server's clock is ahead, in seconds
        self.workers: dict[Incarnation, WorkerNode] = {}
        self.sent: set[tuple[Any, ...]] = set()
        self.deposed: set[Incarnation] = set()
        self.leaving: set[Incarnation] = set()
        self.away: dict[Incarnation, Away] = {}
        self.walls: list[Wall] = []
        self.stalled = ""  # who waited behind a cut for too long, in words
        self.is_odd = False  # somebody is away, or there is no manager that speaks
        self._fault_at = 1  # the step at which the next thing may go wrong
        self._flown: dict[type[m.AnyMessage], int] = {}  # how often each kind of message came
        self._server_kind = server
        self._warmed: set[tuple[str, str, str]] = set()  # kinds of keys whose kernels are loaded
        for _ in range(num_servers):
            self.add_server()
        for _ in range(num_workers):
            self.add_worker(is_joiner=False)
        self.reader = self._add_onlooker(READER, Reader) if rng.randint(0, limits.readers) else None
        self.saver = self._add_onlooker(SAVER, Saver) if limits.savers and rng.randint(0, limits.savers) else None
        self.faults = draw_faults(rng, limits)
        self.aims = draw_aims(rng, limits)
        self._aimed_at = {aim.kind for aim in self.aims}  # now, or before they were shot at
        self.hurry = rng.choice(limits.hurry)
        self.pace = rng.choice((0.005, 0.03))  # how likely it is, at each step, that time passes while somebody is away
        self.candidates = rng.randint(1, 3)
        self.disturbs_start = rng.random() < 0.3

    def add_server(self) -> None:
        me = Incarnation(len(self.servers) + 1)
        self.heaps[me] = PoisonedHeap()
        self._skews[me] = self.rng.uniform(0, 1000) if self.limits.ageing else 0.0
        join = m.Join(role=Role.SERVER, pid=int(me), addresses=(str(me),), rank=int(me) - 1)
        config = ServerConfig(
            join=join, manager=(), lease_seconds=LEASE_SECONDS, at_once_bytes=self.plan.at_once_bytes,
            id_list_bytes=self.plan.id_list_bytes, warmed=self._warmed,
        )  # fmt: skip
        self.servers[me] = self._server_kind(me, self.heaps[me], config)
        self.net.put(self.net.box(me, "dial"), Dial(MANAGER, ()))  # type: ignore[arg-type]

    @property
    def has_seat(self) -> bool:
        """Whether there is room in the keys for one worker more."""
        return sum(me not in (READER, SAVER) for me in self.workers) < self.plan.num_seats

    def add_worker(self, *, is_joiner: bool) -> None:
        seat = sum(me not in (READER, SAVER) for me in self.workers)
        me, rank = Incarnation(FIRST_WORKER + seat), -1 if is_joiner else seat
        is_late = is_joiner and self.plan.leased is not None
        join = m.Join(role=Role.WORKER, pid=int(me), addresses=(), rank=rank, is_late=is_late)
        self._add(me, join, Program if self.plan.leased is None else LeaseProgram, is_joiner=is_joiner)

    def _add_onlooker(self, me: Incarnation, kind: type[Program]) -> WorkerNode:
        onlooker = self._add(me, m.Join(role=Role.DRIVER, pid=int(me), addresses=()), kind, is_joiner=True)
        onlooker.waits_for = lambda: (
            onlooker.state.is_joined and any(worker.program.is_ready for worker in self.workers.values())
        )
        return onlooker

    def _add(self, me: Incarnation, join: m.Join, kind: type[Program], *, is_joiner: bool) -> WorkerNode:
        log = WorkerLog(self.name(me))
        if is_joiner:  # nobody may wait for it on a key, nor expect pushes of it, before it is told where it starts
            log.since = {shape.name: self.plan.clock for shape in self.plan.keys}
            log.entered = {shape.name: float(MAX_STEPS) for shape in self.plan.keys}
        node = WorkerNode(WorkerState(me, join, ()), log)
        node.program = kind(
            self.plan, int(me) - FIRST_WORKER, log, random.Random(self.rng.random()),
            submit=partial(self._submit, me), use=node.state.use, is_pushing=node.state.is_pushing,
            holdings=node.state.holdings,
            now=lambda: float(self.now), rank=lambda: node.state.rank,
            is_shared=self.net.is_shared, is_joiner=is_joiner,
            post=lambda send: self._perform(me, [send]),
        )  # fmt: skip
        if isinstance(node.program, Saver):
            node.program.state = node.state
        node.steps = node.program.run()
        node.waits_for = lambda: node.state.is_joined or node.state.failure is not None
        self.workers[me] = node
        self.net.put(self.net.box(me, "dial"), Dial(MANAGER, ()))  # type: ignore[arg-type]
        return node

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Until nothing is under way. Gives what is left waiting then, in words; it should be nothing."""
        net, random, candidates = self.net, self.rng.random, range(self.candidates - 1)
        busy, away, is_leased, now = net.busy, self.away, self.plan.leased is not None, self.now
        try:
            while busy:
                self.now = now = now + 1
                if now >= self._fault_at and self._is_disturbed():
                    continue
                if self.is_odd and self._is_out_of_turn():
                    continue
                if is_leased and random() < 0.01:
                    net.put(net.box(MANAGER, "tick"), Tick())
                count = len(busy)
                box = busy[int(random() * count)]
                for _ in candidates:
                    other = busy[int(random() * count)]
                    if other.priority > box.priority:
                        box = other
                if box.slow_until > now and random() < 0.9:
                    continue
                if (away or net.muted) and self._is_kept_from(box):
                    continue
                self._next(box)
                if not busy:
                    self._let_time_pass()
        except Exception as error:  # a state machine must never raise, whatever comes
            import traceback

            return f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        return at_rest(self)

    def _is_disturbed(self) -> bool:
        """The time has come for the next fault. How likely one is at each step is drawn once for all steps up to it."""
        if self.now > MAX_STEPS:
            raise TimeoutError(f"still busy after {MAX_STEPS} steps")
        is_due = bool(self.faults) and self._is_under_way()
        if is_due:
            next_fault(self)
        pause = int(self.rng.expovariate(self.hurry)) + 1
        self._fault_at = min(self.now + pause, MAX_STEPS + 1) if self.faults else MAX_STEPS + 1
        return is_due

    def _is_out_of_turn(self) -> bool:
        """Somebody is away, or there is no manager that speaks: whether this step is theirs."""
        net = self.net
        is_dead = MANAGER in net.dead
        if is_dead and (self.now >= self._manager_at or self.seconds > self._manager_by):
            self._start_manager()
        is_recovering = self.manager.is_recovering
        if (self.away or self.walls) and self._are_back():
            return True
        if is_recovering and self.rng.random() < 0.03:
            self._try_patience()
        self.is_odd = is_dead or is_recovering or bool(self.away) or bool(self.walls)
        return False

    def _next(self, box: Box) -> None:
        """Let the first of what is in this box arrive, unless something is aimed at that moment."""
        net, events = self.net, box.events
        event = events[0]
        if type(event) is not Received:
            net.shots.delivered += 1
            self._deliver(box, net.take(box))
            return
        message = type(event.message)
        is_aimed_at = message.__name__ in self._aimed_at
        if is_aimed_at and shoot(self, box.node, message.__name__, BEFORE):
            return
        self._flown[message] = self._flown.get(message, 0) + 1
        events.popleft()
        if not events:
            net.idle(box)
        self._deliver_message(box, event)
        if is_aimed_at:
            shoot(self, box.node, message.__name__, AFTER)

    # --- who is away --------------------------------------------------------------------------------------------------

    def depose(self, me: Incarnation, *, is_stopped: bool) -> None:
        """Cut a server off from the manager for some while, and stop it, perhaps: it is taken for dead."""
        self.tell(f"*** {self.name(me)} cannot reach the manager{', and is stopped' if is_stopped else ''}")
        self.deposed.add(me)
        self.is_odd = True
        late = self.rng.choice([*self.workers])
        self.away[me] = Away(self.now + self.rng.randint(50, 400), is_stopped, late)
        self.net.parted.add(me)
        self.net.disconnect(me, MANAGER, "cut")
        self.net.shots.deposed += 1

    def stop(self, me: Incarnation) -> None:
        """Stop a worker or the manager for some while. Nobody is told."""
        self.is_odd = True
        self.away[me] = Away(self.now + self.rng.randint(50, 400), True, is_parted=False)

    def _is_kept_from(self, box: Box) -> bool:
        """Whether what is in this box does not get through now."""
        if id(box) in self.net.muted or (box.node in self.away and self.away[box.node].is_stopped):
            return True
        return box is self.net.links.get((MANAGER, box.node)) and any(
            box.node == away.late for away in self.away.values()
        )

    def _are_back(self) -> bool:
        """Let those go on whose time is over. While somebody is away, time passes for the others, too."""
        for me, away in self.away.items():
            if self.now >= away.until:
                del self.away[me]
                if away.is_parted and me not in self.net.dead:
                    self.net.parted.discard(me)
                    self.net.put(self.net.box(me, "dial"), Dial(MANAGER, ()))  # type: ignore[arg-type]
                return True
        for wall in self.walls:
            if self.now >= wall.until:
                heal(self, wall)
                return True
        if self.rng.random() < self.pace and not self._is_manager_missed():
            let_pass(self, self.rng.choice((0.1, 1.0, LEASE_SECONDS)))
            for me in self.servers:
                if me not in self.net.dead and self.rng.random() < 0.7:
                    self.net.put(self.net.box(me, "tick"), Tick())
        return False

    def lose_manager(self, *, is_replaced: bool = False) -> None:
        """Its process dies. Another starts from its records, at once or some time later."""
        self.net.kill(MANAGER)
        self.is_odd = True
        self._manager_at = self.now + (1 if is_replaced else self.rng.randint(1, 300))
        self._manager_by = self.seconds + GIVE_UP_SECONDS / 2

    def _start_manager(self) -> None:
        image = Image(self.records)
        self.records.append(Term(term=image.term + 1))
        self.tell(f"*** a manager starts, term {image.term + 1}")
        self.net.revive(MANAGER)
        self.manager = ManagerState(replace(self.manager.config, term=image.term + 1), image)
        self.office = Hosted(self.manager, image.epochs)

    def _try_patience(self) -> None:
        """Let the manager wait in vain for those who cannot come."""
        if self.manager.missing <= {*self.net.dead, *self.away}:
            self.manager_seconds += self.rng.choice((0.1, 1.0, LEASE_SECONDS))
            self.net.put(self.net.box(MANAGER, "tick"), Tick())

    def _is_manager_missed(self) -> bool:
        """Whether somebody asks the manager, and may give up."""
        return any(
            worker.state.requests and not worker.state.is_linked(MANAGER)
            for me, worker in self.workers.items() if me not in self.net.dead
        )  # fmt: skip

    def _is_about_to_reach_manager(self, me: Incarnation) -> bool:
        """Whether a worker that asks the manager has dialled it, and is to hear of it."""
        state = self.workers[me].state
        if not state.requests or state.is_linked(MANAGER) or MANAGER in self.net.dead:
            return False
        dials, heard = self.net.box(me, "dial").events, self.net.links[MANAGER, me].events
        return (
            self.net.is_open(me, MANAGER)
            or any(isinstance(one, Dial) and one.peer == MANAGER for one in dials)
            or any(isinstance(one, LinkDown) for one in heard)  # who it dialled had died: it dials anew
        )

    def _count_out(self) -> None:
        """The manager is back. Members that were too slow to come have been declared gone, and live."""
        known = self.manager.nodes
        departed = {node.incarnation for node in self.manager.departed}
        self.deposed |= {me for me in self.servers if me in departed and me not in known}
        for me, worker in self.workers.items():
            if me in departed and me not in known and worker.log.departed is None:
                worker.log.departed = float(self.now)

    def _let_time_pass(self) -> None:
        """Nothing moves: whoever still waits hears that time has passed, a few times, and may ask again."""
        if self.walls and outlast(self):
            return
        for wall in list(self.walls):
            heal(self, wall)
        if MANAGER in self.net.dead:
            self._start_manager()
        if self.manager.is_recovering and self._num_pauses < MAX_PAUSES:
            self._num_pauses += 1
            self.manager_seconds += LEASE_SECONDS
            self.net.put(self.net.box(MANAGER, "tick"), Tick())
        waiting = self.waiting()
        if waiting and self._num_pauses < MAX_PAUSES and self.plan.leased is not None:
            self.net.put(self.net.box(MANAGER, "tick"), Tick())
        if waiting and self._num_pauses < MAX_PAUSES:
            self._num_pauses += 1
            self.seconds += ASK_AGAIN_SECONDS
            for me in (*waiting, *(me for me in self.servers if me not in self.net.dead)):
                self.net.put(self.net.box(me, "tick"), Tick())

    def waiting(self) -> list[Incarnation]:
        """Workers that have asked for something, and not got it."""
        return [me for me, worker in self.workers.items() if me not in self.net.dead and worker.state.has_work]

    @property
    def is_without_manager(self) -> bool:
        """Whether there is no manager that speaks."""
        return MANAGER in self.net.dead or self.manager.is_recovering

    def _is_under_way(self) -> bool:
        """Whether there is something worth disturbing: most runs are left alone until somebody pushes."""
        return self.disturbs_start or any(worker.program.is_ready for worker in self.workers.values())

    def _deliver_message(self, box: Box, event: Received) -> None:
        node, shots = box.node, self.net.shots
        shots.delivered += 1
        shots.messages += 1
        if self.tells:
            self._tell_of(box, event)
        if self._is_sparse:
            self._count_sparse(type(event.message))
        server = self.servers.get(node)
        if server is not None:
            effects: Iterable[Any] = server.handle(event, self.seconds + self._skews[node])
        elif node == MANAGER:
            self._to_manager(event)
            return
        else:
            worker = self.workers[node]
            effects = worker.state.handle(event, self.seconds + worker.ahead)
        if effects:
            self._perform(node, effects)
        if server is None and worker.waits_for is not None and worker.waits_for():
            self._wake(node, worker)

    def _count_sparse(self, kind: type[m.AnyMessage]) -> None:
        shots = self.net.shots
        shots.need_ids += kind is m.NeedIds
        shots.taught_tables += kind is m.ShowSlot and self._has_tables

    def _to_manager(self, event: Any) -> None:
        was_recovering = self.manager.is_recovering
        self._perform(MANAGER, self.office.handle(event, self.manager_seconds))
        if type(event) is Received and type(event.message) is m.PassOn:
            self.net.shots.detours += 1
        if was_recovering and not self.manager.is_recovering:
            self._count_out()
        if self._has_tables:
            self._count_heads()

    def _count_heads(self) -> None:
        """Note whether a shard of a table has got another head, and why."""
        shots, gone = self.net.shots, self.net.dead | self.deposed
        for key in self.manager.keys:
            if key.spec.table is None:
                continue
            for number, chain in enumerate(key.charted.chains):
                before = self._heads.get((key.id, number))
                if chain and before != chain[0]:
                    self._heads[key.id, number] = chain[0]
                    shots.failed_tables += before is not None and before in gone
                    shots.moved_tables += before is not None and before not in gone

    def _deliver(self, box: Box, event: Any) -> None:
        """Let anything but a message arrive."""
        node = box.node
        if self.tells:
            self._tell_of(box, event)
        kind = type(event)
        if kind is Dial:
            self.net.connect(node, event.peer)
            return
        if kind is Tick:
            if node in self.workers and self._is_about_to_reach_manager(node):
                self.net.put(box, event)  # that takes less time than a tick
                return
            self._tick(node)
        if node == MANAGER:
            if kind is not Tick or self.manager.is_recovering:
                self._to_manager(event)
            else:
                self.manager_seconds += self.rng.choice((0.1, 1.0, 6.0))
                self._perform(node, self.office.scheduler.handle(event, self.manager_seconds))
        elif node in self.servers:
            self._perform(node, self.servers[node].handle(event, self.seconds + self._skews[node]))
        else:
            worker = self.workers[node]
            if kind is _Step:
                self._go_on(worker)
                for onlooker in (self.reader, self.saver):
                    if onlooker is not None and onlooker.waits_for is not None and onlooker.waits_for():
                        self._wake(onlooker.state.me, onlooker)
            else:
                self._perform(node, worker.state.handle(event, self.seconds + worker.ahead))
                if isinstance(event, LinkDown):
                    self.net.put(self.net.box(node, "tick"), Tick())
            if worker.waits_for is not None and worker.waits_for():
                self._wake(node, worker)

    def _tell_of(self, box: Box, event: Any) -> None:
        self.tell(f"{self.name(box.node)} <- {box.source.replace('from ', '')}: {event_text(event)}")

    def _tick(self, node: Incarnation) -> None:
        """As much as a redial takes. A worker's clock is its own: others who dial do not make it give up."""
        if node in self.workers:
            self.workers[node].ahead += 1.1 * REDIAL_SECONDS
        elif not self._is_manager_missed():
            self.seconds += 1.1 * REDIAL_SECONDS

    def _go_on(self, worker: WorkerNode) -> None:
        try:
            worker.waits_for = next(worker.steps)
        except StopIteration:
            worker.is_over = True

    def _wake(self, node: Incarnation, worker: WorkerNode) -> None:
        """What the program waits for has come true: let it go on some time."""
        if not worker.is_over:
            worker.waits_for = None
            self.net.put(self.net.box(node, "program"), _Step())  # type: ignore[arg-type]

    def _submit(self, me: Incarnation, work: Op | Request) -> None:
        worker = self.workers[me]
        self._perform(me, worker.state.handle(Submit(work), self.seconds + worker.ahead))

    def _perform(self, node: Incarnation, effects: Iterable[Any]) -> None:
        net = self.net
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                if net.send(node, effect) and type(effect.message) is m.Push:
                    self._count_resend(node, effect.message)
            elif kind is Call:
                effect.function()
            elif kind is Recycle:
                net.recycle(effect.data)
            elif kind is Later:
                net.put(net.box(node, "later"), effect)
            elif kind is Dial:
                net.put(net.box(node, "dial"), effect)
            elif kind is Persist:
                self.records.append(effect.record)
            elif kind is Log and node == MANAGER:
                net.shots.rechains += "not reach each other" in effect.text
            elif kind is Hangup:
                net.disconnect(node, effect.peer, effect.reason)
            elif kind is Stop:
                assert node in self.deposed | self.leaving, f"{self.name(node)} stopped: {effect.reason}"
                net.kill(node)

    def _count_resend(self, node: Incarnation, push: m.Push) -> None:
        which = (node, push.key, push.shard, push.clock, push.part)
        if which in self.sent:
            self.net.shots.resends += 1
        self.sent.add(which)

    # --- telling ------------------------------------------------------------------------------------------------------

    def history(self) -> History:
        if self.limits.aims:
            self.net.shots.flown.update({kind.__name__: count for kind, count in self._flown.items()})
        logs = []
        for worker in self.workers.values():
            answered = [one for one in worker.log.events if type(one) is not Pulled or one.responded]
            logs.append(replace(worker.log, events=answered))
        snapshots: list[Pulled] = []
        if self.saver is not None:
            assert isinstance(self.saver.program, Saver)
            snapshots = self.saver.program.snapshots
            self.net.shots.snapshots += len(snapshots)
            self.net.shots.melted += self.saver.program.num_melted
        books = [calls.book for worker in self.workers.values() for calls in worker.program.keys]
        self.net.shots.kept_back += sum(book.num_kept_back for book in books if book is not None)
        judged = self.plan.keys if self.plan.leased is None else []
        return History({shape.name: shape for shape in judged}, logs, final_values(self), snapshots)

    def close(self) -> None:
        """Nobody asks anything of it any more. Undoes rings of references, so that its memory is free at once."""
        for worker in self.workers.values():
            del worker.program, worker.steps, worker.waits_for

    def name(self, node: Incarnation) -> str:
        if node in (MANAGER, READER, SAVER):
            return {MANAGER: "manager", READER: "driver", SAVER: "saver"}[node]
        return f"server-{node - 1}" if node < FIRST_WORKER else f"worker-{node - FIRST_WORKER}"

    def tell(self, text: str) -> None:
        if self.tells:
            self.story.append(f"{self.now:4d} {text}")
