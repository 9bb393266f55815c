"""Saving a store, and loading it into any number of servers: what travels. `windlass.checkpoint` knows what lies on the
disk and how it gets there safely.

A key goes slot by slot, so that no more than a few shards of it are in memory here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from windlass._wire import messages as m
from windlass.checkpoint import AfterRound, Moment, Reader, SavedSlot, WhenAsked, Writer
from windlass.types import MANAGER, Block, Incarnation, KeyId, Sequential
from windlass.worker.client import Client

__all__ = ["SavedSlot", "load", "read_slots", "save", "write_slots"]


def read_slots(client: Client, name: str) -> tuple[m.Declared, list[SavedSlot]]:
    """Everything that a key is made of, slot by slot. Blocks; nobody may push meanwhile."""
    declared = _look_up(client, name)
    return declared, [_read_slot(client, declared, number) for number in range(len(declared.slots))]


def write_slots(client: Client, declared: m.Declared, slots: Sequence[SavedSlot]) -> None:
    """Make a key of what `read_slots` gave. Blocks; nobody may push meanwhile."""
    for number in _keeper_last(declared):
        _write_slot(client, declared, number, slots[number])


def _look_up(client: Client, name: str) -> m.Declared:
    declared, _ = client.request(MANAGER, lambda n: m.Lookup(request=n, name=name), f"save '{name}'")
    found: m.Declared = declared
    return found


def _keeper_last(declared: m.Declared) -> Iterator[int]:
    """When the keeper has its part, everybody has, and it lets those in who wait for a first value."""
    keeper = declared.slots[0]
    yield from sorted(range(len(declared.slots)), key=lambda slot: declared.slots[slot] == keeper)


def _read_slot(client: Client, declared: m.Declared, number: int) -> SavedSlot:
    slot = SavedSlot({}, {})
    parts: tuple[str, ...] = ("",)
    what = f"slot {number} of '{declared.spec.name}', to be saved,"
    for part in count():
        if part == len(parts):
            break
        dumped, [array] = client.request(declared.slots[number], partial(_dump, declared.key, number, part), what)
        parts, slot.meta = dumped.names, dumped.meta
        slot.arrays[parts[part]] = array.view(dumped.dtypes[part])
    return slot


def _dump(key: KeyId, slot: int, part: int, request: int) -> m.Dump:
    return m.Dump(request=request, key=key, slot=slot, part=part)


def _write_slot(client: Client, declared: m.Declared, number: int, slot: SavedSlot) -> None:
    for position, (part, array) in enumerate(slot.arrays.items()):
        restore = partial(
            m.Restore,
            key=declared.key,
            slot=number,
            name=part,
            dtype=str(array.dtype),
            meta=slot.meta,
            is_last=position == len(slot.arrays) - 1,
        )
        client.request(
            declared.slots[number],
            lambda n, restore=restore: restore(request=n),  # type: ignore[misc]
            f"slot {number} of '{declared.spec.name}', to be loaded,",
            data=(Block(np.ascontiguousarray(array).reshape(-1).view(np.uint8)),),
        )


# --- whole stores -----------------------------------------------------------------------------------------------------


def save(
    client: Client, names: Iterable[str], path: str, name: str | None, keep: int | None, before: Mapping[KeyId, int]
) -> str:
    """Write these keys, and give the path of what was written. Blocks; the caller sees to it that nobody pushes
    meanwhile. `before` is what `load` gave: the rounds that a key had taken before it came here."""
    every = [_look_up(client, key) for key in names if not key.startswith("windlass/")]
    moments = _moments(client, every, before)
    rounds = [moment.round for moment in moments if isinstance(moment, AfterRound)]
    step = max(rounds or [moment.version for moment in moments if isinstance(moment, WhenAsked)], default=0)
    with Writer(path, name=name, step=step, keep=keep) as writer:
        for declared, moment in zip(every, moments, strict=True):
            for number in range(len(declared.slots)):
                slot = _read_slot(client, declared, number)
                writer.add(declared.spec, number, slot.arrays, slot.meta, moment)
    return writer.path


def _moments(client: Client, every: Sequence[m.Declared], before: Mapping[KeyId, int]) -> list[Moment]:
    versions = _versions(client, every)
    return [
        (AfterRound if isinstance(declared.spec.consistency, Sequential) else WhenAsked)(
            version + before.get(declared.key, 0)
        )
        for declared, version in zip(every, versions, strict=True)
    ]


def _versions(client: Client, every: Sequence[m.Declared]) -> list[int]:
    """How many updates each key has taken since it was declared here: its keeper knows."""
    said: dict[Incarnation, dict[str, dict[str, int]]] = {}
    for keeper in dict.fromkeys(declared.slots[0] for declared in every):
        answer, _ = client.request(keeper, lambda n: m.Inspect(request=n), "how many rounds were closed")
        said[keeper] = answer.detail["keys"]
    return [said[declared.slots[0]][declared.spec.name]["version"] for declared in every]


def load(client: Client, path: str) -> dict[KeyId, int]:
    """Declare what is not declared, and give every slot back what it was made of. Blocks; nobody may push meanwhile.
    Gives for each key what `save` is to add to the rounds that this cluster counts."""
    reader = Reader(path)
    every: list[m.Declared] = []
    for saved in reader.manifest.keys:
        make = partial(m.Declare, spec=saved.spec)
        declared, _ = client.request(
            MANAGER, lambda n, make=make: make(request=n), f"load '{saved.spec.name}'"  # type: ignore[misc]
        )
        for number in _keeper_last(declared):
            _write_slot(client, declared, number, reader.slot(saved.spec.name, number))
        every.append(declared)
    moments = [saved.moment for saved in reader.manifest.keys]
    taken = [moment.round if isinstance(moment, AfterRound) else moment.version for moment in moments]
    here = _versions(client, every)
    return {declared.key: before - now for declared, before, now in zip(every, taken, here, strict=True)}
