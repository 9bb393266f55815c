"""A store in this process alone: manager, server and worker as plain objects, no thread, nothing to start.

The three state machines are the ones that run on a cluster; here they exchange messages by reference and take turns
inside the caller's own call.
"""

from __future__ import annotations

import os
from typing import Any

from windlass._transport.inprocess import Network
from windlass._transport.loop import Loop
from windlass._wire.messages import Join
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.server.state import ServerConfig, ServerState
from windlass.types import MANAGER, Consistency, Incarnation, Role, Sequential
from windlass.worker.client import Client
from windlass.worker.state import WorkerState
from windlass.worker.store import Store as WorkerStore
from windlass.worker.store import StoreOptions

SERVER, WORKER = Incarnation(1), Incarnation(2)


class Store(WorkerStore):
    """The embedded store: `wl.Store()`. One worker, one server, this process."""

    def __init__(self, *, consistency: Consistency | None = None, **options: Any) -> None:
        chosen = StoreOptions(consistency=consistency or Sequential(), **options)
        network = Network()
        local: dict[str, object] = {}
        manager_hub, server_hub = network.hub(MANAGER), network.hub(SERVER)
        loops = [
            Loop(ManagerState(ManagerConfig(num_servers=1, num_workers=1)), manager_hub, "manager"),
            Loop(ServerState(SERVER, server_hub.memory, ServerConfig(local)), server_hub, "server-0"),
        ]
        server_hub.dial(MANAGER, manager_hub.addresses)
        join_as(server_hub, Role.SERVER)

        def others_work() -> bool:
            return any([loop.turn(0) for loop in loops])

        hub = network.hub(WORKER, others_work)
        state = WorkerState(WORKER, Role.WORKER)
        client = Client(hub, state, timeout=chosen.timeout, warn_seconds=chosen.warn_seconds, is_eager=True)
        client.join(Join(role=Role.WORKER, pid=os.getpid(), addresses=()), manager_hub.addresses, timeout=5.0)
        super().__init__(client, chosen, local)


def join_as(hub: Any, role: Role, rank: int = -1) -> None:
    """Tell the manager, over a link that is open already, that this node wants in."""
    from windlass._wire.effects import Send

    hub.send(Send(MANAGER, Join(role=role, pid=os.getpid(), addresses=hub.addresses, rank=rank)))
