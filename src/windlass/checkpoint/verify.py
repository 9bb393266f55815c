"""Reading every byte of a checkpoint, to find what is missing, cut short or altered, and to say what it held."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from windlass.checkpoint.manifest import SavedArray, SavedFile
from windlass.checkpoint.reader import Reader
from windlass.errors import ClusterError

CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one file, and which slots of which keys it concerns; none if only the file's own header."""

    file: str
    what: str
    slots: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.file} {self.what}: {_say(self.slots)}"


def verify(reader: Reader, on_bytes: Callable[[int], object] = lambda count: None) -> list[Problem]:
    """Every problem that the checkpoint has; none if it is as it was written. Blocks while it reads it all, and calls
    `on_bytes` now and then with the bytes read since. Raises ClusterError where a file cannot be read at all."""
    there = reader.folder.files()
    return [problem for file in reader.manifest.files for problem in _verify(reader, file, there, on_bytes)]


def _verify(
    reader: Reader, file: SavedFile, there: dict[str, int], on_bytes: Callable[[int], object]
) -> Iterator[Problem]:
    size = there.get(file.name)
    if size is None:
        on_bytes(file.nbytes)
        yield Problem(file.name, "is missing", _slots(reader, file))
        return
    if size < file.nbytes:
        on_bytes(file.nbytes)
        what = f"is cut short, to {size:,} of {file.nbytes:,} bytes"
        yield Problem(file.name, what, _slots(reader, file, lambda array: array.begin + array.nbytes > size))
        return
    total = 0
    for begin in range(0, file.nbytes, CHUNK_BYTES):
        chunk = reader.folder.read(file.name, begin, min(file.nbytes, begin + CHUNK_BYTES))
        total = zlib.crc32(chunk, total)
        on_bytes(len(chunk))
    if total != file.crc32:
        yield Problem(file.name, "has been altered", _slots(reader, file, lambda array: _differs(reader, file, array)))
    if size > file.nbytes:
        yield Problem(file.name, f"is too long: {size:,} bytes, {file.nbytes:,} were written", ())


def _differs(reader: Reader, file: SavedFile, array: SavedArray) -> bool:
    try:
        data = reader.folder.read(file.name, array.begin, array.begin + array.nbytes) if array.nbytes else b""
    except ClusterError:
        return True
    return zlib.crc32(data) != array.crc32


def _slots(
    reader: Reader, file: SavedFile, is_hit: Callable[[SavedArray], bool] = lambda array: True
) -> tuple[tuple[str, int], ...]:
    """The slots in this file of which an array is concerned; one without bytes cannot be."""
    return tuple(
        (name, number)
        for name, key in reader.keys.items()
        for number, slot in enumerate(key.entries)
        if slot.file == file.name and any(array.nbytes and is_hit(array) for array in slot.arrays)
    )


def _say(slots: tuple[tuple[str, int], ...]) -> str:
    """'w' slots 0, 3-5; 'b' slot 0"""
    if not slots:
        return "no slot is concerned"
    words = []
    for name, group in groupby(slots, key=lambda slot: slot[0]):
        numbers = [number for _, number in group]
        runs: list[list[int]] = []
        for number in numbers:
            if runs and runs[-1][1] == number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        text = ", ".join(str(lo) if lo == hi else f"{lo}-{hi}" for lo, hi in runs)
        words.append(f"'{name}' slot{'s' if len(numbers) > 1 else ''} {text}")
    return "; ".join(words)
