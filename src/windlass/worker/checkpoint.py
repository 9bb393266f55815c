"""Saving a store, and loading it into any number of servers: what travels. `windlass.checkpoint` knows what lies on the
disk and how it gets there safely.

A key goes slot by slot, so that no more than a few shards of it are in memory here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from os import PathLike

import numpy as np

from windlass._wire import messages as m
from windlass.checkpoint import AfterRound, Reader, SavedSlot, WhenAsked, Writer
from windlass.types import MANAGER, Block, Generation, Incarnation, KeyId, Sequential
from windlass.worker.client import Client
from windlass.worker.ops import KeyInfo

__all__ = ["Counts", "SavedSlot", "load", "read_slots", "save", "write_slots"]


@contextmanager
def _using(client: Client, declared: m.Declared) -> Iterator[KeyInfo]:
    """The key, its shards' heads kept up to date."""
    key = KeyInfo(declared.key, declared.spec, list(declared.chains))
    client.use(key, Generation(declared.term, declared.number))
    try:
        yield key
    finally:
        client.disuse(key)


def read_slots(client: Client, name: str) -> tuple[m.Declared, list[SavedSlot]]:
    """Everything that a key is made of, slot by slot. Blocks; nobody may push meanwhile."""
    declared = _look_up(client, name)
    with _using(client, declared) as key:
        return declared, [_read_slot(client, key, number) for number in range(key.spec.num_slots)]


def write_slots(client: Client, declared: m.Declared, slots: Sequence[SavedSlot]) -> None:
    """Make a key of what `read_slots` gave. Blocks; nobody may push meanwhile."""
    with _using(client, declared) as key:
        for number in _keeper_last(key):
            _write_slot(client, key, number, slots[number])


def _look_up(client: Client, name: str) -> m.Declared:
    look_up = partial(m.Lookup, name=name, namespace=client.state.namespace)
    declared, _ = client.request(MANAGER, lambda n: look_up(request=n), f"save '{name}'")
    found: m.Declared = declared
    return found


def _keeper_last(key: KeyInfo) -> Iterator[int]:
    """When the keeper has its part, everybody has, and it lets those in who wait for a first value."""
    return reversed(range(key.spec.num_slots))


def _read_slot(client: Client, key: KeyInfo, number: int) -> SavedSlot:
    slot = SavedSlot({}, {})
    parts: tuple[str, ...] = ("",)
    what = f"slot {number} of '{key.spec.name}', to be saved,"
    for part in count():
        if part == len(parts):
            break
        where = (key, key.shard_of(number))
        dumped, [array] = client.request(where, partial(_dump, key.id, number, part), what)
        parts, slot.meta = dumped.names, dumped.meta
        slot.arrays[parts[part]] = array.view(dumped.dtypes[part])
    return slot


def _dump(key: KeyId, slot: int, part: int, request: int) -> m.Dump:
    return m.Dump(request=request, key=key, slot=slot, part=part)


def _write_slot(client: Client, key: KeyInfo, number: int, slot: SavedSlot) -> None:
    for position, (part, array) in enumerate(slot.arrays.items()):
        restore = partial(
            m.Restore,
            key=key.id,
            slot=number,
            name=part,
            dtype=str(array.dtype),
            meta=slot.meta,
            is_last=position == len(slot.arrays) - 1,
        )
        client.request(
            (key, key.shard_of(number)),
            lambda n, restore=restore: restore(request=n),  # type: ignore[misc]
            f"slot {number} of '{key.spec.name}', to be loaded,",
            data=(Block(np.ascontiguousarray(array).reshape(-1).view(np.uint8)),),
        )


# --- whole stores -----------------------------------------------------------------------------------------------------


class Counts:
    """How many updates keys have taken, those before they were loaded from a checkpoint included: for a sequential key
    its rounds. `newest` gives what this cluster counts of a key, or None for one that its store does not use."""

    def __init__(self, client: Client, newest: Callable[[str], int | None]) -> None:
        self._client, self._newest = client, newest
        self._before: dict[KeyId, int] = {}

    def of(self, every: Sequence[m.Declared]) -> list[int]:
        here = self._here(every)
        return [count + self._before.get(declared.key, 0) for declared, count in zip(every, here, strict=True)]

    def loaded(self, every: Sequence[m.Declared], taken: Sequence[int]) -> None:
        """These keys have become what they were after so many updates."""
        here = self._here(every)
        self._before |= {declared.key: took - now for declared, took, now in zip(every, taken, here, strict=True)}

    def _here(self, every: Sequence[m.Declared]) -> list[int]:
        said: dict[Incarnation, dict[str, dict[str, int]]] = {}
        counts = []
        for declared in every:
            keeper, name = next(iter(declared.chains[0]), None), declared.spec.name
            count = self._newest(name)
            if count is None and keeper is None:
                count = 0
            elif count is None:
                assert keeper is not None
                if keeper not in said:
                    what = "how many rounds were closed"
                    said[keeper] = self._client.request(keeper, lambda n: m.Inspect(request=n), what)[0].detail["keys"]
                count = said[keeper][name]["version"]
            counts.append(count)
        return counts


def save(
    client: Client, counts: Counts, names: Iterable[str], path: str | PathLike[str], name: str | None, keep: int | None
) -> str:
    """Write these keys, and give the path of what was written. Blocks; the caller sees to it that nobody pushes
    meanwhile."""
    every = [_look_up(client, key) for key in names if not key.startswith("windlass/")]
    taken = counts.of(every)
    rounds = [count for declared, count in zip(every, taken, strict=True) if _is_sequential(declared)]
    with Writer(path, name=name, step=max(rounds or taken, default=0), keep=keep) as writer:
        for declared, count in zip(every, taken, strict=True):
            moment = AfterRound(count) if _is_sequential(declared) else WhenAsked(count)
            with _using(client, declared) as key:
                for number in range(key.spec.num_slots):
                    slot = _read_slot(client, key, number)
                    writer.add(key.spec, number, slot.arrays, slot.meta, moment)
    return writer.path


def _is_sequential(declared: m.Declared) -> bool:
    return isinstance(declared.spec.consistency, Sequential)


def load(client: Client, counts: Counts, path: str | PathLike[str]) -> None:
    """Declare what is not declared, and give every slot back what it was made of. Blocks; nobody may push meanwhile."""
    reader = Reader(path)
    every: list[m.Declared] = []
    for saved in reader.manifest.keys:
        make = partial(m.Declare, spec=saved.spec)
        declared, _ = client.request(
            MANAGER, lambda n, make=make: make(request=n), f"load '{saved.spec.name}'"  # type: ignore[misc]
        )
        with _using(client, declared) as key:
            for number in _keeper_last(key):
                _write_slot(client, key, number, reader.slot(saved.spec.name, number))
        every.append(declared)
    moments = [saved.moment for saved in reader.manifest.keys]
    counts.loaded(every, [moment.round if isinstance(moment, AfterRound) else moment.version for moment in moments])
