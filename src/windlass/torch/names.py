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
    parameters, which takes over. When a model goes is not the same moment in every worker, so all of them say what is
    taken, and one that is taken anywhere is.
    """

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[str, Named] = weakref.WeakValueDictionary()
        self._keys: dict[str, set[str]] = {}

    @staticmethod
    def of(store: Store) -> Names:
        names = getattr(store, _ATTRIBUTE, None)
        if not isinstance(names, Names):
            names = Names()
            setattr(store, _ATTRIBUTE, names)
        return names

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

    def leftovers(self, name: str, taken: Collection[str]) -> list[str]:
        """The keys of all names that nobody has any more, and of this one: to be deleted. They are forgotten here."""
        gone = [each for each in self._keys if each == name or each not in taken]
        return [key for each in gone for key in self._keys.pop(each)]

    def register(self, name: str, model: Named) -> set[str]:
        """Give the name to a model, which takes it over from whoever has it; where it is to note its keys."""
        other = self._models.get(name)
        if other is not None:
            other.replace()
        self._models[name] = model
        return self._keys.setdefault(name, set())
