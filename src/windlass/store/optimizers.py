"""The optimizers that run on the servers, fused with the reduction. They agree with torch.optim's of the same name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from windlass.errors import UsageError, options_checked
from windlass.store.reduce import Reducer
from windlass.store.updater import Fused, is_number, require, require_finite
from windlass.types import Array


@options_checked
@dataclass(frozen=True)
class SGD(Fused):
    """Stochastic gradient descent, as torch.optim.SGD. Momentum costs one state array; without it there is none."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    kernel: ClassVar[str] = "sgd"
    state: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __post_init__(self) -> None:
        require_finite(self, "lr", "momentum", "weight_decay")
        require(is_number(self.dampening) and math.isfinite(self.dampening), self, "dampening", "a finite number")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise UsageError(
                f"SGD(nesterov=True) needs momentum above 0 and dampening 0, "
                f"got momentum={self.momentum} and dampening={self.dampening}"
            )

    def state_names(self) -> tuple[str, ...]:
        return self.state if self.momentum else ()

    @property
    def counts_steps(self) -> bool:
        return self.momentum != 0

    def with_hyper(self, hyper: Mapping[str, float]) -> Self:
        if self.momentum == 0 and hyper.get("momentum"):
            raise UsageError(
                f"hyper-parameter 'momentum' of SGD cannot become {hyper['momentum']}: the key was declared "
                "without momentum and keeps no buffer for it; declare it with SGD(momentum=...)"
            )
        return super().with_hyper(hyper)

    def coefficients(self, step: int) -> tuple[float, ...]:
        intake = 1.0 if step == 1 else 1 - self.dampening  # torch's first buffer is the gradient itself
        return self.lr, self.weight_decay, self.momentum, intake, float(self.nesterov)


@options_checked
@dataclass(frozen=True)
class Adam(Fused):
    """Adam, as torch.optim.Adam: weight decay is added to the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    kernel: ClassVar[str] = "adam"
    state: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    def __post_init__(self) -> None:
        require_finite(self, "lr", "eps", "weight_decay")
        betas = tuple(self.betas) if isinstance(self.betas, list | tuple) else ()
        is_pair = len(betas) == 2 and all(is_number(beta) and 0 <= beta < 1 for beta in betas)
        require(is_pair, self, "betas", "two numbers, each at least 0 and below 1")
        object.__setattr__(self, "betas", betas)  # a list off the wire and a tuple make equal updaters

    def with_hyper(self, hyper: Mapping[str, float]) -> Self:
        """The two of `betas` travel as beta1 and beta2."""
        given = dict(hyper)
        betas = given.pop("beta1", self.betas[0]), given.pop("beta2", self.betas[1])
        return replace(super().with_hyper(given), betas=betas)

    def coefficients(self, step: int) -> tuple[float, ...]:
        return self._coefficients(step, self.weight_decay, 1.0)

    def _coefficients(self, step: int, decay: float, keep: float) -> tuple[float, ...]:
        (b1, b2), rate = self.betas, self.lr / (1 - self.betas[0] ** step)
        return rate, decay, keep, b1, 1 - b1, b2, 1 - b2, math.sqrt(1 - b2**step), self.eps


@options_checked
@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW, as torch.optim.AdamW: weight decay shrinks the value itself, apart from the gradient."""

    weight_decay: float = 1e-2

    def coefficients(self, step: int) -> tuple[float, ...]:
        return self._coefficients(step, 0.0, 1 - self.lr * self.weight_decay)


@options_checked
@dataclass(frozen=True)
class Adagrad(Fused):
    """Adagrad, as torch.optim.Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    kernel: ClassVar[str] = "adagrad"
    state: ClassVar[tuple[str, ...]] = ("sum",)

    def __post_init__(self) -> None:
        require_finite(self, "lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")

    def initial_state(self, name: str) -> float:
        return self.initial_accumulator_value

    def coefficients(self, step: int) -> tuple[float, ...]:
        return self.lr / (1 + (step - 1) * self.lr_decay), self.weight_decay, self.eps


@options_checked
@dataclass(frozen=True)
class RowwiseAdagrad(Adagrad):
    """Adagrad for tables with one accumulator for each row, of the mean of its gradient's squares, instead of one for
    each element: nearly half of the memory, and for embeddings as good."""

    kernel: ClassVar[str] = "rowwise_adagrad"
    row_state: ClassVar[tuple[str, ...]] = ("sum",)

    def check(self, dtype: str, reducer: Reducer) -> None:
        raise UsageError("update=RowwiseAdagrad is for tables, whose rows it keeps a number for: use Adagrad")

    def check_table(self, dtype: str, reducer: Reducer) -> None:
        Adagrad.check(self, dtype, reducer)


@options_checked
@dataclass(frozen=True)
class FTRL(Fused):
    """FTRL-proximal (McMahan et al., 2013), which drives weights to exactly 0. `lr` is the paper's alpha.

    A weight is a function of the state `z` and `n`, which start at 0, and so should the weights: whatever else a key
    is created with is forgotten over the first updates.
    """

    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    kernel: ClassVar[str] = "ftrl"
    state: ClassVar[tuple[str, ...]] = ("z", "n")

    def __post_init__(self) -> None:
        require_finite(self, "lr", "beta", "l1", "l2")
        require(self.lr > 0, self, "lr", "above 0")
        if self.beta == 0 and self.l2 == 0:
            raise UsageError("FTRL(beta=0, l2=0) divides by 0 where no gradient has been seen: raise one of them")

    @property
    def counts_steps(self) -> bool:
        return False

    def coefficients(self, step: int) -> tuple[float, ...]:
        return self.lr, self.beta, self.l1, self.l2, 0.0

    def threshold(self, state: Mapping[str, Array]) -> Array:
        """A weight is 0 as long as |z| is at most l1, and at 0 a gradient is all that is added to z."""
        room: Array = np.maximum(self.l1 - np.abs(state["z"]), 0)
        return room
