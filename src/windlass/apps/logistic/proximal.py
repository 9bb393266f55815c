"""How servers update the weights: a step down the gradient, then towards 0 by the L1 penalty.

A worker pushes by how much its part of the gradient has changed since it pushed last; the server adds that to what it
has. So the gradient that it steps along is that of all examples, whoever pushed last, under every consistency: exact
where workers push in rounds, else with parts that are a little old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windlass.store.updater import Updater, require, require_finite
from windlass.types import Array

_FLATTEST = 1e-6
"""A second derivative counts at least so much, where all that there is of a feature has margins far from 0."""

_FIRST_RADIUS = 1.0


def led(value: Array, last: Array, lead: float) -> Array:
    """Where a step begins: as far beyond the value as `lead` times its way from the last one, if both are on the same
    side of 0. Workers, who compute the gradient there, and servers come to the same numbers."""
    ahead: Array = value + value.dtype.type(lead) * (value - last)
    return np.where(value * last > 0, ahead, value)


@dataclass(frozen=True)
class Proximal(Updater):
    """For algorithm 1. An element is a weight times what its second derivative never exceeds, so that one step and one
    threshold suit all of them; pushes are changes of the gradient. `lead` is momentum: see `led`. The first step of a
    `turn` begins there, others where the last one ended."""

    l1: float = 0.0
    lr: float = 1.0
    lead: float = 0.0
    turn: float = 0.0

    state: ClassVar[tuple[str, ...]] = ("gradient", "last", "turn")

    def __post_init__(self) -> None:
        require_finite(self, "l1", "lr", "lead", "turn")
        require(self.lr > 0, self, "lr", "above 0")

    @property
    def counts_steps(self) -> bool:
        return False

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        from windlass.apps.logistic import kernels

        numbers = np.array([self.l1, self.lr, self.lead, self.turn], np.float32)
        kernels.step(value, grad, state["gradient"], state["last"], state["turn"], numbers)


@dataclass(frozen=True)
class BlockProximal(Updater):
    """For algorithm 3. A row is (weight, gradient); pushed are changes of (gradient, second derivative). The weight
    moves to the least of the parabola that these make, and of the penalty; never further than its radius, which doubles
    what it moved last: a parabola is only good nearby. `lead` and `turn` are as with `Proximal`.

    The gradient of a row tells whoever pulls it how far the weight, if it is 0, is from leaving 0."""

    l1: float = 0.0
    lr: float = 1.0
    lead: float = 0.0
    turn: float = 0.0

    state: ClassVar[tuple[str, ...]] = ("bends", "moves")
    """The second derivative, and the last turn; the radius, and the weight before that turn."""

    def __post_init__(self) -> None:
        require_finite(self, "l1", "lr", "lead", "turn")
        require(self.lr > 0, self, "lr", "above 0")

    @property
    def counts_steps(self) -> bool:
        return False

    def threshold(self, state: Mapping[str, Array]) -> float:
        """The penalty; the gradient that there is already, a row itself tells."""
        return self.l1

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        from windlass.apps.logistic import kernels

        numbers = np.array([self.l1, self.lr, self.lead, self.turn, _FLATTEST, _FIRST_RADIUS], np.float32)
        kernels.step_block(value, grad, state["bends"], state["moves"], numbers)
