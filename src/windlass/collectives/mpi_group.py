"""Collectives over MPI, by mpi4py. Started by mpirun, one member a process.

The meeting before each call has a deadline; the native collective after it has not: everybody is there, and a process
that dies in it takes the whole job with it, which is how MPI ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from windlass.collectives.call import Call, Verb
from windlass.collectives.holders import HostHolder, holder_of
from windlass.collectives.messages import Handle, MessageBackend
from windlass.collectives.schedule import cut
from windlass.errors import ClusterError, UsageError
from windlass.store.reduce import Op
from windlass.types import Array, Bytes

MAX_COUNT = 1 << 28
"""Elements in one native call: MPI counts with 32 bits."""

_NAMES = {Op.SUM: "SUM", Op.MEAN: "SUM", Op.MIN: "MIN", Op.MAX: "MAX", Op.ANY: "MAX", Op.ALL: "MIN"}


def open_mpi(over: Any, timeout: float) -> MpiBackend:
    """Over a communicator, or over COMM_WORLD for "mpi"."""
    if isinstance(over, str):
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise UsageError(f"Group('mpi') needs mpi4py and an MPI library: {error}; pip install mpi4py") from error
        over = MPI.COMM_WORLD
    backend = MpiBackend(over)
    backend.introduce(timeout)
    return backend


class MpiBackend(MessageBackend):
    """A rank of a communicator. Uses a duplicate of it, so that no message of its owner's is taken for ours. It is
    never freed: that is collective, and the others may be gone."""

    name = "MPI"

    def __init__(self, communicator: Any) -> None:
        # MPI's constants are in the module that the communicator's class comes from.
        modules = [sys.modules[each.__module__] for each in type(communicator).__mro__]
        self._mpi = next(module for module in modules if hasattr(module, "IN_PLACE"))
        self._communicator = communicator.Dup()
        super().__init__(communicator.Get_rank(), communicator.Get_size(), _MpiWire(self._communicator))

    def native(self, call: Call) -> bool:
        agreed = call.terms
        if agreed.reduces and agreed.reducer.op is Op.CUSTOM:
            return False
        mine = holder_of(call.tensor, agreed.kind)
        on_host = mine if isinstance(mine, HostHolder) else HostHolder(mine.numbers(0, agreed.kind.size).copy())
        work: Array = on_host.work
        # MPI neither adds nor compares its own bool.
        numbers = work.view(np.uint8) if work.dtype == bool else work
        self._run(call, numbers)
        if agreed.reduces and agreed.reducer.op is Op.MEAN:
            on_host.divide(0, agreed.kind.size, self.size)
        if on_host is not mine:
            mine.copy(0, agreed.kind.size, on_host)
        mine.finish()
        return True

    def _run(self, call: Call, work: Array) -> None:
        agreed, comm, mpi = call.terms, self._communicator, self._mpi
        parts = cut(0, work.size, self.size)
        counts, starts = [hi - lo for lo, hi in parts], [lo for lo, _ in parts]
        match agreed.verb:
            case Verb.ALLREDUCE:
                operation = getattr(mpi, _NAMES[agreed.reducer.op])
                for lo in range(0, work.size, MAX_COUNT):
                    comm.Allreduce(mpi.IN_PLACE, work[lo : lo + MAX_COUNT], op=operation)
            case Verb.REDUCE_SCATTER:
                lo, hi = parts[self.rank]
                own = np.empty(hi - lo, work.dtype)
                comm.Reduce_scatter(work, own, counts, op=getattr(mpi, _NAMES[agreed.reducer.op]))
                work[lo:hi] = own
            case Verb.ALL_GATHER:
                comm.Allgatherv(mpi.IN_PLACE, [work, counts, starts, None])
            case Verb.BROADCAST:
                for lo in range(0, work.size, MAX_COUNT):
                    comm.Bcast(work[lo : lo + MAX_COUNT], root=agreed.root)
            case _:
                raise AssertionError(f"{agreed.verb} moves no tensor")


class _MpiWire:
    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator

    def send(self, to: int, data: Bytes) -> Handle:
        return _handle(lambda: self._communicator.Isend(data, dest=to), to)

    def receive(self, source: int, data: Bytes) -> Handle:
        return _handle(lambda: self._communicator.Irecv(data, source=source), source)


def _handle(begin: Callable[[], Any], peer: int) -> Handle:
    def asked(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RuntimeError as error:  # MPI.Exception is one
            raise ClusterError(f"MPI failed in a message with rank {peer}: {error}") from error

    request = asked(begin)
    return Handle(lambda: bool(asked(request.Test)))
