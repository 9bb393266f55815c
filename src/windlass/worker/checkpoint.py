"""Saving a store to one safetensors file, and loading it into any number of servers.

The file holds, for every slot of every key, the arrays that the slot is made of; its metadata holds each key's
declaration, so a key can be made again where nobody has declared it yet. It is written beside its name and renamed, so
a crash leaves the previous file intact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np

from windlass._wire import messages as m
from windlass.errors import UsageError
from windlass.types import MANAGER, Array, Block, KeyId, KeySpec
from windlass.worker.client import Client

FORMAT = "windlass-1"


class _SavedKey(msgspec.Struct):
    spec: KeySpec
    slots: list[dict[str, Any]]


@dataclass(slots=True)
class SavedSlot:
    """What one slot is made of: its value and its updater's state, and what else it must know to go on."""

    arrays: dict[str, Array]
    meta: dict[str, Any]

    def described(self) -> dict[str, Any]:
        names = list(self.arrays)
        return {"names": names, "dtypes": [str(self.arrays[name].dtype) for name in names], "meta": self.meta}


def read_slots(client: Client, name: str) -> tuple[m.Declared, list[SavedSlot]]:
    """Everything that a key is made of, slot by slot. Blocks; nobody may push meanwhile."""
    declared, _ = client.request(MANAGER, lambda n: m.Lookup(request=n, name=name), f"save '{name}'")
    slots: list[SavedSlot] = []
    for number, server in enumerate(declared.slots):
        slot = SavedSlot({}, {})
        parts: tuple[str, ...] = ("",)
        for part in count():
            if part == len(parts):
                break
            dumped, [array] = client.request(
                server, partial(_dump, declared.key, number, part), f"slot {number} of '{name}', to be saved,"
            )
            parts, slot.meta = dumped.names, dumped.meta
            slot.arrays[parts[part]] = array.view(dumped.dtypes[part])
        slots.append(slot)
    return declared, slots


def write_slots(client: Client, declared: m.Declared, slots: Sequence[SavedSlot]) -> None:
    """Make a key of what `read_slots` gave. Blocks; nobody may push meanwhile."""
    keeper, name = declared.slots[0], declared.spec.name
    # The keeper's last: when it has its part, everybody has, and it lets those in who wait for a first value.
    for number in sorted(range(len(slots)), key=lambda slot: declared.slots[slot] == keeper):
        slot = slots[number]
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
                f"slot {number} of '{name}', to be loaded,",
                data=(Block(np.ascontiguousarray(array).reshape(-1).view(np.uint8)),),
            )


def save(client: Client, names: Iterable[str], path: str) -> None:
    """Write these keys. Blocks; the caller sees to it that nobody pushes meanwhile."""
    from safetensors.numpy import save_file

    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise UsageError(f"save('{path}'): no such directory as '{folder}'")
    tensors: dict[str, Any] = {}
    keys: list[_SavedKey] = []
    for name in names:
        if name.startswith("windlass/"):
            continue
        declared, slots = read_slots(client, name)
        for number, slot in enumerate(slots):
            tensors |= {f"{len(keys)}/{number}/{part}": array for part, array in slot.arrays.items()}
        keys.append(_SavedKey(declared.spec, [slot.described() for slot in slots]))
    metadata = {"format": FORMAT, "keys": msgspec.json.encode(keys).decode()}
    beside = f"{path}.{os.getpid()}.part"
    try:
        save_file(tensors or {"empty": np.zeros(0, np.uint8)}, beside, metadata=metadata)
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.remove(beside)


def _dump(key: KeyId, slot: int, part: int, request: int) -> m.Dump:
    return m.Dump(request=request, key=key, slot=slot, part=part)


def load(client: Client, path: str) -> None:
    """Declare what is not declared, and give every slot back what it was made of. Blocks."""
    from safetensors import safe_open

    if not os.path.exists(path):
        raise UsageError(f"load('{path}'): no such file")
    try:
        opened = safe_open(path, framework="numpy")
        metadata = opened.metadata() or {}  # type: ignore[no-untyped-call]
    except Exception as error:
        raise UsageError(f"load('{path}'): expected a checkpoint, got a broken or foreign file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise UsageError(f"load('{path}'): expected format {FORMAT}, got {metadata.get('format')!r}")
    with opened as file:
        for number, saved in enumerate(msgspec.json.decode(metadata["keys"], type=list[_SavedKey])):
            _load_key(client, file, number, saved)


def _load_key(client: Client, file: Any, number: int, saved: _SavedKey) -> None:
    name = saved.spec.name
    declared, _ = client.request(MANAGER, lambda n: m.Declare(request=n, spec=saved.spec), f"load '{name}'")
    slots = [
        SavedSlot(
            {
                part: np.asarray(file.get_tensor(f"{number}/{slot}/{part}")).view(dtype)
                for part, dtype in zip(parts["names"], parts["dtypes"], strict=True)
            },
            parts["meta"],
        )
        for slot, parts in enumerate(saved.slots)
    ]
    write_slots(client, declared, slots)
