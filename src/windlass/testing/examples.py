"""Reducers and updaters with an import path, as a user would write them; tests and docs name them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windlass.store.reduce import Reducer
from windlass.store.update import Updater
from windlass.types import Array

XOR = Reducer("xor", np.bitwise_xor, 0)


@dataclass(frozen=True)
class SignDescent(Updater):
    """value <- value - step_size * sign(gradient)"""

    step_size: float = 0.01
    state: ClassVar[tuple[str, ...]] = ()

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        value -= np.asarray(self.step_size, value.dtype) * np.sign(grad)


@dataclass(frozen=True)
class Failing(Updater):
    """Raises at every update."""

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        raise ArithmeticError("this updater always fails")


@dataclass(frozen=True)
class Picky(Updater):
    """Cannot be made anywhere but in one process."""

    pid: int = 0

    def __post_init__(self) -> None:
        if self.pid != os.getpid():
            raise ValueError(f"not in process {os.getpid()}")

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        value += grad
