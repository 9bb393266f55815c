"""Reducers, updaters and filters with an import path, as a user would write them; tests and docs name them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windlass.filters import Filter, Parcel
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


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise ArithmeticError


@dataclass(frozen=True)
class Rude(Updater):
    """Adds, but ends in its own ways where the gradient is negative."""

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        match grad[0]:
            case -1:
                sys.exit("this updater leaves")
            case -2:
                raise Mute
            case -3:
                raise FileNotFoundError(2, "not there", os.fsdecode(b"\xff.txt"))
            case -4:
                raise ValueError("so " * 1_000_000)
        value += grad


@dataclass(frozen=True)
class Picky(Updater):
    """Cannot be made anywhere but in one process."""

    pid: int = 0

    def __post_init__(self) -> None:
        if self.pid != os.getpid():
            raise ValueError(f"not in process {os.getpid()}")

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        value += grad


@dataclass(frozen=True)
class Turned(Filter):
    """A filter that loses nothing: it turns some bits of every number, and the other end turns them back. It does so
    with the answers of pulls, too."""

    is_lossy: ClassVar[bool] = False

    def encode(self, parcel: Parcel) -> Parcel:
        return parcel.pass_on(_turned(parcel.values))

    def decode(self, parcel: Parcel) -> Parcel:
        return parcel.give_back(_turned(parcel.values).view(parcel.number))

    def for_pull(self) -> Filter | None:
        return self


@dataclass(frozen=True)
class Unlucky(Filter):
    """Its other end cannot read 13."""

    is_lossy: ClassVar[bool] = False

    def encode(self, parcel: Parcel) -> Parcel:
        return parcel.pass_on(parcel.values.copy())

    def decode(self, parcel: Parcel) -> Parcel:
        if (parcel.values == 13).any():
            raise ArithmeticError("13 brings bad luck")
        return parcel.give_back(parcel.values)


def _turned(values: Array) -> Array:
    words: Array = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    turned: Array = words ^ words.dtype.type(0x2B)
    return turned
