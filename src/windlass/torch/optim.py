"""Any element-wise torch optimizer as an updater: it runs on the servers, on the stretch of the value that they hold.

A torch optimizer keeps for each parameter some tensors of its shape, a step count, and sometimes another number. The
tensors become state arrays, found out at the first step. The step count is the slot's own. Any other number becomes a
state array too, because stretches of one value may differ in it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch

from windlass.errors import UsageError, in_words
from windlass.store import naming
from windlass.store.updater import Updater, check_hyper, is_number
from windlass.types import Array

_NUMBER = "number."  # what the name of a state array begins with that holds the same number for many elements


@dataclass(frozen=True, init=False)
class Optim(Updater):
    """`Optim(torch.optim.RMSprop, lr=0.01)`: what that optimizer would do, done on the servers.

    It must be element-wise: what happens to one number may not depend on another. That is checked on a small vector
    when it is made, and is a UsageError otherwise (LBFGS, Adafactor, Muon). On the wire it is named by its class's
    import path and its keyword arguments, which must be plain values. wl.SGD and its kin need no torch and are faster.
    """

    optimizer: str
    options: dict[str, Any] = field(hash=False)
    _class: type[torch.optim.Optimizer] = field(repr=False, compare=False)

    def __init__(self, optimizer: type[torch.optim.Optimizer], /, **options: Any) -> None:
        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            raise UsageError(f"Optim expects a torch.optim.Optimizer class, got {naming.describe(optimizer)}")
        path = naming.path_of_class(optimizer)
        if path is None:
            raise UsageError(
                f"{optimizer.__qualname__} has no import path, by which servers could find it: "
                "define it at the top level of a module that every node can import (not __main__)"
            )
        where = f"Optim({optimizer.__name__}, {{}}=...)"
        plain = {name: naming.plain(value, where.format(name)) for name, value in options.items()}
        object.__setattr__(self, "optimizer", path)
        object.__setattr__(self, "options", plain)
        object.__setattr__(self, "_class", optimizer)
        _check_elementwise(self)

    def config(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "options": self.options}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        found: Any = naming.find(config["optimizer"], {}, "the import path of a torch.optim.Optimizer class")
        return cls(found, **config["options"])

    def with_hyper(self, hyper: Mapping[str, float]) -> Self:
        group = self._bind(torch.zeros(1)).param_groups[0]
        check_hyper(f"torch's {self._class.__name__}", hyper, [name for name in group if is_number(group[name])])
        tuned = copy.copy(self)  # not made anew: the law was checked already
        object.__setattr__(tuned, "options", {**self.options, **hyper})
        return tuned

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        """One step of the torch optimizer on this stretch; state arrays appear at its first."""
        for lo, hi in _stretches(state, value.size):
            views = {name: each[lo:hi] for name, each in state.items()}
            found = self._step(value[lo:hi], grad[lo:hi], views, step)
            for name, each in found.items():
                if name not in state:
                    state[name] = np.zeros_like(value)
                state[name][lo:hi] = each

    def _step(self, value: Array, grad: Array, state: Mapping[str, Array], step: int) -> dict[str, Array | float]:
        """Step a stretch that has one step and one set of numbers; the state after it, by name."""
        parameter = torch.from_numpy(value)
        parameter.grad = torch.from_numpy(grad)
        optimizer = self._bind(parameter)
        if step > 1:  # at the first step torch makes its own state
            before: dict[str, Any] = {"step": torch.tensor(float(step - 1))}
            for name, each in state.items():
                number = name.removeprefix(_NUMBER)
                before[number] = torch.tensor(each[0].item()) if number != name else torch.from_numpy(each)
            optimizer.state[parameter] = before
        optimizer.step()
        found: dict[str, Array | float] = {}
        for name, each in optimizer.state[parameter].items():
            if name == "step" or each is None:
                continue
            if isinstance(each, torch.Tensor) and each.shape == parameter.shape and each.dim() == 1:
                found[name] = each.numpy()
            else:
                found[_NUMBER + name] = float(each)
        return found

    def _bind(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        make: Any = self._class
        bound: torch.optim.Optimizer = make([parameter], **self.options)
        return bound


def _stretches(state: Mapping[str, Array], size: int) -> list[tuple[int, int]]:
    """Where the numbers kept for the whole of a stretch are the same: one stretch, but for unusual histories."""
    changes = [np.flatnonzero(np.diff(each)) + 1 for name, each in state.items() if name.startswith(_NUMBER)]
    bounds = np.unique(np.concatenate([[0, size], *changes])).astype(int).tolist()
    return list(pairwise(bounds))


def _check_elementwise(optim: Optim) -> None:
    """Two steps on six elements must give what the same steps give on the first two and on the last four."""
    start = np.array([1.0, -2.0, 3.0, -4.0, 0.5, 6.0], np.float32)
    grads = (start[::-1] / 4, start / 8 - 1)

    def run(lo: int, hi: int) -> Array:
        value, state = start[lo:hi].copy(), dict[str, Array]()
        for step, grad in enumerate(grads, start=1):
            optim.update(value, grad[lo:hi].copy(), state, step)
        return value

    name = f"Optim({optim._class.__name__}, ...)"
    try:
        whole, parts = run(0, 6), np.concatenate([run(0, 2), run(2, 6)])
    except Exception as error:
        raise UsageError(
            f"{name} cannot step a vector on its own: {in_words(error)}; "
            "check its arguments, and that it is an element-wise optimizer"
        ) from error
    if not np.allclose(whole, parts, rtol=1e-5):
        raise UsageError(
            f"{name} is not element-wise: stepping a vector whole gives {whole}, in two parts {parts}. "
            "A server holds parts of a value, so the optimizer must run on the workers"
        )
