"""Collectives over torch.distributed: gloo between CPUs, NCCL between GPUs.

With gloo the members meet before each call, as everywhere. NCCL moves only what is on a GPU, so there is no meeting:
different calls and late members are NCCL's own to find, by the timeout of its process group.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from windlass.collectives.call import Call, Verb
from windlass.collectives.holders import DeviceHolder, Holder, HostHolder, holder_of
from windlass.collectives.messages import Handle, MessageBackend
from windlass.collectives.schedule import cut
from windlass.collectives.strategies import Machines, Strategy
from windlass.collectives.tensors import Kind, is_torch, new_tensor
from windlass.errors import ClusterError, TimeoutError, UsageError
from windlass.store.reduce import Op

_OPERATIONS = {
    Op.SUM: dist.ReduceOp.SUM,
    Op.MEAN: dist.ReduceOp.SUM,
    Op.MIN: dist.ReduceOp.MIN,
    Op.MAX: dist.ReduceOp.MAX,
    Op.ANY: dist.ReduceOp.MAX,
    Op.ALL: dist.ReduceOp.MIN,
}
_NATIVE_TYPES = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)



def open_torch(over: Any, timeout: float) -> TorchBackend:
    """Over a process group, or over the default one for "torch"."""
    if not dist.is_initialized():
        raise UsageError("Group('torch') needs torch.distributed: call torch.distributed.init_process_group() first")
    group = dist.group.WORLD if isinstance(over, str) else over
    backend = TorchBackend(group)
    if backend.meets:
        backend.introduce(timeout)
    return backend


class TorchBackend(MessageBackend):
    """A rank of a process group."""

    def __init__(self, group: Any) -> None:
        self._group = group
        kind = str(dist.get_backend(group))
        self.name = f"torch.distributed ({kind})"
        self.meets = "gloo" in kind
        super().__init__(dist.get_rank(group), dist.get_world_size(group), _TorchWire(group))

    def kind(self, given: Any, what: str) -> Kind:
        kind = super().kind(given, what)
        if not self.meets and not (is_torch(given) and given.is_cuda):
            raise UsageError(f"{what}: {self.name} moves what is on a GPU; this tensor is in main memory")
        return kind

    def buffer(self, call: Call, dtype: Any) -> Any:
        return new_tensor(call.terms.kind, dtype, "cpu" if self.meets else "cuda")

    def carry_out(self, call: Call, opened: Any, machines: Machines | None) -> None:
        if call.terms.strategy is Strategy.CPU and not self.meets:
            raise UsageError(f"{call.terms.text}: {self.name} does not reach main memory; use another strategy")
        super().carry_out(call, opened, machines)

    def meet(self, call: Call) -> None:
        if self.meets:
            super().meet(call)
        elif call.terms.verb is Verb.BARRIER:
            dist.barrier(self._group)

    def native(self, call: Call) -> bool:
        agreed = call.terms
        if agreed.reduces and agreed.reducer.op is Op.CUSTOM:
            return False
        mine = holder_of(call.tensor, agreed.kind)
        flat = _as_torch(mine)
        if flat.dtype not in _NATIVE_TYPES or agreed.verb is Verb.REDUCE_SCATTER:
            return False  # gloo has neither the other types nor parts of unequal length
        if agreed.verb is Verb.ALL_GATHER and agreed.kind.size % self.size:
            return False
        is_done = self.wait(_handle(lambda: self._begin(call, flat), flat, "the others"), call)
        if not is_done:
            raise TimeoutError(f"{agreed.text}: waited {call.timeout:g} s for the others; {self.name} names nobody")
        if agreed.reduces and agreed.reducer.op is Op.MEAN:
            mine.divide(0, agreed.kind.size, self.size)
        mine.finish()
        return True

    def _begin(self, call: Call, flat: torch.Tensor) -> Any:
        agreed = call.terms
        if agreed.verb is Verb.ALLREDUCE:
            operation = _OPERATIONS[agreed.reducer.op]
            return dist.all_reduce(flat, op=operation, group=self._group, async_op=True)
        if agreed.verb is Verb.BROADCAST:
            source = dist.get_global_rank(self._group, agreed.root)
            return dist.broadcast(flat, source, group=self._group, async_op=True)
        parts = [flat[lo:hi] for lo, hi in cut(0, flat.numel(), self.size)]
        return dist.all_gather(parts, parts[self.rank].clone(), group=self._group, async_op=True)


def _as_torch(holder: Holder) -> torch.Tensor:
    """A holder's elements as the tensor that they are; a bool's as bytes."""
    if isinstance(holder, DeviceHolder):
        work: torch.Tensor = holder.work
        return work.view(torch.uint8) if work.dtype is torch.bool else work
    assert isinstance(holder, HostHolder)
    return torch.from_numpy(holder.work.view(np.uint8) if holder.work.dtype == bool else holder.work)


class _TorchWire:
    def __init__(self, group: Any) -> None:
        self._group = group

    def send(self, to: int, data: Any) -> Handle:
        peer, message = dist.get_global_rank(self._group, to), _message(data)
        return _handle(lambda: dist.isend(message, peer, group=self._group), message, f"rank {to}")

    def receive(self, source: int, data: Any) -> Handle:
        peer, message = dist.get_global_rank(self._group, source), _message(data)
        return _handle(lambda: dist.irecv(message, peer, group=self._group), message, f"rank {source}")


def _message(data: Any) -> torch.Tensor:
    return data if isinstance(data, torch.Tensor) else torch.from_numpy(data)


def _handle(begin: Callable[[], Any], data: torch.Tensor, peer: str) -> Handle:
    if data.is_cpu:
        return _by_thread(begin, peer)
    work = begin()
    return Handle(lambda: work.wait() is not None)  # NCCL's: this thread's stream waits for it, the thread does not


def _by_thread(begin: Callable[[], Any], peer: str) -> Handle:
    """gloo's work. Only a blocking wait tells when a message is done, and if that is given a limit and runs out it
    closes every link; so a thread of its own waits, and is asked."""

    def asked(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RuntimeError as error:
            raise ClusterError(f"the link to {peer} is broken: {error}") from error

    work, ended = asked(begin), list[BaseException | None]()

    def wait() -> None:
        try:
            work.wait()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    _thread.start_new_thread(wait, ())  # never joined: it may have to wait for ever

    def is_done() -> bool:
        if ended and ended[0] is not None:
            raise ClusterError(f"the link to {peer} is broken: {ended[0]}") from ended[0]
        return bool(ended)

    return Handle(is_done)
