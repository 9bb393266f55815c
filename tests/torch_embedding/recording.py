"""A store that notes every push and pull, and tables that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import windlass as wl


class Call(NamedTuple):
    verb: str
    counts: dict[str, int]  # how many ids of each table


class Recording:
    """Does what the store does."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def make(self, name: str = "emb", dim: int = 4, **declared: Any) -> Any:
        """A table, with bounded delay unless it is declared otherwise."""
        declared = {"init": wl.Normal(std=0.5), "update": wl.SGD(lr=0.5), "consistency": wl.Bounded(4), **declared}
        table = self._store.create_table(name, dim=dim, **declared)
        table.store = self
        return table

    def pull(self, key: Any, *, ids: Any = None, **options: Any) -> Any:
        self.calls.append(_call("pull", key, ids))
        return self._store.pull(key, ids=ids, **options)

    def push(self, key: Any, value: Any = None, *, ids: Any = None, **options: Any) -> Any:
        self.calls.append(_call("push", key, ids))
        return self._store.push(key, value, ids=ids, **options)

    def verbs(self) -> list[str]:
        return [call.verb for call in self.calls]


@contextmanager
def recorded() -> Iterator[Recording]:
    """A store of this process alone, which notes what it is asked."""
    with wl.Store() as store:
        yield Recording(store)


def _call(verb: str, key: Any, ids: Any) -> Call:
    return Call(verb, {key: len(ids)} if isinstance(key, str) else {name: len(each) for name, each in ids.items()})
