"""An optimizer's state, which lies on the servers, in torch's own form and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from windlass.store.spans import Spans
from windlass.torch.lane import Lane
from windlass.types import Array
from windlass.worker.checkpoint import SavedSlot, read_slots, write_slots
from windlass.worker.store import Store

_STATE = "state."
State = dict[int, dict[str, Any]]
"""By the number of the parameter, what torch would keep of it."""


def read(store: Store, lanes: Iterable[Lane], *, has_step: bool) -> State:
    """What the servers keep of every parameter that has taken a step. Blocks; nobody may close a round meanwhile."""
    found: State = {}
    for lane in lanes:
        _, slots = read_slots(store._client, lane.key)
        flat = {
            name.removeprefix(_STATE): np.concatenate([slot.arrays[name] for slot in slots])
            for name in slots[0].arrays
            if name.startswith(_STATE)
        }
        steps = _steps(slots)
        for number, offset in zip(lane.bucket.members, lane.bucket.offsets, strict=True):
            tensor = lane.tensors[number]
            taken = steps.cut(offset, offset + tensor.numel())
            if not taken or not taken[0][2]:
                continue
            found[number] = {"step": torch.tensor(float(taken[0][2]))} if has_step else {}
            for name, each in flat.items():
                part = torch.from_numpy(each[offset : offset + tensor.numel()].copy()).view(tensor.shape)
                plain = name.removeprefix("number.")
                found[number][plain] = part if plain == name else part.flatten()[0].clone()
    return found


def fresh_adagrad(tensor: torch.Tensor, group: Mapping[str, Any]) -> dict[str, Any]:
    """What torch's Adagrad keeps of a parameter before its first step; the others keep nothing."""
    first = group["initial_accumulator_value"]
    return {"step": torch.tensor(0.0), "sum": torch.full_like(tensor.detach(), first)}


def write(store: Store, lanes: Iterable[Lane], state: Mapping[int, Mapping[str, Any]]) -> None:
    """Give the servers this state. One worker calls it, while the others wait; blocks."""
    for lane in lanes:
        declared, slots = read_slots(store._client, lane.key)
        dtype = np.float64 if declared.spec.dtype == "float64" else np.float32
        flat = {name: np.zeros(lane.bucket.size, dtype) for name in slots[0].arrays if name.startswith(_STATE)}
        spans: list[list[int]] = []
        numbers = {name.removeprefix(f"{_STATE}number.") for name in flat if name.startswith(f"{_STATE}number.")}
        for number in lane.bucket.members:  # what is one number for a whole parameter, of any shape
            for name, value in state.get(number, {}).items():
                if lane.tensors[number].dim() and torch.as_tensor(0 if value is None else value).dim() == 0:
                    numbers.add(name)
        for number, offset in zip(lane.bucket.members, lane.bucket.offsets, strict=True):
            tensor = lane.tensors[number]
            kept, end = state.get(number, {}), offset + tensor.numel()
            for name, value in kept.items():
                if name != "step" and value is not None:
                    part = torch.as_tensor(value).detach().cpu()
                    prefix = f"{_STATE}number." if name in numbers else _STATE
                    into = flat.setdefault(f"{prefix}{name}", np.zeros(lane.bucket.size, dtype))
                    into[offset:end] = part.reshape(-1).to(torch.float64).numpy()
            _append(spans, offset, end, int(float(kept.get("step", number in state))))
        _lay(slots, flat, Spans.restore(lane.bucket.size, spans or [[0, 0, 0]]))
        write_slots(store._client, declared, slots)


def _append(spans: list[list[int]], lo: int, hi: int, step: int) -> None:
    """Add elements lo to hi, which have taken `step` updates; neighbours of the same step become one span."""
    if spans and spans[-1][2] == step:
        spans[-1][1] = hi
    elif lo < hi:
        spans.append([lo, hi, step])


def write_values(store: Store, lanes: Iterable[Lane]) -> None:
    """Give the servers the parameters' values. One worker calls it, while the others wait; blocks."""
    for lane in lanes:
        declared, slots = read_slots(store._client, lane.key)
        flat = torch.cat([lane.tensors[number].detach().reshape(-1).cpu() for number in lane.bucket.members])
        begin = 0
        for slot in slots:
            part = flat[begin : begin + slot.meta["size"]]
            begin += slot.meta["size"]
            bits = part.view(torch.int16) if part.dtype == torch.bfloat16 else part
            slot.arrays["value"] = bits.numpy().view(slot.arrays["value"].dtype).copy()
            if "master" in slot.arrays:
                slot.arrays["master"] = part.float().numpy().copy()
        write_slots(store._client, declared, slots)


def _steps(slots: Iterable[SavedSlot]) -> Spans:
    """The steps of a whole key, of those of its slots."""
    begin = 0
    spans: list[list[int]] = []
    for slot in slots:
        for lo, hi, step in slot.meta["spans"]:
            _append(spans, begin + lo, begin + hi, step)
        begin += slot.meta["size"]
    return Spans.restore(begin, spans) if begin else Spans(0)


def _lay(slots: list[SavedSlot], flat: Mapping[str, Array], steps: Spans) -> None:
    """Cut a bucket's state into that of its slots."""
    begin = 0
    for slot in slots:
        end = begin + slot.meta["size"]
        for name, each in flat.items():
            slot.arrays[name] = each[begin:end]
        spans = [[lo - begin, hi - begin, step] for lo, hi, step in steps.cut(begin, end)]
        slot.meta = {**slot.meta, "spans": spans or [[0, end - begin, 0]]}
        begin = end
