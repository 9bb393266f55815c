"""What the suite asks of every backend: a case, each member's data for it, and what plain numpy makes of them.

Numbers are small integers, so that every order of adding them gives the same, in 16-bit floats too, and results can be
compared exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import windlass as wl
from windlass.collectives.schedule import cut
from windlass.collectives.tensors import narrowed, widened

PRODUCT = wl.Reducer("product", np.multiply, 1)
REDUCERS: dict[str, Any] = {name: name for name in ("sum", "mean", "min", "max", "any", "all")} | {"product": PRODUCT}
STRATEGIES = ("auto", "root", "cpu", "sharded", "ring", "bidirectional_ring", "tree", "hierarchical")
REDUCING = ("allreduce", "reduce_scatter")
MOVING = ("all_gather", "all_gather_parts", "broadcast")
TORCH_ONLY = ("bfloat16",)


@dataclass(frozen=True)
class Case:
    """One call. `is_strided`: every second element of a larger tensor; `in_buffer`: in the group's own memory."""

    verb: str = "allreduce"
    strategy: str = "auto"
    reduce: str = "sum"
    dtype: str = "float32"
    shape: tuple[int, ...] = (5,)
    framework: str = "numpy"
    is_strided: bool = False
    in_buffer: bool = False
    root: int = 0
    seed: int = 0

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def data_of(case: Case, rank: int) -> Any:
    """A member's elements as numpy has them: float32 where numpy has no such type."""
    made = np.random.default_rng([case.seed, rank]).integers(0, 4, case.shape)
    if case.dtype == "bool":
        return np.asarray(made % 2 == 0)
    signed = made - 2 if not case.dtype.startswith("u") else made
    return np.asarray(signed, np.float32 if case.dtype == "bfloat16" else case.dtype)


def expected(case: Case, members: int) -> list[Any]:
    """What each member must end with, by plain numpy, as `data_of` has it."""
    given = [data_of(case, rank) for rank in range(members)]
    if case.verb == "all_gather":
        return [np.stack(given)] * members
    parts = cut(0, case.size, members)
    if case.verb == "broadcast":
        return [given[case.root]] * members
    if case.verb == "all_gather_parts":
        whole = np.concatenate([each.reshape(-1)[lo:hi] for each, (lo, hi) in zip(given, parts, strict=True)])
        return [whole.reshape(case.shape)] * members
    total = _reduced(case, given)
    if case.verb == "reduce_scatter":
        return [total.reshape(-1)[lo:hi] for lo, hi in parts]
    return [total] * members


def _reduced(case: Case, given: list[Any]) -> Any:
    is_half = case.dtype in ("float16", "bfloat16")
    wide = np.stack(given).astype(np.float32) if is_half else np.stack(given)
    made = {
        "sum": lambda: wide.sum(0, dtype=wide.dtype),
        "mean": lambda: wide.sum(0, dtype=wide.dtype) / wide.dtype.type(len(given)),
        "min": lambda: wide.min(0),
        "max": lambda: wide.max(0),
        "any": lambda: wide.any(0),
        "all": lambda: wide.all(0),
        "product": lambda: wide.prod(0, dtype=wide.dtype),
    }[case.reduce]()
    if case.dtype == "bfloat16":
        return widened(narrowed(np.asarray(made).reshape(-1), "bfloat16"), "bfloat16").reshape(made.shape)
    return np.asarray(made, case.dtype)


def tensor_of(case: Case, rank: int, memory: Any = None) -> Any:
    """A member's tensor: of the case's framework, strided or not, or in this memory."""
    data = data_of(case, rank)
    if case.framework == "torch":
        data = torch.from_numpy(data).to(getattr(torch, case.dtype))
    if memory is not None:
        memory[...] = data
        return memory
    if not case.is_strided or not case.shape:
        return data
    wide = np.zeros((*case.shape, 2), data.dtype) if case.framework == "numpy" else torch.zeros(
        (*case.shape, 2), dtype=data.dtype
    )
    wide[..., 0] = data
    return wide[..., 0]


def plain(result: Any) -> Any:
    """A result as `data_of` has it."""
    if not isinstance(result, torch.Tensor):
        return np.array(result)
    return (result.float() if result.dtype == torch.bfloat16 else result).numpy().copy()


def call(group: wl.Group, case: Case, tensor: Any) -> Any:
    """Make the case's call on this member's tensor (or on a list, one for each device)."""
    if case.verb in REDUCING:
        return getattr(group, case.verb)(tensor, case.strategy, REDUCERS[case.reduce])
    if case.verb == "broadcast":
        return group.broadcast(tensor, case.root, case.strategy)
    return getattr(group, case.verb)(tensor, case.strategy)


def perform(group: wl.Group, case: Case) -> Any:
    """What one member of a group of processes does in a case, and ends with."""
    memory = None
    if case.in_buffer:
        dtype = getattr(torch, case.dtype) if case.framework == "torch" else case.dtype
        memory = group.buffer(case.shape, dtype)
    tensor = tensor_of(case, group.rank, memory)
    result = call(group, case, tensor)
    if case.verb not in ("all_gather", "reduce_scatter"):
        assert result is tensor
    return plain(result)
