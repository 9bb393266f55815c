"""`engine="threads"`: every node a thread of this process; messages pass as objects. For tests, teaching and debugging:
the whole cluster stops at one breakpoint."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from windlass._transport.inprocess import Network
from windlass._transport.loop import Loop
from windlass._wire.effects import Send
from windlass._wire.messages import Abort, Join
from windlass.engines._compiling import noticed
from windlass.engines._finished import Doubts, Finished
from windlass.engines.config import Options, fresh_incarnation
from windlass.engines.nodes import MEET_SECONDS, Outcome, call
from windlass.engines.processes import drain
from windlass.errors import ClusterError, UsageError, in_words
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.scheduler import Hosted
from windlass.server.state import ServerConfig, ServerState
from windlass.server.traced import make_server
from windlass.trace.collector import Collector
from windlass.trace.recorder import Recorder, open_recorder
from windlass.types import MANAGER, Incarnation, Role
from windlass.worker.driver import DriverStore
from windlass.worker.state import WorkerState
from windlass.worker.store import Store
from windlass.worker.traced import make_client


class ThreadEngine:
    def __init__(self, *, servers: int, workers: int, options: Options, server_state: type[ServerState]) -> None:
        self._network = Network()
        self._options = options
        self._is_over = False
        self._local: dict[str, object] = {}
        self._loops: list[Loop] = []
        self._counts = (servers, workers)
        self._server_state = server_state
        self._workers: list[Store] = []
        self._driver: DriverStore | None = None
        self._runs = 0
        self._num_added = 0  # servers, ever
        self._is_broken = False
        self._threads: list[threading.Thread] = []
        self._collector = Collector(options.trace) if options.trace else None
        self._recorders: list[Recorder] = []  # of the servers; a worker's store closes its own

    def open(self) -> None:
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        servers, workers = self._counts
        hub = self._network.hub(MANAGER)
        self.manager = hub.addresses
        options = self._options
        config = ManagerConfig(
            num_servers=servers, num_workers=workers, pid=os.getpid(), addresses=hub.addresses,
            replicas=options.replicas, lease_seconds=options.lease_seconds,
        )  # fmt: skip
        self._serve(Loop(Hosted(ManagerState(config)), hub, "manager", options.manager_tick_seconds))
        for rank in range(servers):
            self._add_server(rank)
        self._join_workers()

    def _add_server(self, rank: int) -> Incarnation:
        me = fresh_incarnation()
        hub = self._network.hub(me)
        join = Join(role=Role.SERVER, pid=os.getpid(), addresses=hub.addresses, rank=rank)
        server = ServerConfig(
            join=join, manager=self.manager, local=self._local, lease_seconds=self._options.lease_seconds,
            compiling=noticed,
        )  # fmt: skip
        recorder = self._recorder(f"server-{rank}", me)
        if recorder is not None:
            self._recorders.append(recorder)
        state = make_server(self._server_state, me, hub.memory, server, recorder)
        hub.dial(MANAGER, self.manager)
        self._serve(Loop(state, hub, f"server-{rank}", self._options.tick_seconds))
        self._num_added += 1
        return me

    def add_server(self) -> str:
        rank = self._num_added
        me = self._add_server(rank)
        state = self.driver()._client.state
        while me not in state.nodes or not state.is_joined:
            self.driver()._manager_says()
            time.sleep(0.01)
        return f"server-{rank}"

    def add_worker(self) -> str:
        raise UsageError("add_worker expects engine='processes': a thread cannot join a run under way")

    def remove_server(self, name: str) -> None:
        drain(self.driver(), name)

    def _join_workers(self) -> None:
        found: dict[int, Store] = {}

        def join(rank: int) -> None:
            found[rank] = self._store(Role.WORKER, rank)

        joining = [threading.Thread(target=join, args=(rank,)) for rank in range(self._counts[1])]
        for thread in joining:
            thread.start()
        for thread in joining:
            thread.join()
        if len(found) < self._counts[1]:
            raise ClusterError("not every worker could join; its traceback is on stderr")
        self._workers = [found[rank] for rank in range(self._counts[1])]

    def _serve(self, loop: Loop) -> None:
        def run() -> None:
            while not self._is_over and loop.stopped is None:
                loop.turn(None)
            if loop.stopped is not None:
                loop.hub.close()

        self._loops.append(loop)
        thread = threading.Thread(target=run, name=f"windlass-{loop.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _store(self, role: Role, rank: int) -> Store:
        me = fresh_incarnation()
        hub = self._network.hub(me)
        options = self._options.for_store()
        state = WorkerState(me, Join(role=role, pid=os.getpid(), addresses=(), rank=rank), self.manager)
        recorder = self._recorder(f"worker-{rank}", me) if role is Role.WORKER else None
        client = make_client(hub, state, options, is_eager=False, recorder=recorder)
        client.join(self.manager, 10.0)
        kind = DriverStore if role is Role.DRIVER else Store
        return kind(client, options, self._local)

    def _recorder(self, name: str, me: Incarnation) -> Recorder | None:
        return open_recorder(self._collector.record(name), me) if self._collector is not None else None

    def driver(self) -> DriverStore:
        if self._driver is None:
            store = self._store(Role.DRIVER, -1)
            assert isinstance(store, DriverStore)
            self._driver = store
        return self._driver

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, is_again: bool = False
    ) -> list[Any]:
        """`is_again`: it is the last run once more, and work that was begun in it goes on."""
        if self._is_broken:
            self.replace_workers()
        self._runs += not is_again
        outcomes: dict[int, Outcome] = {}
        first: list[int] = []
        doubts = [Doubts(store._client) for store in self._workers]

        def work(rank: int) -> None:
            self._workers[rank]._client.meet([one._client.state.me for one in self._workers], MEET_SECONDS)
            outcome = call(self._runs, function, self._workers[rank], args, kwargs)
            if outcome.error is not None and not first:
                first.append(rank)
                reason = f"the run was stopped: {in_words(outcome.error)}"
                self.driver()._client.post(Send(MANAGER, Abort(reason=reason)))
            elif outcome.tally is not None:
                for other in range(self._counts[1]):
                    if other != rank and other not in outcomes:
                        doubts[other].add(Finished(rank, outcome.tally))
            outcomes[rank] = outcome

        threads = [
            threading.Thread(target=work, args=(rank,), name=f"worker-{rank}", daemon=True)
            for rank in range(self._counts[1])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if first:
            self._is_broken = True  # their clocks differ now, and the word to stop may still be on its way to some
            outcome = outcomes[first[0]]
            assert outcome.error is not None
            outcome.error.add_note(f"raised in worker-{first[0]}:\n{outcome.trace}")
            raise outcome.error
        return [outcomes[rank].result for rank in range(self._counts[1])]

    def replace_workers(self) -> None:
        self._is_broken = False
        for store in self._workers:
            store.close()
        self._join_workers()

    def close(self) -> None:
        for store in (*self._workers, *([self._driver] if self._driver else [])):
            store.close()
        self._is_over = True
        for loop in self._loops:
            loop.hub.wake()
        for thread in self._threads:
            thread.join(2.0)
        for loop in self._loops:
            loop.hub.close()
        for recorder in self._recorders:
            recorder.close()
        if self._collector is not None:
            self._collector.write()
