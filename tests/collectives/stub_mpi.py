"""As much of mpi4py as the MPI backend uses, between threads of one process: the backend runs where MPI is missing.

Messages are copied when they are sent, and matched by source, in order. The collectives are plain numpy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

IN_PLACE = object()
SUM, MIN, MAX = np.add, np.minimum, np.maximum


class _World:
    def __init__(self, size: int) -> None:
        self.size = size
        self.boxes: dict[tuple[int, int], queue.SimpleQueue[Any]] = {
            (source, to): queue.SimpleQueue() for source in range(size) for to in range(size)
        }
        self.table: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class Request:
    def __init__(self, test: Callable[[], bool]) -> None:
        self._test, self._is_done = test, False

    def Test(self) -> bool:
        self._is_done = self._is_done or self._test()
        return self._is_done


class Comm:
    """One rank's end. `Comm.world(n)` makes all of them."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self._rank = world, rank

    @staticmethod
    def world(size: int) -> list[Comm]:
        shared = _World(size)
        return [Comm(shared, rank) for rank in range(size)]

    def Dup(self) -> Comm:
        return self

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._world.size

    def Isend(self, data: Any, dest: int) -> Request:
        self._world.boxes[self._rank, dest].put(np.array(data))
        return Request(lambda: True)

    def Irecv(self, data: Any, source: int) -> Request:
        box = self._world.boxes[source, self._rank]

        def test() -> bool:
            try:
                data[:] = box.get_nowait()
            except queue.Empty:
                return False
            return True

        return Request(test)

    def _everyones(self, mine: Any) -> list[Any]:
        self._world.table[self._rank] = np.array(mine)
        self._world.barrier.wait(20)
        found = list(self._world.table)
        self._world.barrier.wait(20)
        return found

    def Allreduce(self, send: Any, work: Any, op: Any) -> None:
        assert send is IN_PLACE
        work[:] = op.reduce(self._everyones(work), axis=0)

    def Reduce_scatter(self, work: Any, own: Any, counts: list[int], op: Any) -> None:
        lo = sum(counts[: self._rank])
        own[:] = op.reduce(self._everyones(work), axis=0)[lo : lo + counts[self._rank]]

    def Allgatherv(self, send: Any, receive: Any) -> None:
        work, counts, starts, _ = receive
        for each, count, lo in zip(self._everyones(work), counts, starts, strict=True):
            work[lo : lo + count] = each[lo : lo + count]

    def Bcast(self, work: Any, root: int) -> None:
        work[:] = self._everyones(work)[root]
