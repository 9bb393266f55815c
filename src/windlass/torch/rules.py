"""Which updater does on the servers what a torch optimizer does in a process, and the numbers that travel.

An entry of a parameter group either *travels* with every push, so that schedulers work, or is *fixed* when the key is
declared: changing it later is an error, not a change that goes unnoticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from windlass.errors import UsageError
from windlass.store.optimizers import SGD, Adagrad, Adam, AdamW
from windlass.store.updater import Updater, is_number
from windlass.torch.optim import Optim

_HOW = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what
_NOT_OURS = {"params", "param_names"}
_FUSED: dict[type[torch.optim.Optimizer], tuple[type[Updater], tuple[str, ...], dict[str, Any]]] = {
    torch.optim.SGD: (SGD, ("lr", "momentum", "dampening", "weight_decay", "nesterov"), {"maximize": False}),
    torch.optim.Adam: (
        Adam,
        ("lr", "betas", "eps", "weight_decay"),
        {"amsgrad": False, "maximize": False, "decoupled_weight_decay": False},
    ),
    torch.optim.AdamW: (
        AdamW,
        ("lr", "betas", "eps", "weight_decay"),
        {"amsgrad": False, "maximize": False, "decoupled_weight_decay": True},
    ),
    torch.optim.Adagrad: (
        Adagrad,
        ("lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value"),
        {"maximize": False},
    ),
}


@dataclass(frozen=True)
class Rule:
    """The updater of one parameter group, and what its numbers were when the keys were declared."""

    updater: Updater
    declared: dict[str, float]
    fixed: dict[str, Any]

    def hyper(self, group: Mapping[str, Any], where: str) -> dict[str, float] | None:
        """The numbers of the group that are not as declared, to go with a push. UsageError if one changed that cannot
        travel."""
        for name, value in self.fixed.items():
            if group.get(name, value) != value:
                raise UsageError(
                    f"{where}: {name} became {group[name]!r}, but the servers were told {value!r} and {name} does not "
                    "travel with a push; use mode='allreduce'"
                )
        now = _numbers(group, self.declared)
        return {name: value for name, value in now.items() if value != self.declared[name]} or None


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> Rule:
    """The rule for one parameter group; UsageError if no server could do what this optimizer does."""
    kind = type(optimizer)
    made: Updater
    entries = {name: _plain(value) for name, value in group.items() if name not in _NOT_OURS | _HOW}
    known = _FUSED.get(kind)
    if known is not None and all(entries.get(name, value) == value for name, value in known[2].items()):
        made = known[0](**{name: entries[name] for name in known[1] if name in entries})
        travels = {name for name in known[1] if is_number(entries.get(name))}
        travels |= {"beta1", "beta2"} if "betas" in known[1] else set()
        travels.discard("initial_accumulator_value")
    else:
        accepted = inspect.signature(kind).parameters
        options = {name: value for name, value in entries.items() if name in accepted}
        try:
            made = Optim(kind, **options)
        except UsageError as error:
            raise UsageError(f"{error}. mode='allreduce' runs any torch optimizer, in every worker") from error
        travels = {name for name, value in options.items() if is_number(value)}
    if isinstance(made, SGD) and made.momentum == 0:
        travels.discard("momentum")  # the key keeps no buffer for it
    declared = _numbers(group, dict.fromkeys(travels))
    moves = set(declared) | ({"betas"} if "beta1" in declared else set())
    accepted = inspect.signature(kind).parameters
    fixed = {name: value for name, value in entries.items() if name in accepted and name not in moves}
    return Rule(made, declared, fixed)


def _numbers(group: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, float]:
    """These numbers of a group; betas come as beta1 and beta2."""
    numbers = {}
    for name in names:
        value = group["betas"][int(name[-1]) - 1] if name in ("beta1", "beta2") and "betas" in group else group[name]
        numbers[name] = float(value)
    return numbers


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
