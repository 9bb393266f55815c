"""The `reduce=` of a collective: a name or a `wl.Reducer`, checked against the tensor's type."""

from __future__ import annotations

from windlass.errors import UsageError
from windlass.store.reduce import BUILT_IN, Op, Reducer, resolve_reducer
from windlass.types import Rule


def reducer_of(reduce: str | Reducer, dtype: str, what: str) -> Reducer:
    """The reducer. UsageError where its result does not fit the tensor's type."""
    if isinstance(reduce, Reducer):
        reducer = reduce
    elif isinstance(reduce, str):
        reducer = BUILT_IN.get(reduce) or resolve_reducer(Rule(reduce), {})
    else:
        names = ", ".join(f"'{name}'" for name in BUILT_IN)
        raise UsageError(f"{what}: reduce expects one of {names} or a wl.Reducer, got {type(reduce).__name__}")
    if reducer.op is Op.MEAN and "float" not in dtype:
        raise UsageError(f"{what}: reduce='mean' needs a floating-point tensor, got {dtype}: use 'sum' and divide")
    if reducer.op is Op.SUM and dtype == "bool":
        raise UsageError(f"{what}: a sum of bool values does not fit a bool: use reduce='any' or 'all', or integers")
    if reducer.op in (Op.ANY, Op.ALL) and dtype != "bool":
        raise UsageError(f"{what}: reduce='{reducer.name}' needs a bool tensor, got {dtype}: use 'max' or 'min'")
    return reducer
