"""A crew is the members of one backend, alive for many cases: `perform(case)` gives each member's result, by rank."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.util import find_spec
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import windlass as wl
from tests.collectives import stub_mpi
from tests.collectives.cases import Case, call, perform, plain, tensor_of

ROOT = Path(__file__).resolve().parents[2]
HAS_MPI = shutil.which("mpirun") is not None and find_spec("mpi4py") is not None


class Devices:
    """Devices of this process: one list of tensors, one call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._group = wl.Group(["cpu"] * size)

    def perform(self, case: Case) -> list[Any]:
        tensors = [tensor_of(case, rank) for rank in range(self.size)]
        return [plain(each) for each in call(self._group, case, tensors)]

    def close(self) -> None:
        self._group.close()


_groups: dict[str, wl.Group] = {}
"""In a worker: its groups, kept from case to case. Threads of one process have names of their own."""


def in_worker(store: wl.Store, backend: str, meeting: str, case: Case) -> Any:
    name = f"{backend} {store.rank} {meeting}"
    if name not in _groups:
        if backend == "gloo":
            import torch.distributed as dist

            dist.init_process_group("gloo", f"file://{meeting}", rank=store.rank, world_size=store.num_workers)
        _groups[name] = wl.Group("torch" if backend == "gloo" else store)
    return perform(_groups[name], case)


class Workers:
    """Workers of a cluster: processes or threads; over shared memory, or over gloo."""

    def __init__(self, size: int, backend: str = "shared", engine: str = "processes") -> None:
        self.size, self._backend = size, backend
        self._folder = tempfile.TemporaryDirectory()
        self._cluster = wl.Cluster(servers=1, workers=size, engine=engine, timeout=30.0)

    def perform(self, case: Case) -> list[Any]:
        return self._cluster.run(in_worker, self._backend, f"{self._folder.name}/meeting", case)

    def close(self) -> None:
        self._cluster.close()
        self._folder.cleanup()


class Mpi:
    """Processes under mpirun."""

    def __init__(self, size: int) -> None:
        self.size = size
        key = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory()
        address = f"{self._folder.name}/driver"
        command = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl"
        command += f" vader,self -n {size} {sys.executable} -m tests.collectives.mpi_rank {address}"
        with Listener(address, authkey=bytes.fromhex(key)) as listener:
            self._process = subprocess.Popen(
                command.split(), cwd=ROOT, env={**os.environ, "CREW_KEY": key}, stdin=subprocess.DEVNULL
            )
            listener._listener._socket.settimeout(40)  # type: ignore[attr-defined]
            called = [listener.accept() for _ in range(size)]
        told = {connection.recv(): connection for connection in called}
        self._ranks = [told[each] for each in sorted(told)]

    def perform(self, case: Case) -> list[Any]:
        for rank in self._ranks:
            rank.send(case)
        results = [rank.recv() for rank in self._ranks]
        for _, error in results:
            if error is not None:
                raise error
        return [result for result, _ in results]

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        self._process.wait(20)
        self._folder.cleanup()


class StubMpi:
    """Threads over the stub of MPI."""

    def __init__(self, size: int) -> None:
        self.size = size
        ends = stub_mpi.Comm.world(size)
        self._groups = in_threads([lambda end=end: wl.Group(end, timeout=20.0) for end in ends])

    def perform(self, case: Case) -> list[Any]:
        return in_threads([lambda group=group: perform(group, case) for group in self._groups])

    def close(self) -> None:
        for group in self._groups:
            group.close()


def in_threads(acts: list[Callable[[], Any]]) -> list[Any]:
    """What each gives, all at once; raises the first one's error."""
    results: list[Any] = [None] * len(acts)

    def run(index: int) -> None:
        try:
            results[index] = acts[index](), None
        except Exception as error:
            results[index] = None, error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _, error in results:
        if error is not None:
            raise error
    return [result for result, _ in results]


CREWS: dict[str, Callable[[], Any]] = {
    "devices-1": lambda: Devices(1),
    "devices-6": lambda: Devices(6),
    "shared-4": lambda: Workers(4),
    "shared-threads-3": lambda: Workers(3, engine="threads"),
    "gloo-3": lambda: Workers(3, backend="gloo"),
    "mpi-stub-3": lambda: StubMpi(3),
} | ({"mpi-3": lambda: Mpi(3)} if HAS_MPI else {})
"""Without mpirun the stub alone runs the MPI backend."""
