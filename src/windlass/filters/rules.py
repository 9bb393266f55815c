"""Filters by name: the built-in ones, and how any is named on the wire and found again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.errors import UsageError
from windlass.filters.cast import Cast
from windlass.filters.chain import Chain
from windlass.filters.filter import Filter
from windlass.filters.id_cache import IdCache
from windlass.filters.int8 import Int8
from windlass.filters.kkt import KKT
from windlass.filters.one_bit import OneBit
from windlass.filters.parcel import Form, Target
from windlass.filters.random_k import RandomK
from windlass.filters.random_skip import RandomSkip
from windlass.filters.small_gradient import SmallGradient
from windlass.filters.top_k import TopK
from windlass.filters.zstd import Zstd
from windlass.store import naming
from windlass.store.update import resolve_updater
from windlass.store.updater import Updater
from windlass.types import KeySpec, Rule

BUILT_IN: dict[str, type[Filter]] = {
    "id_cache": IdCache, "small_gradient": SmallGradient, "random_skip": RandomSkip, "kkt": KKT, "cast": Cast,
    "int8": Int8, "one_bit": OneBit, "top_k": TopK, "random_k": RandomK, "zstd": Zstd,
}  # fmt: skip


def filter_rules(filters: Sequence[str | Filter], local: dict[str, object] | None = None) -> tuple[Rule, ...]:
    """The filters' names on the wire and their fields as plain values; equal filters have equal rules.

    A class without an import path (made in a function or a notebook) is entered in `local` if there is one, as an
    embedded store has; else it is a UsageError. Safe to repeat."""
    if isinstance(filters, str | Filter) or not isinstance(filters, Sequence):
        raise UsageError(f"filters= expects a list of filters, got {naming.describe(filters)}")
    return tuple(_rule(each, local) for each in filters)


def resolve_filters(rules: Sequence[Rule], local: Mapping[str, object]) -> tuple[Filter, ...]:
    """The filters that the rules describe. Imports their modules; UsageError if what is there is not a Filter subclass,
    or does not take those fields."""
    return tuple(_resolve(each, local) for each in rules)


def chain_of(spec: KeySpec, local: Mapping[str, object]) -> Chain:
    """The filters of a key. UsageError if they do not fit it, or one another."""
    width = None if spec.table is None else spec.table.dim
    target = Target(spec.name, dtype=spec.dtype, width=width, reduce=spec.reduce.path, size=spec.size)
    chain = Chain(resolve_filters(spec.filters, local), target)
    late = [each for each in chain.filters if each.is_lossy and (each.keeps_loss or each.gives is Form.NUMBERS)]
    if late and spec.update.path == "assign":
        raise UsageError(
            f"'{spec.name}': {late[0]} sends later what it does not send now, which needs an update that adds up: "
            "update='add', wl.SGD(...) or another updater; got 'assign'"
        )
    return chain


def check_filters(spec: KeySpec, local: Mapping[str, object]) -> None:
    """UsageError if the filters of a key that is declared do not fit it, or one another, or its updater."""
    kkt = next((each for each in chain_of(spec, local).filters if isinstance(each, KKT)), None)
    if kkt is None:
        return
    updater = resolve_updater(spec.update, local)
    if type(updater).threshold is Updater.threshold:
        raise UsageError(without_threshold(f"'{spec.name}'", str(kkt), type(updater).__name__))


def without_threshold(where: str, kkt: str, updater: str) -> str:
    """What is said of a KKT that would send everything, because nobody tells it what it need not send."""
    return (
        f"{where}: {kkt} goes by the updater's threshold, and {updater} has none: use wl.FTRL(...), an updater with "
        "threshold(), or another filter"
    )


def _rule(given: str | Filter, local: dict[str, object] | None) -> Rule:
    each = _resolve(Rule(given), local or {}) if isinstance(given, str) else given
    if not isinstance(each, Filter):
        hint = f"; did you mean {each.__name__}(...)?" if isinstance(each, type) else ""
        raise UsageError(f"filters= expects {_names()} or wl.filters.Filter, got {naming.describe(each)}{hint}")
    cls = type(each)
    for name, known in BUILT_IN.items():
        if known is cls:
            return Rule(name, each.config())
    path = naming.path_of_class(cls)
    if path is None:
        path = naming.enter_local(cls, cls.__name__, local, f"the filter {cls.__qualname__}")
    return Rule(path, each.config())


def _resolve(rule: Rule, local: Mapping[str, object]) -> Filter:
    expected = f"filters= {_names()}, or 'package.module:Name' of a wl.filters.Filter subclass"
    found: object = BUILT_IN.get(rule.path) or naming.find(rule.path, local, expected)
    if not (isinstance(found, type) and issubclass(found, Filter)):
        raise UsageError(f"'{rule.path}' must be a subclass of wl.filters.Filter, found {naming.describe(found)}")
    return found.from_config(rule.config)


def _names() -> str:
    return "any of " + ", ".join(repr(name) for name in BUILT_IN)
