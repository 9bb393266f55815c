"""What a checkpoint says about itself: `manifest.json`.

A checkpoint is a directory of *shards*, safetensors files that each hold some slots, and a manifest that is written
last. The manifest is what makes a checkpoint valid: a shard that no manifest names counts for nothing. It is sealed:
its first field is a checksum of all the rest.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import numpy as np

from windlass.errors import DamagedCheckpoint, UsageError
from windlass.types import STORAGE, Array, KeySpec

FORMAT = 1
MANIFEST = "manifest.json"
UNFINISHED = "unfinished"
"""A file of this name lies in a checkpoint's directory while a save adds files to it or removes some. If it is still
there at the next save, that one was killed, and files that no manifest names are leftovers."""

SHARD_NAME = re.compile(r"[0-9a-f]{8}-[0-9]{5}\.safetensors")


@dataclass(slots=True)
class SavedSlot:
    """What one slot is made of: its value and its updater's state, and what else it must know to go on."""

    arrays: dict[str, Array]
    meta: dict[str, Any]


class AfterRound(msgspec.Struct, frozen=True, tag="sequential"):
    """What was saved of a sequential key: its state after exactly this many rounds."""

    round: int

    def __str__(self) -> str:
        return f"the state after round {self.round}"


class WhenAsked(msgspec.Struct, frozen=True, tag="arrival"):
    """What was saved of a bounded or eventual key: a state that existed, and that contains every push acknowledged
    before the save was asked for. `version` is how many updates the key had taken by then, at least."""

    version: int

    def __str__(self) -> str:
        return f"a state that existed, with every push acknowledged before the save (version {self.version} or later)"


Moment = AfterRound | WhenAsked


class SavedArray(msgspec.Struct, frozen=True, kw_only=True):
    """One array of a slot: where it lies in its file, and the checksum of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    crc32: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class SlotEntry(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    arrays: tuple[SavedArray, ...]
    meta: dict[str, Any]


class SavedKey(msgspec.Struct, frozen=True, kw_only=True):
    spec: KeySpec
    moment: Moment
    slots: tuple[SlotEntry, ...]
    residuals: SlotEntry | None = None
    """What the filters of each worker had kept back: arrays by rank."""

    @property
    def entries(self) -> tuple[SlotEntry, ...]:
        """The slots, and after them the residuals."""
        return self.slots if self.residuals is None else (*self.slots, self.residuals)


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    nbytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`sequence` orders the checkpoints of one directory by when they were saved, whatever the clocks said."""

    format: int
    windlass: str
    created: datetime
    sequence: int
    step: int
    files: tuple[SavedFile, ...]
    keys: tuple[SavedKey, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


class _Sealed(msgspec.Struct):
    blake2b: str
    manifest: msgspec.Raw


class _Format(msgspec.Struct):
    format: int


_sealed_decoder = msgspec.json.Decoder(_Sealed)
_format_decoder = msgspec.json.Decoder(_Format)
_manifest_decoder = msgspec.json.Decoder(Manifest)


def seal(manifest: Manifest) -> bytes:
    """The manifest as it lies in its file."""
    return _sealed(msgspec.json.encode(manifest))


def _sealed(body: bytes) -> bytes:
    checksum = hashlib.blake2b(body, digest_size=16).hexdigest()
    return b'{"blake2b":"%b","manifest":%b}\n' % (checksum.encode(), body)


def unseal(data: bytes, path: str) -> Manifest:
    """What `seal` made into bytes. Raises DamagedCheckpoint for anything else, and UsageError for a later format."""
    try:
        body = bytes(_sealed_decoder.decode(data).manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedCheckpoint(path, [f"{MANIFEST} is a broken or foreign file: {error}"]) from None
    if data != _sealed(body):
        raise DamagedCheckpoint(path, [f"{MANIFEST} has been altered: it does not match its own checksum"])
    try:
        found = _format_decoder.decode(body).format
        if found != FORMAT:
            raise UsageError(f"'{path}' has format {found}, this Windlass reads format {FORMAT}; install a later one")
        manifest = _manifest_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedCheckpoint(path, [f"{MANIFEST} is not one of a checkpoint: {error}"]) from None
    if problem := _problem(manifest):
        raise DamagedCheckpoint(path, [f"{MANIFEST} {problem}"])
    return manifest


def _problem(manifest: Manifest) -> str:
    """Why a manifest cannot be relied on, though it is whole; it may have been made by anybody."""
    files = {file.name: file.nbytes for file in manifest.files}
    dtypes = {dtype.name for dtype in STORAGE.values()}
    for name in files:
        if not SHARD_NAME.fullmatch(name):
            return f"names the file '{name:.80}', which is no name of a shard"
    for key in manifest.keys:
        if len(key.slots) != key.spec.num_slots:
            return f"has {len(key.slots)} slots of '{key.spec.name}', which is declared with {key.spec.num_slots}"
        for number, slot in enumerate(key.entries):
            where = f"slot {number} of '{key.spec.name}'"
            if not _are_leases(slot.meta.get("leases", {})):
                return f"has leases of {where} that are none"
            if slot.file not in files:
                return f"has {where} in '{slot.file:.80}', which is not among its files"
            for array in slot.arrays:
                if array.dtype not in dtypes or min((array.begin, *array.shape)) < 0:
                    return f"describes '{array.name}' of {where} as {array.dtype:.20} {array.shape} at {array.begin}"
                if array.begin + array.nbytes > files[slot.file]:
                    return f"has '{array.name}' of {where} beyond the end of '{slot.file}'"
    return ""


def _are_leases(told: object) -> bool:
    """Whether it tells, of each workload, below which number all batches are counted, and which above it."""
    try:
        counted = msgspec.convert(told, dict[str, tuple[int, list[int]]])
    except msgspec.ValidationError:
        return False
    return all(floor >= 0 and min(above, default=0) >= 0 for floor, above in counted.values())
