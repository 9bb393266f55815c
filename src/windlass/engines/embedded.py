"""A store in this process alone: manager, server and worker as plain objects, no thread, nothing to start.

The three state machines are the ones that run on a cluster; here they exchange messages by reference and take turns
inside the caller's own call.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

from windlass._transport.inprocess import Network
from windlass._transport.loop import Loop
from windlass._wire.messages import Join
from windlass.engines._compiling import noticed
from windlass.errors import options_checked, unknown_options
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.scheduler import Hosted
from windlass.server.state import ServerConfig, ServerState
from windlass.server.traced import make_server
from windlass.trace.collector import Collector
from windlass.trace.recorder import Recorder, open_recorder
from windlass.types import MANAGER, Consistency, Incarnation, Role, Sequential
from windlass.worker.assigning import Assigns
from windlass.worker.options import StoreOptions
from windlass.worker.state import WorkerState
from windlass.worker.traced import make_client

SERVER, WORKER = Incarnation(1), Incarnation(2)


class Store(Assigns):
    """The embedded store: `wl.Store()`. One worker, one server, this process."""

    @options_checked
    def __init__(self, *, consistency: Consistency | None = None, **options: Any) -> None:
        known = list(StoreOptions.__dataclass_fields__)
        if unknown := [name for name in options if name not in known]:
            raise unknown_options("Store", unknown, known)
        chosen = StoreOptions(consistency=Sequential() if consistency is None else consistency, **options)
        self._collector = Collector(chosen.trace) if chosen.trace else None
        records = [self._record(name, who) for name, who in (("server-0", SERVER), ("worker-0", WORKER))]
        self._server_recorder = records[0]
        network = Network()
        local: dict[str, object] = {}
        manager_hub, server_hub = network.hub(MANAGER), network.hub(SERVER)
        server = ServerConfig(
            join=Join(role=Role.SERVER, pid=os.getpid(), addresses=server_hub.addresses),
            manager=manager_hub.addresses,
            local=local,
            compiling=noticed,
        )
        manager = ManagerState(ManagerConfig(num_servers=1, num_workers=1, pid=os.getpid()))
        loops = [
            Loop(Hosted(manager), manager_hub, "manager"),
            Loop(make_server(ServerState, SERVER, server_hub.memory, server, records[0]), server_hub, "server-0"),
        ]
        server_hub.dial(MANAGER, manager_hub.addresses)

        def others_work() -> bool:
            return any(loop.turn(0) for loop in loops)

        hub = network.hub(WORKER, others_work)
        join = Join(role=Role.WORKER, pid=os.getpid(), addresses=())
        state = WorkerState(WORKER, join, manager_hub.addresses)
        client = make_client(hub, state, chosen, is_eager=True, recorder=records[1])
        client.join(manager_hub.addresses, timeout=5.0)
        super().__init__(client, chosen, local)
        if self._collector is not None:
            atexit.register(self.close)  # a script that just ends has its trace, too

    def _record(self, name: str, who: Incarnation) -> Recorder | None:
        return open_recorder(self._collector.record(name), who) if self._collector is not None else None

    def close(self) -> None:
        super().close()
        if self._server_recorder is not None:
            self._server_recorder.close()
        if self._collector is not None:
            self._collector.write()
            atexit.unregister(self.close)
