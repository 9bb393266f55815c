"""The torch optimizer inside a wl.torch.Optimizer, where the servers step in its place."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from windlass.errors import UsageError
from windlass.torch.backward import Backward


class NeverSteps:
    """A step hook of the optimizer inside: its own step() is a UsageError as long as `backward` is not closed. Without
    it every worker would train by itself, and nothing would be on the servers."""

    def __init__(self, backward: Backward, who: str) -> None:
        # Weakly, as the optimizer may outlive it. One that was dropped without being closed is still refused: it may
        # never have been kept, `wl.torch.Optimizer(optimizer, store)` on a line of its own.
        self._backward = weakref.ref(backward)
        self._who = who

    def __call__(self, inside: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        backward = self._backward()
        if backward is None or not backward.is_closed:
            raise UsageError(
                f"{self._who}: a wl.torch.Optimizer was made of this {type(inside).__name__}, and the servers step: "
                "call step() of the wl.torch.Optimizer; its close() gives this one back"
            )


def count_step(inside: torch.optim.Optimizer) -> None:
    """Tell schedulers that were made on it that a step is made, though its own step() is not called: they look for this
    before their first, and would warn."""
    inside._opt_called = True  # type: ignore[attr-defined]


def let_step(inside: torch.optim.Optimizer) -> None:
    """It may step by itself again. Safe to repeat."""
    hooks = inside._optimizer_step_pre_hooks
    for number in [number for number, hook in hooks.items() if isinstance(hook, NeverSteps)]:
        del hooks[number]


def has_step_hooks(inside: torch.optim.Optimizer) -> bool:
    """Whether there are any that a script has registered."""
    before, after = inside._optimizer_step_pre_hooks.values(), inside._optimizer_step_post_hooks
    return bool(after) or any(not isinstance(hook, NeverSteps) for hook in before)
