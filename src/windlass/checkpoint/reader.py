"""Reading a checkpoint, slot by slot. Every array is checked against its checksum as it is read."""

from __future__ import annotations

import os
import zlib

import numpy as np

from windlass.checkpoint.folder import Folder
from windlass.checkpoint.listing import find, instead_of
from windlass.checkpoint.manifest import MANIFEST, Manifest, SavedArray, SavedKey, SavedSlot, SlotEntry, unseal
from windlass.errors import ClusterError, DamagedCheckpoint, UsageError
from windlass.types import Array


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """What a checkpoint says about itself. `path` is a checkpoint, or a directory whose newest is meant."""
    return Reader(path).manifest


class Reader:
    """One checkpoint; `path` is its directory, or one of checkpoints, whose newest is meant. Holds nothing open.
    Thread-safe.

    Raises UsageError where there is no checkpoint, and DamagedCheckpoint, which names file, key and slot, where what
    was written is there no more.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.folder: Folder = find(path)
        self.manifest = unseal(self.folder.read(MANIFEST), self.path)
        self.keys: dict[str, SavedKey] = {key.spec.name: key for key in self.manifest.keys}

    @property
    def path(self) -> str:
        return str(self.folder)

    @property
    def name(self) -> str:
        return self.folder.name

    def slot(self, key: str, number: int) -> SavedSlot:
        """What one slot was made of, or, after the last, what workers had kept back. The arrays may be read-only."""
        entry = self._entry(key, number)
        arrays = {array.name: self._read(entry.file, array, f"slot {number} of '{key}'") for array in entry.arrays}
        return SavedSlot(arrays, entry.meta)

    def part(self, key: str, number: int, name: str) -> Array:
        """One array of one slot. It may be read-only."""
        entry = self._entry(key, number)
        for array in entry.arrays:
            if array.name == name:
                return self._read(entry.file, array, f"slot {number} of '{key}'")
        known = ", ".join(array.name for array in entry.arrays)
        raise UsageError(f"'{key}' has no '{name}' in '{self.path}'; it has {known}")

    def array(self, key: str, name: str = "value") -> Array:
        """One array of all slots of a key: its value, in the key's shape, or flat the one of this name that its updater
        keeps. A bfloat16 value comes as its bits, uint16. Of a table the value is its rows, those of "ids"."""
        saved = self._key(key)
        whole = np.concatenate([self.part(key, number, name).reshape(-1) for number in range(len(saved.slots))])
        shape = saved.spec.shape if saved.spec.table is None else (-1, saved.spec.table.dim)
        return whole.reshape(shape) if name == "value" else whole

    def _key(self, key: str) -> SavedKey:
        if key not in self.keys:
            known = ", ".join(f"'{name}'" for name in sorted(self.keys)) or "none"
            raise UsageError(f"no key '{key}' in '{self.path}'; it has {known:.200}")
        return self.keys[key]

    def _entry(self, key: str, number: int) -> SlotEntry:
        slots = self._key(key).entries
        if not 0 <= number < len(slots):
            raise UsageError(f"'{key}' has slots 0 to {len(slots) - 1} in '{self.path}', asked for {number}")
        return slots[number]

    def _read(self, file: str, array: SavedArray, where: str) -> Array:
        end = array.begin + array.nbytes
        try:
            data = self.folder.read(file, array.begin, end) if array.nbytes else b""
        except ClusterError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise self._damaged(f"{file}, which holds {where}, is missing") from None
            raise
        if len(data) < array.nbytes:
            raise self._damaged(f"{file} is cut short in '{array.name}' of {where}")
        if zlib.crc32(data) != array.crc32:
            raise self._damaged(f"{file} has been altered in '{array.name}' of {where}")
        return np.frombuffer(data, array.dtype).reshape(array.shape)

    def _damaged(self, problem: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(self.path, [problem], instead_of(self.folder))
