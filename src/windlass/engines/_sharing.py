"""A job that shares another cluster's servers and manager: workers of its own, in a namespace of its own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windlass.engines.config import NodeConfig
from windlass.engines.processes import ProcessEngine
from windlass.errors import UsageError
from windlass.types import Role


class SharedEngine(ProcessEngine):
    """Starts and ends workers only; the servers are the host's to look after."""

    def __init__(self, host: ProcessEngine, namespace: str, workers: int) -> None:
        if namespace in host.namespaces:
            raise UsageError(f"there is a job in namespace '{namespace}' already: close it first, or choose another")
        super().__init__(
            servers=host.num_servers,
            workers=workers,
            transport=host.transport,
            options=host.options,
            server_state="",
            has_workers=True,
        )
        self._host, self._namespace = host, namespace
        host.namespaces.add(namespace)

    def _start(self) -> None:
        self.token, self.manager = self._host.token, self._host.manager
        names = [f"worker-{rank}" for rank in range(self._counts[1])]
        for rank, name in enumerate(names):
            self._spawn(name, "run_worker", Role.WORKER, rank)
        self._await_ready(names)
        self.driver()

    def config(self, role: Role, rank: int) -> NodeConfig:
        return msgspec.structs.replace(super().config(role, rank), namespace=self._namespace)

    def _await_ready(self, names: Sequence[str]) -> None:
        self.children["manager"] = self._host.children["manager"]  # which may be another one by now
        super()._await_ready(names)

    def close(self) -> None:
        self._host.namespaces.discard(self._namespace)
        super().close()

    def add_server(self) -> str:
        raise UsageError("the servers are those of the cluster that is shared: add one there")

    def remove_server(self, name: str) -> None:
        raise UsageError("the servers are those of the cluster that is shared: remove one there")
