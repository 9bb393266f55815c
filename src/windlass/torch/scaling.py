"""A learning rate for a batch that grew with the number of devices."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from windlass.errors import UsageError


class ScaledLR(LRScheduler):
    """Multiplies every group's learning rate by `factor`, reached in equal steps over the first `warmup_steps`.

    It multiplies what it finds, so it can be combined with other schedulers that do (StepLR, ExponentialLR, ...):
    call each one's `step()` after `optimizer.step()`.
    """

    def __init__(self, optimizer: Optimizer, factor: float, warmup_steps: int) -> None:
        self.factor = factor
        self.warmup_steps = warmup_steps
        super().__init__(optimizer)

    def scale(self, step: int) -> float:
        """By how much the rate is multiplied in training step `step`, counted from 0."""
        done = 1.0 if step >= self.warmup_steps else step / self.warmup_steps
        return 1 + (self.factor - 1) * done

    def get_lr(self) -> list[Any]:
        change = self.scale(self.last_epoch) / (self.scale(self.last_epoch - 1) if self.last_epoch > 0 else 1.0)
        return [group["lr"] * change for group in self.optimizer.param_groups]


def scale_lr(optimizer: Optimizer, factor: float, *, warmup_steps: int = 0) -> ScaledLR:
    """The linear scaling rule: a batch `factor` times as large takes a learning rate `factor` times as large.

    In the first steps, when the weights change fast, so large a rate may diverge: it starts at the optimizer's own and
    grows by equal steps, to be reached after `warmup_steps`. Call `step()` on what this returns after each
    `optimizer.step()`; like any torch scheduler it has `state_dict()` and `load_state_dict()`. A factor below 1 is for
    a batch that shrank.
    """
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"scale_lr expects a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if not (isinstance(factor, int | float) and math.isfinite(factor) and factor > 0):
        raise UsageError(f"scale_lr expects a factor above 0, by which the batch grew; got {factor!r}")
    if not isinstance(warmup_steps, int) or warmup_steps < 0:
        raise UsageError(f"scale_lr expects warmup_steps to be a number of steps, at least 0; got {warmup_steps!r}")
    return ScaledLR(optimizer, factor, warmup_steps)
