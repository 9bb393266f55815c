"""Saving a store to one safetensors file, and loading it into any number of servers.

The file holds, for every slot of every key, the arrays that the slot is made of; its metadata holds each key's
declaration, so a key can be made again where nobody has declared it yet. It is written beside its name and renamed, so
a crash leaves the previous file intact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np

from windlass._wire import messages as m
from windlass.errors import UsageError
from windlass.types import MANAGER, Block, KeyId, KeySpec
from windlass.worker.client import Client

FORMAT = "windlass-1"


class _SavedKey(msgspec.Struct):
    spec: KeySpec
    slots: list[dict[str, Any]]


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
        declared, _ = client.request(MANAGER, lambda n, name=name: m.Lookup(request=n, name=name), f"save '{name}'")  # type: ignore[misc]
        saved = _SavedKey(declared.spec, [])
        for slot, server in enumerate(declared.slots):
            parts: tuple[str, ...] = ("",)
            for part in count():
                if part == len(parts):
                    break
                dumped, [array] = client.request(
                    server,
                    partial(_dump, declared.key, slot, part),
                    f"slot {slot} of '{name}', to be saved,",
                )
                parts = dumped.names
                tensors[f"{len(keys)}/{slot}/{parts[part]}"] = array.view(dumped.dtypes[part])
            saved.slots.append({"names": parts, "dtypes": dumped.dtypes, "meta": dumped.meta})
        keys.append(saved)
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
    keeper = declared.slots[0]
    # The keeper's last: when it has its part, everybody has, and it lets those in who wait for a first value.
    for slot in sorted(range(len(saved.slots)), key=lambda slot: declared.slots[slot] == keeper):
        parts = saved.slots[slot]
        for number_of_part, part in enumerate(parts["names"]):
            array = np.ascontiguousarray(file.get_tensor(f"{number}/{slot}/{part}"))
            restore = partial(
                m.Restore,
                key=declared.key,
                slot=slot,
                name=part,
                dtype=parts["dtypes"][number_of_part],
                meta=parts["meta"],
                is_last=number_of_part == len(parts["names"]) - 1,
            )
            client.request(
                declared.slots[slot],
                lambda n, restore=restore: restore(request=n),  # type: ignore[misc]
                f"slot {slot} of '{name}', to be loaded,",
                data=(Block(array.reshape(-1).view(np.uint8)),),
            )
