"""Collectives over devices of one process: one tensor per device, one caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windlass.collectives.backend import Backend
from windlass.collectives.call import Call, Verb
from windlass.collectives.fused import reduce_fused
from windlass.collectives.holders import Holder, HostHolder, holder_of
from windlass.collectives.reducing import reducer_of
from windlass.collectives.schedule import Action, Schedule, Step, cut
from windlass.collectives.strategies import Machines, Strategy, check_strategy, plan
from windlass.collectives.tensors import Kind, is_torch, kind_of, new_tensor, stacked
from windlass.errors import UsageError
from windlass.store.reduce import Op, Reducer

SHARDED_BYTES = 1 << 20
"""From this size on, `auto` aggregates each slice on its own device: below, one device's few transfers are quicker to
start than everybody's many."""


def allreduce(
    tensors: Sequence[Any],
    strategy: str = "auto",
    reduce: str | Reducer = "sum",
    *,
    machines: Machines | None = None,
) -> Sequence[Any]:
    """Reduce one tensor per device, in place: afterwards every one holds the same. Returns them.

    torch tensors on any devices, or numpy arrays, all of one shape and type; 16-bit floats are added up in float32.
    `machines` tells `hierarchical` which of them are near each other, e.g. [[0, 1], [2, 3]]. A UsageError leaves the
    tensors as they were.
    """
    kind = check_tensors(tensors, "allreduce")
    reducer = reducer_of(reduce, kind.dtype, "allreduce")
    asked = check_strategy(strategy)
    if asked is not Strategy.AUTO or not reduce_fused(tensors, kind, reducer):
        execute(plan(_choose(asked, tensors, kind), len(tensors), kind.size, machines), tensors, kind, reducer)
    return tensors


def allreduce_many(
    tensors: Sequence[Sequence[Any]],
    strategy: str = "auto",
    reduce: str | Reducer = "sum",
    *,
    machines: Machines | None = None,
) -> Sequence[Sequence[Any]]:
    """All-reduce many tensors at once: `tensors[p][d]` is parameter p's on device d. In place; returns them.

    As `allreduce` of each, but `sharded` aggregates whole tensors, each on one device, so that the devices have about
    the same number of elements to aggregate.
    """
    kinds = [check_tensors(each, f"allreduce_many of tensor {index}") for index, each in enumerate(tensors)]
    reducers = [reducer_of(reduce, kind.dtype, f"allreduce_many of tensor {i}") for i, kind in enumerate(kinds)]
    for index, each in enumerate(tensors):
        if len(each) != len(tensors[0]):
            raise UsageError(f"allreduce_many: tensor 0 is on {len(tensors[0])} devices, tensor {index} on {len(each)}")
    asked = check_strategy(strategy)
    homes = spread([kind.size for kind in kinds], len(tensors[0])) if tensors else []
    for each, kind, reducer, home in zip(tensors, kinds, reducers, homes, strict=True):
        if asked is Strategy.AUTO and reduce_fused(each, kind, reducer):
            continue
        chosen = _choose(asked, each, kind)
        if chosen is Strategy.SHARDED:
            # Seen from its home, the tensor is aggregated on the first device.
            turned = [*each[home:], *each[:home]]
            execute(plan(Strategy.ROOT, len(turned), kind.size), turned, kind, reducer)
        else:
            execute(plan(chosen, len(each), kind.size, machines), each, kind, reducer)
    return tensors


def spread(sizes: Sequence[int], devices: int) -> list[int]:
    """A device for each size, so that their loads are about equal: the largest first, each to the least loaded."""
    loads, homes = [0] * devices, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        home = homes[index] = loads.index(min(loads))
        loads[home] += sizes[index]
    return homes


def _choose(strategy: Strategy, tensors: Sequence[Any], kind: Kind) -> Strategy:
    if strategy is not Strategy.AUTO:
        return strategy
    is_large = kind.size * kind.work_type.itemsize >= SHARDED_BYTES
    return Strategy.SHARDED if is_large and len(tensors) > 2 else Strategy.ROOT


def execute(schedule: Schedule, tensors: Sequence[Any], kind: Kind, reducer: Reducer) -> None:
    """Carry out a schedule on the tensors of all members."""
    holders = [holder_of(tensor, kind) for tensor in tensors]
    if schedule.has_host:
        holders.append(HostHolder(np.empty(kind.size, kind.work_type)))
    for step in schedule.reduce:
        run_step(step, holders, reducer)
    if reducer.op is Op.MEAN:
        for owner, lo, hi in schedule.owners:
            holders[owner].divide(lo, hi, schedule.members)
    for step in schedule.gather:
        run_step(step, holders, reducer)
    for holder in holders:
        holder.finish()


def run_step(step: Step, holders: Sequence[Holder], reducer: Reducer) -> None:
    for source, target, lo, hi, action in step:
        if action is Action.REDUCE:
            holders[target].fold(lo, hi, holders[source], reducer)
        else:
            holders[target].copy(lo, hi, holders[source])


def check_tensors(tensors: Sequence[Any], what: str) -> Kind:
    """The kind of all of them. UsageError names the first that differs, or that is another's memory."""
    if is_torch(tensors) or isinstance(tensors, np.ndarray) or not isinstance(tensors, Sequence):
        raise UsageError(f"{what}: expected a list with one tensor per device, got {type(tensors).__name__}")
    if not tensors:
        raise UsageError(f"{what}: expected a list with one tensor per device, and it is empty")
    first = kind_of(tensors[0], f"{what}, tensor 0")
    seen = {_address(tensors[0]): 0}
    for index, tensor in enumerate(tensors[1:], start=1):
        kind = kind_of(tensor, f"{what}, tensor {index}")
        if kind != first:
            raise UsageError(f"{what}: tensor {index} is {kind}, tensor 0 is {first}; they must be alike")
        if kind.size and seen.setdefault(_address(tensor), index) != index:
            raise UsageError(f"{what}: tensors {seen[_address(tensor)]} and {index} are the same memory")
    return first


def _address(tensor: Any) -> tuple[str, int]:
    if is_torch(tensor):
        return str(tensor.device), tensor.data_ptr()
    return "cpu", tensor.__array_interface__["data"][0]


class DeviceBackend(Backend):
    """All members are devices of this process; a caller gives a list with one tensor for each."""

    name = "devices of this process"
    rank = 0

    def __init__(self, devices: Sequence[Any]) -> None:
        if not devices:
            raise UsageError("a Group over devices needs at least one, got an empty list")
        self.devices = [check_device(each) for each in devices]
        self.size = len(devices)

    def kind(self, given: Any, what: str) -> Kind:
        kind = check_tensors(given, what)
        if len(given) != self.size:
            raise UsageError(f"{what}: expected {self.size} tensors, one per device, got {len(given)}")
        for index, (tensor, device) in enumerate(zip(given, self.devices, strict=True)):
            found = str(tensor.device) if is_torch(tensor) else "cpu"
            if found != device:
                raise UsageError(f"{what}: tensor {index} is on {found}, the group's device {index} is {device}")
        return kind

    def meet(self, call: Call) -> Any:
        return None

    def carry_out(self, call: Call, opened: Any, machines: Machines | None) -> None:
        agreed = call.terms
        is_native = agreed.verb is Verb.ALLREDUCE and agreed.strategy is Strategy.AUTO
        if is_native and reduce_fused(call.tensor, agreed.kind, agreed.reducer):
            return
        if agreed.verb is not Verb.BARRIER:
            schedule = agreed.schedule(self.size, machines, _choose(Strategy.AUTO, call.tensor, agreed.kind))
            execute(schedule, call.tensor, agreed.kind, agreed.reducer)

    def stacked(self, given: Any) -> Any:
        return [stacked(each, rank, self.size) for rank, each in enumerate(given)]

    def part(self, given: Any, size: int) -> Any:
        return [each.reshape(-1)[lo:hi] for each, (lo, hi) in zip(given, cut(0, size, self.size), strict=True)]

    def buffer(self, call: Call, dtype: Any) -> Any:
        return [new_tensor(call.terms.kind, dtype, device) for device in self.devices]


def check_device(device: Any) -> str:
    """The device's full name. UsageError if this machine has no such device."""
    text = str(device)
    if text == "cpu":
        return text
    try:
        import torch

        return str(torch.empty(0, device=text).device)
    except (ImportError, RuntimeError, AssertionError) as error:
        raise UsageError(f"device '{text}' does not exist here: {str(error).splitlines()[0]}") from error
