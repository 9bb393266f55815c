"""What the models and optimizers on one store are called, so that no two share keys."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable
from itertools import count
from typing import Protocol

import torch

from windlass.worker.store import Store

_ATTRIBUTE = "_windlass_training_names"


class Named(Protocol):
    is_closed: bool
    tensors: list[torch.Tensor]

    def replace(self) -> None: ...


class Names:
    """Kept with a store: who has which name, and the keys that were made under it.

    A name is free again when its model is closed or nobody refers to it any more, and for a model over some of the same
    parameters, which takes over. When a model goes is not the same moment in every worker, so the lowest rank chooses
    for all.
    """

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[str, Named] = weakref.WeakValueDictionary()
        self._keys: dict[str, set[str]] = {}
        self._runs: dict[str, int] = {}  # in which each name was given last
        self._made = (0, 0)  # the run, and how many models were made in it

    @staticmethod
    def of(store: Store) -> Names:
        names = getattr(store, _ATTRIBUTE, None)
        if not isinstance(names, Names):
            names = Names()
            setattr(store, _ATTRIBUTE, names)
        return names

    def number(self, run: int) -> int:
        """One more model is made in this run: the how many-th it is."""
        self._made = (run, self._made[1] + 1 if self._made[0] == run else 1)
        return self._made[1]

    def taken(self, tensors: Iterable[torch.Tensor]) -> list[str]:
        """The names that a model of these parameters cannot have."""
        mine = {id(tensor) for tensor in tensors}
        return [
            name
            for name, model in self._models.items()
            if not model.is_closed and not any(id(tensor) in mine for tensor in model.tensors)
        ]

    @staticmethod
    def choose(wanted: str, default: str, taken: Collection[str]) -> str:
        """The wanted name, taken or not; without one the default, with a number if that is taken."""
        if wanted:
            return wanted
        return next(name for n in count(1) if (name := default if n == 1 else f"{default}-{n}") not in taken)

    def leftovers(self, name: str, taken: Collection[str]) -> tuple[list[str], list[str]]:
        """The keys of all names that nobody has any more, and of this one: those made in this run, which others may
        still use, and those of earlier ones. To be deleted."""
        made: tuple[list[str], list[str]] = ([], [])
        for each in self._free(name, taken):
            made[self._runs[each] != self._made[0]].extend(self._keys[each])
        return made

    def forget(self, name: str, taken: Collection[str]) -> None:
        """Those keys are deleted."""
        for each in self._free(name, taken):
            del self._keys[each]

    def _free(self, name: str, taken: Collection[str]) -> list[str]:
        return [each for each in self._keys if each == name or each not in taken]

    def register(self, name: str, model: Named) -> set[str]:
        """Give the name to a model, which takes it over from whoever has it; where it is to note its keys."""
        other = self._models.get(name)
        if other is not None:
            other.replace()
        self._models[name] = model
        self._runs[name] = self._made[0]
        return self._keys.setdefault(name, set())
