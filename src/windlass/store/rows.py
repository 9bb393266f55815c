"""The rows of a table slot: their values and optimizer state, by row number, and how a batch updates them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from windlass.errors import UsageError
from windlass.store.arena import Arena
from windlass.store.batch import ENCODINGS, address
from windlass.store.initial import Initial
from windlass.store.reduce import Op, Reducer
from windlass.store.update import Fused, Merge, Updater
from windlass.types import STORAGE, Array, Memory

KNOWN_STEPS = 1 << 16
"""For so many steps the coefficients are kept; for later ones they are computed in every batch that needs them."""

_STEPS_AT_ONCE = 1024
_NO_STEPS = np.empty(0, np.int32)
_NATIVE = 0


@dataclass(frozen=True)
class RowRule:
    """What the rows of a table are and how they are updated."""

    dim: int
    dtype: str
    init: Initial
    reducer: Reducer
    updater: Updater


class Rows:
    """Rows by number. Arithmetic is in float32, whatever the table's type: a 16-bit row is encoded when it is pulled,
    and what is kept of it is the float32 that it is rounded from."""

    def __init__(self, rule: RowRule, memory: Memory) -> None:
        from windlass.store import row_kernels  # here, because importing numba takes most of a second

        self.rule, self._kernels = rule, row_kernels
        updater, dim = rule.updater, rule.dim
        names = updater.state_names()
        self._wide = [name for name in names if name not in updater.row_state]
        self._narrow = [name for name in names if name in updater.row_state]
        self._has_steps = _depends_on_steps(updater)
        narrow = len(self._narrow) + self._has_steps
        self.arena = Arena(dim * (1 + len(self._wide)), narrow, memory)
        self._shape = np.array([dim, self.arena.width, narrow, rule.reducer.op], np.int64)
        self._start = rule.init.start()
        initial = [updater.initial_state(name) for name in self._wide + self._narrow]
        self._initial = np.array([*initial, 0.0], np.float32)
        self._scratch = np.empty(dim, np.float32)
        self._encoding = ENCODINGS[rule.dtype]
        self._kernel: Any = None
        if isinstance(updater, Fused) and not (isinstance(updater, Merge) and rule.reducer.op is Op.CUSTOM):
            self._kernel = row_kernels.RULES[updater.kernel]
        self._known: tuple[Updater, Array] | None = None  # coefficients for steps from 1 on

    @property
    def row_bytes(self) -> int:
        """What one row takes: its value and its state."""
        return 4 * (self.arena.width + self.arena.narrow)

    @property
    def value_bytes(self) -> int:
        """What a row's value takes, as it is handed out."""
        return STORAGE[self.rule.dtype].itemsize * self.rule.dim

    @property
    def is_fused(self) -> bool:
        return self._kernel is not None

    def tune(self, hyper: Mapping[str, float]) -> Updater:
        """The updater with these numbers replaced. UsageError if rows lack what it would need."""
        tuned = self.rule.updater.with_hyper(hyper)
        if _depends_on_steps(tuned) and not self._has_steps:
            raise UsageError(
                f"{dict(hyper)} makes {tuned} depend on how many steps a row has taken, which this table does not "
                f"count: declare it with such numbers, instead of {self.rule.updater}"
            )
        return tuned

    def named(self, rows: Array, data: int, row_bytes: int) -> Array:
        """The records of rows by their numbers, -1 for none, and of what comes or goes with them at this address."""
        records = np.empty((rows.size, 3), np.int64)
        self._kernels.name_records(
            self.arena.wides, self.arena.narrows, self._shape, rows, data, row_bytes, records
        )
        return records

    def located(self, plan: Array, count: int, row_bytes: int) -> Array:
        """Those of so many ids, of this slot and others of its table, as the plan says."""
        records = np.empty((count, 3), np.int64)
        self._kernels.locate(plan, self._shape, row_bytes, records)
        return records

    def pull(self, records: Array) -> int:
        """Write the rows' values to where they go, as the table's type. Returns of how many there is none."""
        missing: int = self._kernels.pull(records, self._shape, self._encoding)
        return missing

    def pull_missing(self, records: Array, ids: int) -> None:
        """Write what rows that there are not start as, of ids at this address."""
        self._kernels.pull_missing(records, ids, self._shape, self._encoding, self._start)

    def make(self, rows: Array, which: Array, ids: int) -> None:
        """Begin those rows of a batch whose numbers in it are `which`."""
        arena = self.arena
        self._kernels.make(
            arena.wides, arena.narrows, self._shape, rows, which, ids, self._start, self._initial
        )

    # --- updating -----------------------------------------------------------------------------------------------------

    def update(self, records: Array, updater: Updater) -> None:
        """Update the rows, of this slot and others of its table, once each, by the kernel."""
        numbers, which = self._coefficients(records, updater)
        self._kernel(records, self._shape, numbers, which, self._scratch)

    def _coefficients(self, records: Array, updater: Updater) -> tuple[Array, Array]:
        """Coefficients for every step that these rows are at, and which of them is each row's. Counts the steps."""
        assert isinstance(updater, Fused)
        if not self._has_steps:
            return self._until(updater, 1), _NO_STEPS
        steps = np.ones(len(records), np.int32)
        most = self._kernels.step(records, self._shape, steps)
        if updater is self.rule.updater and most <= KNOWN_STEPS:
            return self._until(updater, most), steps - np.int32(1)
        distinct, which = np.unique(steps, return_inverse=True)
        return np.array([updater.coefficients(int(each)) for each in distinct], np.float32), which.astype(np.int32)

    def _until(self, updater: Fused, most: int) -> Array:
        if self._known is None or self._known[0] is not updater:
            # Never empty: a rule without coefficients has a 0 instead.
            self._known = (updater, np.array([updater.coefficients(1) or (0.0,)], np.float32))
        known = self._known[1]
        if most > len(known):
            steps = range(len(known) + 1, min(KNOWN_STEPS, most + _STEPS_AT_ONCE) + 1)
            more = np.array([updater.coefficients(step) for step in steps], np.float32)
            self._known = (updater, np.concatenate([known, more]))
        return self._known[1]

    def propose(self, rows: Array, ids: Array, grads: Array, updater: Updater) -> dict[str, Array]:
        """What a user's updater, or a user's reducer under merge, makes of the rows; -1 is a row that begins now. They
        stay as they are."""
        arrays = self.read(rows)
        value = np.empty((rows.size, self.rule.dim), np.float32)
        records = self.named(rows, address(value), 4 * self.rule.dim)
        if self._kernels.pull(records, self._shape, _NATIVE):
            self._kernels.pull_missing(records, address(ids), self._shape, _NATIVE, self._start)
        arrays["value"] = value
        for number, name in enumerate(self._wide):
            arrays[f"state.{name}"][rows < 0] = self._initial[number]
        if isinstance(updater, Merge):
            arrays["value"] = self.rule.reducer.merge(value, grads)
            return arrays
        steps = np.where(rows < 0, 0, arrays["steps"]) + 1 if self._has_steps else np.ones(rows.size, np.int64)
        for step in np.unique(steps).tolist():
            self._step_some(arrays, np.flatnonzero(steps == step), grads, updater, step)
        if self._has_steps:
            arrays["steps"] = steps.astype(np.int32)
        return arrays

    def _step_some(self, arrays: dict[str, Array], some: Array, grads: Array, updater: Updater, step: int) -> None:
        """Those that are at the same step, as one stretch."""
        value = arrays["value"][some].reshape(-1)
        state = {name: arrays[f"state.{name}"][some].reshape(-1) for name in self._wide}
        updater.update(value, grads[some].reshape(-1), state, step)
        if state.keys() - set(self._wide):
            raise UsageError(
                f"{type(updater).__name__} adds the state {sorted(state.keys() - set(self._wide))}; on a table, all "
                "that a row keeps is known when it is declared: name it in `state`"
            )
        arrays["value"][some] = value.reshape(some.size, -1)
        for name in self._wide:
            arrays[f"state.{name}"][some] = state[name].reshape(some.size, -1)

    # --- reading and writing by name ----------------------------------------------------------------------------------

    def read(self, rows: Array) -> dict[str, Array]:
        """All that there is of these rows, by name. What there is of -1 is not written."""
        arrays: dict[str, Array] = {"value": np.empty((rows.size, self.rule.dim), np.float32)}
        arrays |= {f"state.{name}": np.empty_like(arrays["value"]) for name in self._wide}
        for number, each in enumerate(arrays.values()):
            self._kernels.read(self.arena.wides, self.arena.width, rows, number * self.rule.dim, each)
        for number, name in enumerate(self._narrow_names()):
            each = np.zeros((rows.size, 1), np.float32)
            self._kernels.read(self.arena.narrows, self.arena.narrow, rows, number, each)
            arrays[name] = each.reshape(-1).view(np.int32 if name == "steps" else np.float32)
        return arrays

    def state(self, rows: Array) -> dict[str, Array]:
        """What the updater keeps of these rows, element by element, flat; of -1, as it starts."""
        found = self.read(rows)
        state = {name: found[f"state.{name}"] for name in self._wide}
        for number, name in enumerate(self._wide):
            state[name][rows < 0] = self._initial[number]
        return {name: each.reshape(-1) for name, each in state.items()}

    def write(self, rows: Array, arrays: Mapping[str, Array]) -> None:
        """Set what is named, of these rows; -1 is passed over."""
        for number, name in enumerate(["value", *(f"state.{name}" for name in self._wide)]):
            if name in arrays:
                given = np.ascontiguousarray(arrays[name])
                self._kernels.write(self.arena.wides, self.arena.width, rows, number * self.rule.dim, given)
        for number, name in enumerate(self._narrow_names()):
            if name in arrays:
                given = np.ascontiguousarray(arrays[name]).view(np.float32).reshape(-1, 1)
                self._kernels.write(self.arena.narrows, self.arena.narrow, rows, number, given)

    def checked(self, arrays: Mapping[str, Array], count: int) -> dict[str, Array]:
        """The arrays of so many rows out of a dump, in which they may be bytes; UsageError if any is missing, is not of
        this updater, or of another size."""
        dim = self.rule.dim
        shapes: dict[str, tuple[int, ...]] = {"value": (count, dim)}
        shapes |= {f"state.{name}": (count, dim) for name in self._wide}
        shapes |= dict.fromkeys(self._narrow_names(), (count,))
        given = {name for name in arrays if name in ("value", "steps") or name.startswith("state.")}
        if given != shapes.keys():
            raise UsageError(
                f"the dump was made under another updater: it has {sorted(given)}, "
                f"but {self.rule.updater} keeps {sorted(shapes)}"
            )
        found = {}
        for name, shape in shapes.items():
            numbers = np.ascontiguousarray(arrays[name]).reshape(-1).view(np.int32 if name == "steps" else np.float32)
            if numbers.size != np.prod(shape):
                raise UsageError(f"the dump's '{name}' should be of shape {shape}, got {numbers.size} numbers")
            found[name] = numbers.reshape(shape)
        return found

    def _narrow_names(self) -> list[str]:
        return [*(f"state.{name}" for name in self._narrow), *(["steps"] if self._has_steps else [])]


def _depends_on_steps(updater: Updater) -> bool:
    """Whether an update of a row depends on how many it has taken."""
    if not updater.counts_steps or not isinstance(updater, Fused):
        return updater.counts_steps
    return updater.coefficients(1) != updater.coefficients(2)


def storage_of(dtype: str) -> np.dtype[Any]:
    """What a table of this type hands out; UsageError if there is no such table."""
    if dtype not in ENCODINGS:
        raise UsageError(f"tables hold {', '.join(ENCODINGS)}, got dtype '{dtype}'")
    return STORAGE[dtype]
