"""`engine="processes"`: manager, servers and workers as processes of this machine, forked from a preloaded server."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import cloudpickle
import msgspec

from windlass._ledger import Phase
from windlass._wire.effects import Send
from windlass._wire.messages import Abort, Drain
from windlass.engines._children import Child, ForkServer
from windlass.engines._revival import Revival
from windlass.engines._run import Crew, Run
from windlass.engines.config import NodeConfig, Options, announce, open_store, take_ledger
from windlass.engines.nodes import Order
from windlass.errors import ClusterError, UsageError, WindlassError, in_words, text_of
from windlass.trace.collector import Collector
from windlass.types import MANAGER, Incarnation, Role
from windlass.worker.driver import DriverStore
from windlass.worker.shield import let_in, uninterrupted
from windlass.worker.store import BARRIER

log = logging.getLogger("windlass")

PRELOAD = ("numpy", "msgspec", "windlass.engines.nodes", "windlass.store.kernels")
SLOW = ("torch", "torch._dynamo")
"""Loaded in advance if the driver has loaded them, as its workers will want them, too. The second is what torch loads
when it makes its first optimizer, and takes nearly as long as the rest of it."""
STRAGGLE_SECONDS = 1.0
"""After a worker failed: how long `run` waits for the others to hear of it. The next run replaces them anyway."""
MAX_STARTS = 3
"""How often a worker that is to replace another is started, if it is killed before it has joined."""
SLICE_SECONDS = 0.05
"""How often a wait looks whether somebody has died, or Ctrl-C was pressed."""
JUDGE_SECONDS = 20.0
"""How long the servers wait, at the end, for the `windlass chaos` that wants to see what they have counted."""


class ProcessEngine:
    """The processes of one cluster. `open` starts them; `close` ends them, in any state."""

    def __init__(
        self, *, servers: int, workers: int, transport: str, options: Options, server_state: str, has_workers: bool
    ) -> None:
        self.ledger = take_ledger(options)
        self.options = options = msgspec.structs.replace(options, chaos=self.ledger.path if self.ledger else "")
        self._owner = os.getpid()
        self.transport = transport
        self._counts = (servers, workers)
        self._server_state = server_state
        self._has_workers = has_workers  # else they come by themselves: `windlass run`
        self._runs = 0
        self._members: dict[str, Incarnation] = {}  # the workers that take part in the next run
        self._broken: str | None = None
        self._run: Run | None = None  # under way
        self.namespaces: set[str] = set()  # of other jobs on these servers
        self.token = secrets.token_hex(32)
        self.manager: tuple[str, ...] = ()
        self.children: dict[str, Child] = {}
        self._told: set[int] = set()  # pids of servers whose death has been logged
        self._beacon: int | None = None
        self._journal: int | None = None  # the manager's, in memory: nothing is left of it when the driver is gone
        self._revival: Revival | None = None
        self._failed: str | None = None  # why there is no manager any more
        self.collector = Collector(options.trace) if options.trace else None
        self.forks = ForkServer(
            preload=(*PRELOAD, *(name for name in SLOW if name in sys.modules)), warm="windlass.engines.nodes:warm"
        )
        self._driver: DriverStore | None = None

    def open(self) -> None:
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        servers, workers = self._counts
        if not self.options.journal:
            self._journal = os.memfd_create("windlass-journal")
        manager = self._spawn("manager", "run_manager", Role.MANAGER, 0)
        try:
            while not manager.channel.readable(SLICE_SECONDS):
                let_in()
            said = manager.channel.recv()
        except EOFError:
            raise ClusterError("the manager died while it started; its traceback is on stderr") from None
        if isinstance(said, WindlassError):
            raise said
        self.manager = tuple(said)
        self._revival = Revival(manager, self._start_manager, _died, self._fail)
        self._beacon = announce(self.config(Role.DRIVER, -1))
        self._num_spawned_servers = servers
        for rank in range(servers):
            self._spawn(f"server-{rank}", "run_server", Role.SERVER, rank)
        if self._has_workers:
            for rank in range(workers):
                self._spawn(f"worker-{rank}", "run_worker", Role.WORKER, rank)
            self._await_ready([f"worker-{rank}" for rank in range(workers)])
            self.driver()

    def _start_manager(self) -> Child:
        """Another manager in the place of one that died: the same addresses, the same journal."""
        ended = [child.pid for child in list(self.children.values()) if child.poll() is not None]
        return self._spawn("manager", "run_manager", Role.MANAGER, 0, dead_pids=tuple(ended))

    @property
    def num_servers(self) -> int:
        return self._counts[0]

    @property
    def on_worker_loss(self) -> str:
        return self.options.on_worker_loss

    @property
    def has_failed(self) -> bool:
        """Whether there is no manager any more, and none will be."""
        return self._failed is not None

    @property
    def has_replicas(self) -> bool:
        return self.options.replicas > 0

    def _fail(self, reason: str) -> None:
        """There is no manager, and none will be."""
        self._failed = f"{reason}; the cluster cannot go on: close it, and open another"
        if self._driver is not None:
            self._driver._client.fail(ClusterError(self._failed))

    def _spawn(self, name: str, function: str, role: Role, rank: int, **more: Any) -> Child:
        config = msgspec.structs.replace(self.config(role, rank), **more)
        child = self.forks.spawn(
            name, f"windlass.engines.nodes:{function}", config=msgspec.msgpack.encode(config), env={}
        )
        self.children[name] = child
        return child

    def config(self, role: Role, rank: int) -> NodeConfig:
        forms = {"shm": ("unix",), "tcp": ("tcp:127.0.0.1:0",), "tls": ("tls:127.0.0.1:0",)}
        listen: tuple[str, ...] = forms[self.transport] if role in (Role.MANAGER, Role.SERVER) else ()
        journal = ""
        if role is Role.MANAGER:
            listen = self.manager or listen
            journal = self.options.journal or f"/proc/{os.getpid()}/fd/{self._journal}"
        is_traced = role in (Role.SERVER, Role.WORKER)
        return NodeConfig(
            role=role,
            rank=rank,
            token=self.token,
            listen=listen,
            manager=self.manager,
            num_servers=self._counts[0],
            num_workers=self._counts[1],
            state=self._server_state if role is Role.SERVER else "",
            options=self.options,
            journal=journal,
            is_return=bool(self.manager),
            record=self.collector.record(f"{role}-{rank}") if self.collector is not None and is_traced else "",
        )

    def _await_ready(self, names: Sequence[str]) -> None:
        """Wait until these workers have joined. Whoever of them dies instead is an error; at first anybody, but later a
        manager that dies is followed by another."""
        for name in names:
            child = self.children[name]
            while not child.channel.readable(SLICE_SECONDS):
                let_in()
                needed = [self.children[other] for other in (names if self._driver is not None else [*self.children])]
                dead = next((other for other in needed if other.poll() is not None), None)
                if dead is not None:
                    raise ClusterError(f"{_died(dead)} while the cluster started; its traceback is on stderr")
                if self._failed is not None:
                    raise ClusterError(self._failed)
            try:
                self._members[name] = child.channel.recv()
            except EOFError:
                raise ClusterError(f"{_died(child)} before it joined; its traceback is on stderr") from None

    def add_server(self) -> str:
        rank = self._num_spawned_servers
        self._num_spawned_servers += 1
        child = self._spawn(f"server-{rank}", "run_server", Role.SERVER, rank)
        driver = self.driver()
        while (
            not any(node["pid"] == child.pid for node in driver._manager_says()["nodes"])
            or not driver._client.state.is_joined
        ):
            if child.poll() is not None:
                raise ClusterError(f"{_died(child)} before it joined; its traceback is on stderr")
            time.sleep(0.01)
        return child.name

    def remove_server(self, name: str) -> None:
        drain(self.driver(), name)
        self.children[name].wait(5.0)

    def driver(self) -> DriverStore:
        """The driver's own handle, made at the first call."""
        if self._driver is None:
            store = open_store(self.config(Role.DRIVER, -1))
            assert isinstance(store, DriverStore)
            self._driver = store
        return self._driver

    # --- running a function -------------------------------------------------------------------------------------------

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, is_again: bool = False
    ) -> list[Any]:
        """`is_again`: it is the last run once more, and work that was begun in it goes on."""
        if self._failed is not None:
            raise ClusterError(self._failed)
        if self._broken is not None:
            self.replace_workers()
        self._fill_seats()
        self._runs += not is_again
        workers = [self.children[f"worker-{rank}"] for rank in range(self._counts[1])]
        call = cloudpickle.dumps((function, args, kwargs), protocol=5)
        order = Order(self._runs, tuple(self._members.values()), call, self._count_barriers())
        crew = Crew(self._replace, self._departed, _died, self._tell_lost_servers)
        waiting: list[Child] = []
        try:
            run = self._run = Run(order, workers, self.options.on_worker_loss, crew)
            try:
                return run.finish()
            finally:
                waiting = list(run.waiting.values())
        except BaseException as error:
            self._broken = text_of(error)
            self._tell_others(error, waiting)
            raise
        finally:
            self._run = None

    def _count_barriers(self) -> int:
        """How many barriers were passed before this run, for whoever comes to it later; -1 if that is not known. It is
        asked for only where seats are taken again."""
        if self._runs == 1:
            return 0
        try:
            return self.driver().version(BARRIER) if self.on_worker_loss == "wait" else -1
        except UsageError:  # nobody has come to one yet
            return 0

    def _departed(self, child: Child) -> str:
        """Why a worker whose process lives is no member any more; empty if it is one."""
        state = self.driver()._client.state
        me = self._members[child.name]
        is_gone = me not in state.nodes and me in state.departed
        if child.poll() is not None or not (is_gone or self._is_awaited(me)):
            return ""
        lease = self.options.worker_lease_seconds
        return f"{child.name} (pid {child.pid}) was not heard of for {lease:g} s (worker_lease_seconds)"

    def _tell_lost_servers(self) -> None:
        """Where replicas hide the death of a server from everybody else, it is said here. Without them LostRange says
        it, and one that was removed has left with status 0."""
        for child in list(self.children.values()):
            if self.has_replicas and child.name.startswith("server-") and child.pid not in self._told and child.poll():
                self._told.add(child.pid)
                log.warning("%s; others have what it held, and go on", _died(child))

    def _is_awaited(self, worker: Incarnation) -> bool:
        """Whether the manager keeps the seat of a worker that it does not hear of."""
        if self.on_worker_loss != "wait":
            return False
        with suppress(WindlassError):  # there may be no manager at the moment
            nodes = self.driver()._manager_says()["nodes"]
            return any(node["incarnation"] == worker and node["state"] == "awaited" for node in nodes)
        return False

    def _fill_seats(self) -> None:
        """Workers that were lost in a run that went on without them are replaced before the next one."""
        names = [f"worker-{rank}" for rank in range(self._counts[1])]
        empty = [name for name in names if self.children[name].poll() is not None]
        for name in empty:
            self.children[name].channel.close()
            self._spawn(name, "run_worker", Role.WORKER, int(name.removeprefix("worker-")))
        self._await_ready(empty)

    def _replace(self, name: str) -> Child:
        """Another worker in this seat, while a run is under way; and another, if that one is killed as it starts."""
        rank = int(name.removeprefix("worker-"))
        for attempt in count(1):
            self.children[name].wait(5.0)
            self.children[name].channel.close()
            child = self._spawn(name, "run_worker", Role.WORKER, rank, is_late=True)
            try:
                self._await_ready([name])
                return child
            except ClusterError:
                is_killed = (child.wait(1.0) or 0) < 0
                if not is_killed or attempt == MAX_STARTS:
                    raise
        raise AssertionError

    def add_worker(self) -> str:
        rank = self._counts[1]
        name = f"worker-{rank}"
        child = self._spawn(name, "run_worker", Role.WORKER, rank, is_late=self._run is not None)
        self._await_ready([name])
        self._counts = (self._counts[0], rank + 1)
        if self._run is not None:
            self._run.add(child)  # if that one is over, it takes part in the next
        return name

    def _tell_others(self, error: BaseException, others: list[Child]) -> None:
        """A worker failed: end the others' waits, so that nobody hangs on what will never come."""
        if not others or not isinstance(error, Exception):
            return
        reason = f"the run was stopped: {in_words(error)}".split("\nraised in")[0]
        client = self.driver()._client
        client.post(Send(MANAGER, Abort(reason=reason)))
        deadline = time.monotonic() + STRAGGLE_SECONDS
        for child in others:
            child.channel.readable(max(0.0, deadline - time.monotonic()))

    def replace_workers(self) -> None:
        """After a failed run the workers' clocks differ: new ones take their seats. Keys and values stay."""
        if not self._has_workers:
            return
        names = [f"worker-{rank}" for rank in range(self._counts[1])]
        for name in names:
            child = self.children[name]
            child.channel.close()
            child.kill()
            child.wait(5.0)
        for rank, name in enumerate(names):
            self._spawn(name, "run_worker", Role.WORKER, rank)
        self._await_ready(names)
        self._broken = None

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process, then write the trace if there is one. Safe to repeat. Ctrl-C shortens the waits in it, and
        is raised when all is done."""
        with uninterrupted():
            try:
                self._await_judged()
                if self._revival is not None:
                    self._revival.close()
                if self._driver is not None:
                    self._driver.close()
            finally:
                try:
                    self.forks.close(grace_seconds=0.5)
                finally:
                    self._let_go()

    def _let_go(self) -> None:
        for fd in (self._journal, self._beacon):  # not before: a manager that still starts opens the journal
            if fd is not None:
                os.close(fd)
        self._journal = self._beacon = None
        if self.ledger is not None:
            self.ledger.close()
        if self.collector is not None:
            self.collector.write()

    def _await_judged(self) -> None:
        """Whoever disturbs this cluster from outside compares what the servers have counted, when all is over."""
        if self.ledger is None or self.ledger.is_own or os.getpid() != self._owner:
            return
        if self._beacon is not None and self.ledger.phase is Phase.RUNNING:
            self.ledger.tell(Phase.ENDED)
            self.ledger.await_judged(JUDGE_SECONDS, let_in)


def _died(child: Child) -> str:
    code = child.wait(1.0)
    if code is None:
        return f"{child.name} (pid {child.pid}) closed its channel"
    if code < 0:
        return f"{child.name} (pid {child.pid}) was killed by {signal.Signals(-code).name}"
    return f"{child.name} (pid {child.pid}) exited with status {code}"


def check_replicas(replicas: int, servers: int, called: str = "replicas") -> None:
    if type(replicas) is not int or not 0 <= replicas < servers:
        raise UsageError(
            f"{called} expects a whole number below the number of servers ({servers}), got {replicas!r}: "
            "every copy is on a server of its own"
        )


def check_transport(transport: str) -> str:
    if transport == "auto":
        return "shm"
    if transport not in ("shm", "tcp", "tls"):
        raise UsageError(f"transport expects 'auto', 'shm', 'tcp' or 'tls', got {transport!r}")
    return transport


def drain(driver: DriverStore, name: str) -> None:
    """Have a server hand over all that it holds, and leave. Blocks."""
    client = driver._client
    alive = [node for node in driver._manager_says()["nodes"] if node["state"] == "alive"]
    servers = {node["name"]: node["incarnation"] for node in alive}
    if name not in servers or not name.startswith("server-"):
        known = ", ".join(sorted(one for one in servers if one.startswith("server-")))
        raise UsageError(f"remove_server('{name}'): there is no such server (servers: {known})")
    what = f"remove_server('{name}')"
    client.request(MANAGER, lambda n: Drain(request=n, server=servers[name]), what)
