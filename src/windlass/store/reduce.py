"""How contributions become one: reducers, their laws, and the only division by a count in the project.

A *reducer* is a commutative monoid: an element-wise `combine` whose operands may be swapped and regrouped, and an
`identity` that changes nothing. That is what lets a slot be reduced by any server, in any number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from windlass.errors import UsageError, in_words, options_checked
from windlass.store import naming
from windlass.types import Array, Rule


class Op(IntEnum):
    """What the kernels know how to do themselves; CUSTOM goes through `combine`."""

    CUSTOM = 0
    SUM = 1
    MEAN = 2
    MIN = 3
    MAX = 4
    ANY = 5
    ALL = 6


def divide(total: Any, count: Any) -> Any:
    """What `mean` means. The one place where anything is divided by a count: averaging in two layers is a bug that
    nothing else shows."""
    return total / count


@options_checked
@dataclass(frozen=True)
class Reducer:
    """A commutative monoid on arrays, element by element: `combine(a, b)` returns an array of their shape.

    Its laws are checked on small integers when it is made (on booleans if the identity is one); a broken law is a
    UsageError that shows the numbers. In a cluster it must be reachable by import path, so make it at module level.

        product = wl.Reducer("product", np.multiply, 1)
    """

    name: str
    combine: Callable[[Array, Array], Array]
    identity: float
    op: Op = field(default=Op.CUSTOM, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        _check_laws(self)

    def fold(self, inputs: list[Array], divisor: int) -> Array:
        """The inputs combined in the order given, then divided if this is mean; a fresh array of their type."""
        total = inputs[0].copy()
        for each in inputs[1:]:
            total = self.merge(total, each)
        return divide(total, total.dtype.type(divisor)) if self.op is Op.MEAN and divisor != 1 else total

    def merge(self, a: Array, b: Array) -> Array:
        """combine(a, b), held to the operands' shape and type."""
        result = np.asarray(self.combine(a, b))
        if result.shape != a.shape:
            raise UsageError(
                f"reducer '{self.name}' must combine element by element: "
                f"two arrays of shape {a.shape} gave one of shape {result.shape}"
            )
        return result.astype(a.dtype, copy=False)


def _check_laws(reducer: Reducer) -> None:
    """Swapping, regrouping and the identity, on every triple of a few small numbers."""
    name, combine = reducer.name, reducer.combine
    if isinstance(reducer.identity, bool | np.bool_):
        sample: Array = np.array([False, True])
    else:
        sample = np.arange(-3, 4, dtype=np.int64 if isinstance(reducer.identity, int) else np.float64)
    a, b, c = (axis.ravel() for axis in np.meshgrid(sample, sample, sample, indexing="ij"))
    identity = np.full_like(a, reducer.identity)
    try:
        ab, ba = combine(a, b), combine(b, a)
        left, right = combine(ab, c), combine(a, combine(b, c))
        kept = combine(a, identity)
    except Exception as error:
        raise UsageError(
            f"reducer '{name}' must combine two numpy arrays element by element; on arrays of {a.dtype} "
            f"its combine raised {in_words(error)}"
        ) from error
    for law, got, expected, text in (
        ("commutative", ab, ba, "combine({a}, {b}) is {got} but combine({b}, {a}) is {expected}"),
        ("associative", left, right,
         "combine(combine({a}, {b}), {c}) is {got} but combine({a}, combine({b}, {c})) is {expected}"),
        ("neutral in its identity", kept, a, "combine({a}, {identity}) is {got} but should be {a}"),
    ):
        if np.shape(got) != a.shape:
            raise UsageError(
                f"reducer '{name}' must combine element by element: two arrays of shape {a.shape} "
                f"gave shape {np.shape(got)}"
            )
        wrong = np.flatnonzero(~np.isclose(got, expected, rtol=1e-9, atol=1e-9, equal_nan=True))
        if wrong.size:
            i = wrong[0]
            numbers = {"a": a[i], "b": b[i], "c": c[i], "got": got[i], "expected": expected[i]}
            shown = text.format(identity=reducer.identity, **{key: each.item() for key, each in numbers.items()})
            raise UsageError(f"reducer '{name}' is not {law}: {shown}")


BUILT_IN: dict[str, Reducer] = {
    each.name: each
    for each in (
        Reducer("sum", np.add, 0, op=Op.SUM),
        Reducer("mean", np.add, 0, op=Op.MEAN),
        Reducer("min", np.minimum, float("inf"), op=Op.MIN),
        Reducer("max", np.maximum, float("-inf"), op=Op.MAX),
        Reducer("any", np.logical_or, False, op=Op.ANY),
        Reducer("all", np.logical_and, True, op=Op.ALL),
    )
}


def check_reducer(reducer: Reducer, dtype: str) -> None:
    """UsageError where this reduction of this element type cannot be held in it."""
    is_float = "float" in dtype
    if reducer.op is Op.MEAN and not is_float:
        raise UsageError(f"reduce='mean' needs a floating-point key, got {dtype}: use 'sum' and divide what you pull")
    if reducer.op is Op.SUM and dtype == "bool":
        raise UsageError("reduce='sum' of bool values does not fit a bool: use 'any' or 'all', or an integer key")
    if reducer.op in (Op.ANY, Op.ALL) and dtype != "bool":
        raise UsageError(f"reduce='{reducer.name}' needs a bool key, got {dtype}: use 'max' or 'min', or a bool key")


def reducer_rule(reducer: str | Reducer, local: dict[str, object] | None = None) -> Rule:
    """The reducer's name on the wire: a built-in's own, else its import path. One that has none (a lambda's, a
    notebook's) is entered in `local` if there is one, as an embedded store has; else it is a UsageError. Safe to
    repeat."""
    if isinstance(reducer, str):
        if reducer not in BUILT_IN:
            resolve_reducer(Rule(reducer), local or {})
        return Rule(reducer)
    if not isinstance(reducer, Reducer):
        raise UsageError(f"reduce= expects one of {_names()} or a wl.Reducer, got {type(reducer).__name__}")
    if BUILT_IN.get(reducer.name) is reducer:
        return Rule(reducer.name)
    path = naming.path_of_global(reducer)
    if path is None:
        path = naming.enter_local(reducer, reducer.name, local, f"the reducer '{reducer.name}'")
    return Rule(path)


def resolve_reducer(rule: Rule, local: Mapping[str, object]) -> Reducer:
    """The reducer that a rule names. Imports its module; UsageError if what is there is not a Reducer."""
    if rule.path in BUILT_IN:
        return BUILT_IN[rule.path]
    found = naming.find(rule.path, local, f"reduce= one of {_names()}, or 'package.module:NAME' of a wl.Reducer")
    if not isinstance(found, Reducer):
        raise UsageError(
            f"'{rule.path}' must be a wl.Reducer made at module level, found {naming.describe(found)}"
        )
    return found


def _names() -> str:
    return ", ".join(repr(name) for name in BUILT_IN)
