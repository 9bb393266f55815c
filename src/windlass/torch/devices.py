"""Devices of one process: which there are, how a batch is cut over them and joined again, how they run at once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import torch

from windlass.errors import UsageError

Device = str | torch.device
Call = Callable[[], Any]


# --- which there are ------------------------------------------------------------------------------------------------


def resolve(devices: Sequence[Device]) -> tuple[torch.device, ...]:
    """The devices by name, each checked to exist; one may be named several times. UsageError names the one at fault."""
    if isinstance(devices, str | torch.device) or not isinstance(devices, Sequence):
        raise UsageError(f'devices is a list, such as ["cuda:0", "cuda:1"] or ["cpu", "cpu"]; got {devices!r}')
    if not devices:
        raise UsageError("devices is empty: name at least one")
    return tuple(_existing(device) for device in devices)


def _existing(device: Device) -> torch.device:
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"{device!r} is not the name of a device; 'cpu' and 'cuda:0' are") from error
    if found.type == "cpu":
        return torch.device("cpu")  # there is one, whatever index it is given
    if found.type == "cuda":
        return _existing_gpu(found)
    try:
        return torch.empty(1, device=found).cpu().new_empty(0, device=found).device
    except Exception as error:
        raise UsageError(f"device '{device}' does not exist or cannot compute here: {error}") from error


def _existing_gpu(device: torch.device) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise UsageError(f"device '{device}' does not exist: torch finds no CUDA device here; use 'cpu'")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise UsageError(f"device '{device}' does not exist: there are {count}, cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", index)


# --- cutting and joining --------------------------------------------------------------------------------------------


def check_batch(size: int, devices: Sequence[torch.device]) -> None:
    """Every device needs a row: a batch-norm of no rows is not a number, and an idle device is a mistake."""
    if size < len(devices):
        raise UsageError(
            f"a batch of {size} cannot be split over {len(devices)} devices: every device needs at least one sample; "
            "use a larger batch or fewer devices, or drop the last batch of an epoch (drop_last=True)"
        )


def split(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """One stretch of dim 0 for each device, on it; lengths differ by at most one, and the longer come first."""
    check_batch(len(tensor), devices)
    parts = torch.tensor_split(tensor, len(devices))
    return [part.to(device, non_blocking=True) for part, device in zip(parts, devices, strict=True)]


def scatter(value: Any, devices: Sequence[torch.device]) -> list[Any]:
    """For each device its part of the value: tensors are split; lists, tuples, dicts and dataclasses go item by item.

    A tensor without dimensions goes to every device whole; anything else is handed to all as it is.
    """
    if isinstance(value, torch.Tensor):
        if value.dim() == 0:
            return [value.to(device, non_blocking=True) for device in devices]
        return split(value, devices)
    if isinstance(value, list | tuple):
        columns = [scatter(item, devices) for item in value]
        return [_like(value, [column[i] for column in columns]) for i in range(len(devices))]
    if isinstance(value, Mapping):
        cut = {key: scatter(item, devices) for key, item in value.items()}
        return [{key: column[i] for key, column in cut.items()} for i in range(len(devices))]
    if _is_record(value):
        cut = {name: scatter(item, devices) for name, item in _fields(value).items()}
        return [_with(value, {name: column[i] for name, column in cut.items()}) for i in range(len(devices))]
    return [value] * len(devices)


def rows(value: Any) -> set[int]:
    """The lengths along dim 0 of all tensors in the value that scatter would split."""
    if isinstance(value, torch.Tensor):
        return {len(value)} if value.dim() else set()
    if _is_record(value):
        value = _fields(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return set().union(*(rows(item) for item in items))


def gather(parts: Sequence[Any], device: torch.device) -> Any:
    """Join what the devices returned: tensors along dim 0 on `device`, those without dimensions into a vector.

    Lists, tuples, dicts and dataclasses are joined item by item; other values must be the same on every device (else
    UsageError).
    """
    first = parts[0]
    if not all(type(part) is type(first) for part in parts):
        raise UsageError(f"the replicas returned different things: {[type(part).__name__ for part in parts]}")
    if isinstance(first, torch.Tensor):
        here = [part.to(device, non_blocking=True) for part in parts]
        return torch.cat(here) if first.dim() else torch.stack(here)
    if isinstance(first, list | tuple):
        if len({len(part) for part in parts}) > 1:
            raise UsageError(f"the replicas returned sequences of different lengths: {[len(part) for part in parts]}")
        return _like(first, [gather(items, device) for items in zip(*parts, strict=True)])
    if isinstance(first, Mapping):
        if any(part.keys() != first.keys() for part in parts):
            raise UsageError(f"the replicas returned dicts with different keys: {[list(part) for part in parts]}")
        joined = {key: gather([part[key] for part in parts], device) for key in first}
        return joined if type(first) is dict else type(first)(**joined)
    if _is_record(first):
        return _with(first, {name: gather([getattr(part, name) for part in parts], device) for name in _fields(first)})
    if any(part is not first and part != first for part in parts):
        raise UsageError(
            f"the replicas returned different values, {list(parts)}: only tensors can be joined; "
            "return a tensor, or a tuple, list, dict or dataclass of them"
        )
    return first


def _is_record(value: Any) -> bool:
    """Whether it is an instance of a dataclass, and not also a dict, as some libraries' outputs are."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping)


def _fields(record: Any) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}


def _with(record: Any, items: dict[str, Any]) -> Any:
    """A copy of the record with these fields; its own checks at the start do not run again."""
    made = copy.copy(record)
    for name, item in items.items():
        object.__setattr__(made, name, item)  # frozen ones too
    return made


def _like(sequence: Sequence[Any], items: list[Any]) -> Any:
    """The items in a sequence of that kind; a named tuple takes them one by one."""
    kind: Any = type(sequence)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


# --- running at once ------------------------------------------------------------------------------------------------


class Crew:
    """A thread for each device, kept for as long as this object: a new one costs more than a small layer.

    torch numbers what it records thread by thread, and backward takes the highest number first. As every device's
    thread always has the same work to record, backward goes through the replicas layer by layer: the last layers'
    gradients are complete while the first layers' are still to come.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = devices
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"windlass-{device}") for device in devices]
        _share_cores(self._threads, devices)

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Call `calls[i]` for the i-th device, all at once, and return what they return. Blocks until all are done.
        Devices for which there is no call rest.

        Gradient mode and autocast are the caller's in all of them. If some raise, the error of the lowest goes to the
        caller as it is, with a note that names its device. Under `torch.use_deterministic_algorithms(True)` they run
        one after the other: random numbers (dropout) on the CPU come from one generator, and which replica draws first
        must not depend on the threads.
        """
        modes, count = _Modes(), len(self.devices)
        tasks = [
            _guard(call, device, f"device {i} of {count}", modes)
            for i, (call, device) in enumerate(zip(calls, self.devices, strict=False), start=1)
        ]
        if len(tasks) == 1 or torch.are_deterministic_algorithms_enabled():
            return [task() for task in tasks]
        futures = [thread.submit(task) for thread, task in zip(self._threads, tasks, strict=False)]
        wait(futures)  # nobody may still be at work on the replicas when the caller goes on
        return [future.result() for future in futures]


def _share_cores(threads: Sequence[ThreadPoolExecutor], devices: Sequence[torch.device]) -> None:
    """Operations on the CPU use many cores each; replicas that run there at once have a part of them each."""
    on_cpu = [thread for thread, device in zip(threads, devices, strict=True) if device.type == "cpu"]
    before = torch.get_num_threads()
    for thread in on_cpu:
        thread.submit(_use_cores, max(1, before // len(on_cpu))).result()
    torch.set_num_threads(before)  # it is also the default for threads to come


def _use_cores(count: int) -> None:
    """Set it for this thread, after torch has given it the default: at its first question, or its first work."""
    torch.get_num_threads()
    torch.set_num_threads(count)


class _Modes:
    """The calling thread's torch modes, which another thread does not inherit."""

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = {
            kind: (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")
        }
        self.cache = torch.is_autocast_cache_enabled()

    def enter(self, stack: ExitStack, device: torch.device) -> None:
        stack.enter_context(torch.inference_mode(self.inference))
        stack.enter_context(torch.set_grad_enabled(self.grad))
        dtype, is_enabled = self.autocast.get(device.type, (None, False))
        if is_enabled:
            stack.enter_context(torch.autocast(device.type, dtype=dtype, cache_enabled=self.cache))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))


def _guard(call: Call, device: torch.device, which: str, modes: _Modes) -> Call:
    def task() -> Any:
        with ExitStack() as stack:
            modes.enter(stack, device)
            try:
                return call()
            except BaseException as error:
                error.add_note(f"raised on {device}, {which}")
                raise

    return task
