"""One process of a peer's group: `python -m bench.ranks gloo|mpi ADDRESS ...`, started by peers.py.

A rank carries out what the driver sends over its connection, one command at a time, and blocks in a read in between:
OpenMPI polls without pause inside its own waits, so an idle rank must never stand in one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any, Protocol

import numpy as np


class Collective(Protocol):
    """What a peer can do. `step` is one all-reduce of what `prepare` made; both are called by every rank at once."""

    rank: int
    size: int

    def prepare(self, elements: int) -> None: ...
    def step(self) -> None: ...
    def result(self) -> Any: ...
    def barrier(self) -> None: ...


class Gloo:
    """torch.distributed's all_reduce on the CPU, in place as it always is."""

    def __init__(self, rank: int, size: int, meeting: str) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.rank, self.size = rank, size
        self._torch, self._dist = torch, dist
        self._tensor = torch.zeros(0)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)

    def prepare(self, elements: int) -> None:
        self._tensor = self._torch.full((elements,), float(self.rank + 1))

    def step(self) -> None:
        self._dist.all_reduce(self._tensor)

    def result(self) -> Any:
        return self._tensor.numpy()

    def barrier(self) -> None:
        self._dist.barrier()


class Mpi:
    """MPI_Allreduce from one warm array into another, as a push and a pull with `out=` do."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        self._given = self._taken = np.zeros(0, np.float32)

    def prepare(self, elements: int) -> None:
        self._given = np.full(elements, self.rank + 1, np.float32)
        self._taken = np.full(elements, -1, np.float32)

    def step(self) -> None:
        self._comm.Allreduce(self._given, self._taken)

    def result(self) -> Any:
        return self._taken

    def barrier(self) -> None:
        self._comm.Barrier()


def prepare(group: Collective, elements: int) -> None:
    """Make the arrays, check one sum, and leave zeros behind: what is summed in place would grow without end."""
    group.prepare(elements)
    group.step()
    check_sum(group.result(), group.size)
    if isinstance(group, Gloo):
        group.result().fill(0)


def check_sum(result: Any, num_ranks: int) -> None:
    """Raise unless every element is 1 + 2 + ... + num_ranks."""
    expected = num_ranks * (num_ranks + 1) // 2
    if not (result == expected).all():
        raise ArithmeticError(f"expected every element to be {expected}, got {result[result != expected][:4]}")


def timed(step: Callable[[], object], barrier: Callable[[], object], iterations: int) -> float:
    """Seconds per iteration, as seen here, of a loop that everybody begins together."""
    barrier()
    begin = time.perf_counter()
    for _ in range(iterations):
        step()
    return (time.perf_counter() - begin) / iterations


def serve(group: Collective, address: str) -> None:
    with Client(address, authkey=bytes.fromhex(os.environ["BENCH_KEY"])) as driver:
        driver.send(group.rank)
        while True:
            try:
                verb, number = driver.recv()
            except EOFError:
                return
            if verb == "prepare":
                driver.send(prepare(group, number))
            else:
                driver.send(timed(group.step, group.barrier, number))


if __name__ == "__main__":
    if sys.argv[1] == "gloo":
        serve(Gloo(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]), sys.argv[2])
    else:
        serve(Mpi(), sys.argv[2])
