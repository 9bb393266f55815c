"""Updaters by name: the built-in ones, and how any is named on the wire and found again."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.errors import UsageError
from windlass.store import naming
from windlass.store.optimizers import FTRL, SGD, Adagrad, Adam, AdamW, RowwiseAdagrad
from windlass.store.updater import Add, Assign, Fused, Merge, Updater
from windlass.types import Rule

__all__ = [
    "BUILT_IN", "FTRL", "SGD", "Adagrad", "Adam", "AdamW", "Add", "Assign", "Fused", "Merge", "RowwiseAdagrad",
    "Updater", "resolve_updater", "updater_rule",
]

BUILT_IN: dict[str, type[Updater]] = {
    "assign": Assign, "merge": Merge, "add": Add,
    "sgd": SGD, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad, "rowwise-adagrad": RowwiseAdagrad, "ftrl": FTRL,
}  # fmt: skip


def updater_rule(update: str | Updater, local: dict[str, object] | None = None) -> Rule:
    """The updater's name on the wire and its hyper-parameters as plain values; equal updaters have equal rules.

    A class without an import path (made in a function or a notebook) is entered in `local` if there is one, as an
    embedded store has; else it is a UsageError. Safe to repeat."""
    if isinstance(update, str):
        update = resolve_updater(Rule(update), local or {})
    if not isinstance(update, Updater):
        cls = update if isinstance(update, type) else type(update)
        hint = f"; did you mean {cls.__name__}(...)?" if cls is update else ""
        if cls.__module__.startswith("torch.optim"):
            hint = f"; did you mean wl.torch.Optim(torch.optim.{cls.__name__}, ...)?"
        raise UsageError(f"update= expects {_names()} or a wl.Updater, got {naming.describe(update)}{hint}")
    cls = type(update)
    for name, each in BUILT_IN.items():
        if each is cls:
            return Rule(name, update.config())
    path = naming.path_of_class(cls)
    if path is None:
        path = naming.enter_local(cls, cls.__name__, local, f"the updater {cls.__qualname__}")
    return Rule(path, update.config())


def resolve_updater(rule: Rule, local: Mapping[str, object]) -> Updater:
    """The updater that a rule describes. Imports its module; UsageError if what is there is not an Updater subclass,
    or does not take those hyper-parameters."""
    found: object = BUILT_IN.get(rule.path)
    if found is None:
        expected = f"update= {_names()}, or 'package.module:Name' of a wl.Updater subclass"
        found = naming.find(rule.path, local, expected)
    if not (isinstance(found, type) and issubclass(found, Updater)):
        raise UsageError(f"'{rule.path}' must be a subclass of wl.Updater, found {naming.describe(found)}")
    return found.from_config(rule.config)


def built_in(rule: Rule) -> Updater | None:
    """The updater that a rule describes, if nothing has to be imported for it."""
    found = BUILT_IN.get(rule.path)
    return None if found is None else found.from_config(rule.config)


def _names() -> str:
    return "one of " + ", ".join(repr(name) for name in BUILT_IN)
