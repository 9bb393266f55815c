"""What an updater is, and the two that keep no state: assign and merge.

An *updater* turns a key's value and the aggregate of a round into its next value. It is a frozen dataclass: its fields
are its hyper-parameters, and they are all that travels. What it remembers between updates (momentum, second moments)
are *state arrays*, one number per element, which the slot keeps for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import numpy as np

from windlass.errors import UsageError
from windlass.store import naming
from windlass.store.reduce import Op, Reducer
from windlass.types import Array


@dataclass(frozen=True)
class Updater(naming.Configured):
    """A rule for updating a value in place. Subclass it, name the state arrays it needs, and write `update`.

        @dataclass(frozen=True)
        class SignSGD(wl.Updater):
            lr: float = 0.01

            def update(self, value, grad, state, step):
                value -= self.lr * np.sign(grad)

    Elements are independent: an updater sees a stretch of the value, and where a key is cut is not its business.
    """

    state: ClassVar[tuple[str, ...]] = ()
    """The names of the state arrays: floating-point, filled with `initial_state(name)` (0 unless overridden)."""

    row_state: ClassVar[tuple[str, ...]] = ()
    """Those of them that have one number for a row of a table, and not one for each of its elements."""

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        """Write the next value into `value`, and the next state into the arrays of `state`, in place. `grad` is the
        round's aggregate and may be overwritten. `step` is 1 at the first update that these elements take. A name
        added to `state` becomes a state array. An updater that raises leaves the stretch as far as it got."""
        raise NotImplementedError(f"{type(self).__name__} must define update(value, grad, state, step)")

    def state_names(self) -> tuple[str, ...]:
        """The state arrays that these hyper-parameters need."""
        return self.state

    def initial_state(self, name: str) -> float:
        return 0.0

    def threshold(self, state: Mapping[str, Array]) -> Array | float | None:
        """How large an aggregate may be, at each of these elements or at all, so that a value of 0 stays 0: what the
        filter KKT goes by. None: there is no such number, or nobody knows."""
        return None

    @property
    def counts_steps(self) -> bool:
        """Whether `step` matters. If not, the slot need not remember who pushed which part how often."""
        return True

    def check(self, dtype: str, reducer: Reducer) -> None:
        """UsageError if this updater cannot be used on such a key. Override to allow other than floating point."""
        if "float" not in dtype:
            raise UsageError(
                f"update={type(self).__name__} needs a floating-point key, got {dtype}: "
                "use 'assign' or 'merge', or a floating-point dtype"
            )

    def check_table(self, dtype: str, reducer: Reducer) -> None:
        """UsageError if this updater cannot be used on the rows of such a table."""
        self.check(dtype, reducer)

    def with_hyper(self, hyper: Mapping[str, float]) -> Self:
        """This updater with some numbers replaced, as `push(hyper={"lr": 0.1})` asks for one round."""
        allowed = [each.name for each in fields(self) if is_number(getattr(self, each.name))]
        check_hyper(type(self).__name__, hyper, allowed)
        return replace(self, **hyper)


def is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def check_hyper(name: str, hyper: Mapping[str, float], allowed: list[str]) -> None:
    """UsageError if `hyper` names what is not in `allowed`, or gives it what is not a number."""
    for key, value in hyper.items():
        if key not in allowed:
            known = ", ".join(repr(each) for each in allowed) if allowed else "none"
            raise UsageError(f"hyper-parameter '{key}' is unknown to {name}; it has {known}")
        if not is_number(value):
            raise UsageError(f"hyper-parameter '{key}' of {name} must be a number, got {naming.describe(value)}")


def require(condition: bool, updater: Updater, name: str, expected: str) -> None:
    """UsageError saying what a hyper-parameter should have been."""
    if not condition:
        raise UsageError(f"{type(updater).__name__}({name}={getattr(updater, name)!r}): {name} must be {expected}")


def require_finite(updater: Updater, *names: str) -> None:
    """The named hyper-parameters must be finite numbers, not negative."""
    for name in names:
        value = getattr(updater, name)
        require(is_number(value) and math.isfinite(value) and value >= 0, updater, name, "a finite number, 0 or more")


@dataclass(frozen=True)
class Fused(Updater):
    """An updater that has a kernel, which reduces and updates in one pass."""

    kernel: ClassVar[str] = ""
    """Its name in `kernels`; it takes the state arrays in the order of `state`."""

    def coefficients(self, step: int) -> tuple[float, ...]:
        """The numbers that the kernel reads, computed in double precision."""
        return ()

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        """The same kernel on one contiguous gradient."""
        from windlass.store import kernels

        arrays = [value, *(state[name] if name in state else value[:0] for name in self.state)]
        if not all(each.flags.c_contiguous for each in arrays):
            raise UsageError(f"{type(self).__name__}.update works in place and needs contiguous arrays")
        flat, *states = (each.reshape(-1) for each in arrays)
        job = kernels.new_job(1, size=value.size, op=Op.SUM, dtype=value.dtype.name)
        job[kernels.COUNT] = 1
        grad = np.require(grad, value.dtype, ["C", "A"])
        kernels.put(job, 0, grad, 0)
        numbers = np.array(self.coefficients(step), value.dtype)
        getattr(kernels, self.kernel)(flat, flat, np.empty(0, np.uint16), job, numbers, *states)


@dataclass(frozen=True)
class Assign(Fused):
    """value ← aggregate: a pull gives what the round reduced to. The default."""

    kernel: ClassVar[str] = "assign"

    @property
    def counts_steps(self) -> bool:
        return False

    def check(self, dtype: str, reducer: Reducer) -> None:
        """Any element type will do."""


@dataclass(frozen=True)
class AssignInStep(Assign):
    """Assign, where every push says in its `hyper` how far its worker is: a round whose members differ is refused."""

    step: int = 0
    backwards: int = 0


@dataclass(frozen=True)
class Merge(Assign):
    """value ← reduce(value, aggregate): the value goes on accumulating. Under mean, each round adds its mean."""

    kernel: ClassVar[str] = "merge"


@dataclass(frozen=True)
class Add(Merge):
    """Merge where it means addition, and nowhere else."""

    def check(self, dtype: str, reducer: Reducer) -> None:
        if reducer.op not in (Op.SUM, Op.MEAN):
            raise UsageError(f"update='add' needs reduce='sum' or 'mean', got '{reducer.name}': use update='merge'")
