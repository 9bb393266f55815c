"""Read libsvm and CSV files, in streams, each worker its own part.

A *stretch* is a few megabytes of whole lines. A worker's part of a plain file is a range of its bytes, so that all
together read it once; a compressed file everyone reads from the beginning, and the stretches are dealt out in turn.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from windlass.apps.logistic.rows import Rows, join
from windlass.errors import UsageError
from windlass.types import Array

STRETCH_BYTES = 4 << 20
FORMATS = ("libsvm", "csv", "tsv")
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SHOWN_BYTES = 40


class BadLine(UsageError):
    """A line that is not what its format says."""

    def __init__(self, path: str, line: int, expected: str, got: str) -> None:
        super().__init__(f"{path}, line {line}: expected {expected}, got {got}")
        self.path, self.line, self.expected, self.got = path, line, expected, got

    def __reduce__(self) -> tuple[type[BadLine], tuple[str, int, str, str]]:
        return type(self), (self.path, self.line, self.expected, self.got)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of examples. `format` is libsvm, csv or tsv; auto goes by the name. In csv and tsv, which may begin with a
    line of names, `label` is the name of the label's column or its number, from 1; the other columns are features 1, 2,
    and so on. Labels are 1 for one class, and -1 or 0 for the other."""

    path: str
    format: str = "auto"
    label: str = "1"
    stretch_bytes: int = STRETCH_BYTES

    @property
    def kind(self) -> str:
        """The format, of those in FORMATS."""
        if self.format != "auto":
            return self.format
        path = Path(self.path)
        suffix = Path(path.stem).suffix if path.suffix in OPENERS else path.suffix
        return suffix[1:] if suffix[1:] in FORMATS[1:] else "libsvm"

    def check(self) -> None:
        """Raise UsageError for what could only fail later."""
        if self.format not in ("auto", *FORMATS):
            raise UsageError(f"expected the format auto, {', '.join(FORMATS)}, got {self.format!r}")
        if not Path(self.path).is_file():
            raise UsageError(f"there is no file '{self.path}'")

    def read(self, rank: int = 0, workers: int = 1) -> Rows:
        """One worker's part of it: UsageError if a line is broken, whoever's part it is in, or if nobody has any."""
        return join(self.stretches(rank, workers))

    def stretches(self, rank: int = 0, workers: int = 1) -> Iterator[Rows]:
        """The same, a few megabytes at a time."""
        self.check()
        try:
            parse = self._csv_parser() if self.kind != "libsvm" else _parse_libsvm
            for offset, text in self._texts(rank, workers):
                rows, fault, at = parse(np.frombuffer(text, np.uint8))
                if fault:
                    raise self._explain(fault, offset + at, text, at)
                yield rows
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UsageError(f"'{self.path}' cannot be read: {error}") from error

    # --- stretches of lines -------------------------------------------------------------------------------------------

    def open(self) -> IO[bytes]:
        opener = OPENERS.get(Path(self.path).suffix, open)
        return cast(IO[bytes], opener(self.path, "rb"))

    def _texts(self, rank: int, workers: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines, and where in the file they begin. Without the line of names."""
        skipped = self._names()[1] if self.kind != "libsvm" else 0
        with self.open() as file:
            if Path(self.path).suffix in OPENERS:
                file.read(skipped)
                for number, found in enumerate(_stretches(file, skipped, None, self.stretch_bytes)):
                    if number % workers == rank:
                        yield found
                return
            size = Path(self.path).stat().st_size - skipped
            lo, hi = (skipped + size * each // workers for each in (rank, rank + 1))
            file.seek(max(0, lo - 1))
            if lo > 0:
                lo += len(file.readline()) - 1  # the line that began before is the part's before this one
            yield from _stretches(file, lo, hi, self.stretch_bytes)

    # --- csv ----------------------------------------------------------------------------------------------------------

    @property
    def _separator(self) -> bytes:
        return b"\t" if self.kind == "tsv" else b","

    def _names(self) -> tuple[list[str], int]:
        """The names of the columns, and how many bytes the line of names has; numbers from 1, and 0, without one."""
        with self.open() as file:
            line = file.readline()
        fields = [each.strip() for each in line.strip(b"\r\n").split(self._separator)]
        if all(_is_number(each) for each in fields):
            return [str(number) for number in range(1, len(fields) + 1)], 0
        return [each.strip(b'"').decode(errors="replace") for each in fields], len(line)

    def _csv_parser(self) -> Callable[[Array], tuple[Rows, int, int]]:
        names, _ = self._names()
        position = names.index(self.label) if self.label in names else _as_position(self.label, len(names))
        if position is None:
            known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise UsageError(f"{self.path}: there is no column '{self.label}' for the label; it has {known}")
        separator, label = self._separator[0], position

        def parse(text: Array) -> tuple[Rows, int, int]:
            from windlass.apps.logistic import parsing

            lines = int(np.count_nonzero(text == ord("\n"))) + 1
            room = _Room(lines, lines * len(names))
            parsing.csv(text, *room.arrays, separator, len(names), label)
            return room.rows()

        return parse

    # --- errors -------------------------------------------------------------------------------------------------------

    def _explain(self, fault: int, offset: int, text: bytes, at: int) -> BadLine:
        """`offset` is where in the file the broken line was found to be broken, `at` where in the text."""
        from windlass.apps.logistic.parsing import Fault

        line = 1 + self._count_lines(offset)
        separator = b" \t\r\n" if self.kind == "libsvm" else self._separator + b"\r\n"
        end = next((here for here in range(at, len(text)) if text[here] in separator), len(text))
        got = repr(text[at : min(end, at + _SHOWN_BYTES)].decode(errors="replace"))
        if fault in (Fault.FIELDS_MISSING, Fault.FIELDS_LEFT):
            begin, close = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
            fields = text[begin : len(text) if close < 0 else close].count(self._separator) + 1
            return BadLine(self.path, line, f"{len(self._names()[0])} fields", str(fields))
        where = "index:value, with " if fault >= Fault.INDEX and self.kind == "libsvm" else ""
        return BadLine(self.path, line, where + EXPECTED[fault], got)

    def _count_lines(self, until: int) -> int:
        """How many lines end in the first `until` bytes. Only errors want to know."""
        count = 0
        with self.open() as file:
            while until > 0 and (found := file.read(min(until, STRETCH_BYTES))):
                count += found.count(b"\n")
                until -= len(found)
        return count


EXPECTED = {
    1: "a label, a number",
    2: "a label of 1, and -1 or 0 for the other class",
    3: "a whole number from 0 to 2**63 - 1 for the index",
    4: "a colon after the index",
    5: "a finite number",
}
"""By Fault."""


def as_source(given: Source | str | Path) -> Source:
    return given if isinstance(given, Source) else Source(str(given))


class _Room:
    """Where a kernel writes."""

    def __init__(self, lines: int, nonzeros: int) -> None:
        self.arrays = (
            np.zeros(lines + 1, np.int64),
            np.empty(nonzeros, np.int64),
            np.empty(nonzeros, np.float32),
            np.empty(lines, np.float32),
            np.zeros(4, np.int64),
        )

    def rows(self) -> tuple[Rows, int, int]:
        starts, ids, values, labels, told = self.arrays
        rows, nonzeros, fault, at = told.tolist()
        # Copies: room is for the most that a text of this size can hold.
        return (
            Rows(starts[: rows + 1].copy(), ids[:nonzeros].copy(), values[:nonzeros].copy(), labels[:rows]),
            fault,
            at,
        )


def _parse_libsvm(text: Array) -> tuple[Rows, int, int]:
    from windlass.apps.logistic import parsing

    room = _Room(int(np.count_nonzero(text == ord("\n"))) + 1, int(np.count_nonzero(text == ord(":"))))
    parsing.libsvm(text, *room.arrays)
    return room.rows()


def _stretches(file: IO[bytes], at: int, end: int | None, most: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines from here on: those that begin before `end`."""
    while (end is None or at < end) and (text := file.read(most if end is None else min(most, end - at))):
        text += file.readline() if not text.endswith(b"\n") else b""
        yield at, text
        at += len(text)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _as_position(label: str, num_columns: int) -> int | None:
    return int(label) - 1 if label.isdecimal() and 1 <= int(label) <= num_columns else None
