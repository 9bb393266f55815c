"""One file of a checkpoint: safetensors, written in one go and never held in memory as a whole.

The layout is that of the safetensors format: eight bytes that say how long the header is, the header as JSON, the
arrays. Wider elements come first, so that every array is aligned; any safetensors reader can open the file. The value
of a bfloat16 key is declared as such, though numpy has to hold it as uint16.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from windlass.checkpoint.checksums import Running
from windlass.checkpoint.folder import Folder
from windlass.checkpoint.manifest import SavedArray, SavedFile, SavedSlot, SlotEntry
from windlass.errors import UsageError
from windlass.types import Array, KeySpec

CHUNK_BYTES = 1 << 20
"""What is checksummed and then written: small enough to be still in the processor's cache the second time."""

_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One slot of a key, on its way into a shard. Its arrays must not change until it is written."""

    spec: KeySpec
    number: int
    slot: SavedSlot

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.slot.arrays.values())

    def check(self) -> None:
        """Raise UsageError for what could not be read back as it is."""
        where = f"slot {self.number} of '{self.spec.name}'"
        for name, array in self.slot.arrays.items():
            if not name or "/" in name:
                raise UsageError(f"{where}: an array's name is a text without '/', got {name!r:.60}")
            if array.dtype.name not in _CODES or not array.dtype.isnative:
                raise UsageError(f"{where}: '{name}' expects a dtype among {', '.join(_CODES)}, got {array.dtype}")
        for what, plain in {
            "meta": self.slot.meta,
            "reduce": self.spec.reduce.config,
            "update": self.spec.update.config,
        }.items():
            if not _is_kept(plain):
                raise UsageError(f"{where}: {what} expects what JSON can hold, got {plain!r:.80}")


def _is_kept(value: Any) -> bool:
    try:
        return bool(msgspec.json.decode(msgspec.json.encode(value)) == _plain(value))
    except (TypeError, msgspec.MsgspecError, UnicodeEncodeError):
        return False


def _plain(value: Any) -> Any:
    """With lists in the place of tuples, as they come back; they mean the same to us."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class _Laid:
    """An array and its place, counted from the end of the header."""

    part: int
    name: str
    tensor: str
    array: Array
    begin: int


def write_shard(folder: Folder, name: str, parts: Sequence[Part]) -> tuple[SavedFile, list[SlotEntry]]:
    """Write these slots into one file. Blocks; when it returns the file is on the disk. The entries are in the order of
    the parts. On failure a piece of the file may be left."""
    laid = _lay(parts)
    header = _header(parts, laid)
    sums = [0] * len(laid)
    total = Running()
    folder.write(name, _chunks(header, laid, sums, total))
    arrays: list[list[SavedArray]] = [[] for _ in parts]
    for crc, one in zip(sums, laid, strict=True):
        arrays[one.part].append(
            SavedArray(
                name=one.name,
                dtype=one.array.dtype.name,
                shape=one.array.shape,
                begin=len(header) + one.begin,
                crc32=crc,
            )
        )
    entries = []
    for part, found in zip(parts, arrays, strict=True):
        order = list(part.slot.arrays)
        found.sort(key=lambda each, order=order: order.index(each.name))  # type: ignore[misc]
        entries.append(SlotEntry(file=name, arrays=tuple(found), meta=part.slot.meta))
    return SavedFile(name=name, nbytes=total.nbytes, crc32=total.crc), entries


def _lay(parts: Sequence[Part]) -> list[_Laid]:
    every = [(number, name, array) for number, part in enumerate(parts) for name, array in part.slot.arrays.items()]
    every.sort(key=lambda one: -one[2].dtype.itemsize)
    laid: list[_Laid] = []
    begin = 0
    for number, name, array in every:
        tensor = f"{parts[number].spec.name}/{parts[number].number:05d}/{name}"
        laid.append(_Laid(number, name, tensor, array, begin))
        begin += array.nbytes
    return laid


def _header(parts: Sequence[Part], laid: Sequence[_Laid]) -> bytes:
    described: dict[str, Any] = {"__metadata__": {"format": "windlass"}}
    for one in laid:
        is_bfloat16 = one.name == "value" and parts[one.part].spec.dtype == "bfloat16"
        described[one.tensor] = {
            "dtype": "BF16" if is_bfloat16 and one.array.dtype.name == "uint16" else _CODES[one.array.dtype.name],
            "shape": one.array.shape,
            "data_offsets": (one.begin, one.begin + one.array.nbytes),
        }
    text = msgspec.json.encode(described)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(header: bytes, laid: Sequence[_Laid], sums: list[int], total: Running) -> Iterator[Any]:
    """What the file is made of, in order; each array's checksum is in `sums` and the file's in `total` at the end."""
    total.add(header)
    yield header
    for number, one in enumerate(laid):
        flat = np.ascontiguousarray(one.array).reshape(-1).view(np.uint8).data
        for begin in range(0, len(flat), CHUNK_BYTES):
            chunk = flat[begin : begin + CHUNK_BYTES]
            sums[number] = zlib.crc32(chunk, sums[number])
            yield chunk
        total.join(flat, sums[number])
