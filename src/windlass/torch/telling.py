"""An optimizer's state_dict, told by one worker to all: numbers as plain data, tensors as a share of bytes."""

from __future__ import annotations

from typing import Any

import torch

from windlass.errors import UsageError
from windlass.torch.meeting import gather
from windlass.torch.shared_model import SharedModel

_PLAIN = (type(None), bool, int, float, str)


def rank_0s(model: SharedModel, state_dict: dict[str, Any]) -> dict[str, Any]:
    """What the lowest rank gives, in every worker; what the others give does not matter. Every worker calls it;
    blocks."""
    if model.store.num_workers == 1:
        return state_dict
    tensors: list[torch.Tensor] = []
    mine = _packed(state_dict, tensors) if model.store.is_lowest else None
    told = next(one for one in gather(model.store, mine) if one is not None)
    if not model.store.is_lowest:
        found = _unpacked(told, tensors)
        model.share(tensors)
        assert isinstance(found, dict)
        return found
    model.share(tensors)
    return state_dict


def _packed(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value as [kind, content]; its tensors, of which only shape and dtype are told, are put on the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ["tensor", list(value.shape), str(value.dtype).removeprefix("torch.")]
    if isinstance(value, dict):
        return ["dict", [[_packed(name, tensors), _packed(each, tensors)] for name, each in value.items()]]
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return [kind, [_packed(each, tensors) for each in value]]
    if isinstance(value, _PLAIN):
        return ["plain", value]
    raise UsageError(
        f"load_state_dict: cannot tell the other workers a {type(value).__name__}; expected numbers, text and tensors"
    )


def _unpacked(told: Any, tensors: list[torch.Tensor]) -> Any:
    """The value again, with empty tensors, which are put on the list in the order of `_packed`."""
    kind, content = told[0], told[1]
    if kind == "tensor":
        tensors.append(torch.empty(content, dtype=getattr(torch, told[2])))
        return tensors[-1]
    if kind == "dict":
        return {_unpacked(name, tensors): _unpacked(each, tensors) for name, each in content}
    if kind in ("list", "tuple"):
        found = [_unpacked(each, tensors) for each in content]
        return tuple(found) if kind == "tuple" else found
    return content
