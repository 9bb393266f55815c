"""The launcher's side of a trace: it opens a record for each node, and in the end makes one file of them.

A record is a file without a name, which a node opens through the launcher's entry in /proc. So nothing is left behind
whoever is killed, and a killed node's record keeps what it had written.
"""

from __future__ import annotations

import gzip
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from windlass.errors import ClusterError, UsageError
from windlass.trace import chrome
from windlass.trace.merge import Index, Record, annotate

log = logging.getLogger("windlass")


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a trace: how many spans are in the file, what each node dropped, and who left no record."""

    path: str
    num_spans: int
    dropped: dict[str, int]
    missing: tuple[str, ...]

    @property
    def text(self) -> str:
        """One sentence for the user."""
        lacks = f"; {', '.join(self.missing)} left nothing" if self.missing else ""
        return f"{self.num_spans} spans are in {self.path}, for https://ui.perfetto.dev{lacks}"


class Collector:
    """The records of one cluster. One thread."""

    def __init__(self, path: str) -> None:
        self.path = check_path(path)
        self.written: Written | None = None
        self._is_done = False
        self._pid = os.getpid()
        self._files: list[tuple[str, IO[bytes]]] = []

    def record(self, name: str) -> str:
        """Open a record for the node of this name; where it will find it."""
        file = tempfile.TemporaryFile(prefix="windlass-trace-")  # noqa: SIM115 - closed when all is written
        self._files.append((name, file))
        return f"/proc/{os.getpid()}/fd/{file.fileno()}"

    def write(self) -> None:
        """Make one file of the records; every node has ended. Safe to repeat. Raises ClusterError when the file cannot
        be written. In a forked copy of the launcher it does nothing."""
        if self._is_done or os.getpid() != self._pid:
            return
        self._is_done = True
        half = f"{self.path}.half"  # whoever finds the file under its name finds all of it
        try:
            opener: Any = gzip.open if self.path.endswith(".gz") else open
            with opener(half, "wb") as out:
                self.written = _write(out, self.path, self._files)
            os.replace(half, self.path)
        except OSError as error:
            raise ClusterError(f"the trace could not be written to '{self.path}': {error}") from error
        finally:
            with suppress(OSError):
                os.unlink(half)
            for _, file in self._files:
                file.close()
        for name, count in self.written.dropped.items():
            log.warning("the trace lacks the last %d spans of %s: more than a record takes", count, name)


def _write(out: IO[bytes], path: str, files: list[tuple[str, IO[bytes]]]) -> Written:
    records = [Record(name, file) for name, file in files]
    missing = tuple(record.name for record in records if record.header is None)
    found = _named([record for record in records if record.header is not None])
    num_spans = 0
    separator = b'{"displayTimeUnit":"ms","traceEvents":[\n'
    for event in _events(found):
        out.write(separator)
        out.write(msgspec.json.encode(event))
        separator = b",\n"
        num_spans += event["ph"] == "X"
    if separator != b",\n":
        out.write(separator)
    dropped = {record.name: record.dropped for record in found if record.dropped}
    other = {"made_by": "windlass", "dropped": dropped, "missing": missing}
    out.write(b'\n],"otherData":' + msgspec.json.encode(other) + b"}\n")
    return Written(path, num_spans, dropped, missing)


def _named(records: list[Record]) -> list[Record]:
    """In the order to be shown: servers, then workers, by rank. A second process in a seat is told from the first."""
    seats: dict[str, int] = {}
    for record in records:
        seat = record.name
        seats[seat] = seats.get(seat, 0) + 1
        if seats[seat] > 1:
            record.name = f"{seat} ({seats[seat]})"
    return sorted(records, key=lambda record: (not record.is_server, record.rank))


def _events(records: list[Record]) -> Iterator[chrome.Json]:
    index = Index()
    origin = min((record.header.opened_ns for record in records if record.header), default=0)
    for record in records:
        if record.header is not None:
            index.names[record.header.incarnation] = record.name
    for record in records:
        if record.is_server:
            index.note(record.name, record.spans())
    for number, record in enumerate(records, start=1):
        assert record.header is not None
        yield from chrome.process(number, record.name, f"pid {record.header.pid}")
        spans = record.spans()
        if not record.is_server:
            annotate(spans, record.header.incarnation, index)
        yield from chrome.events(number, spans, origin, record.is_server)


def check_path(given: object) -> str:
    """Where the trace will be written, whatever the current directory is by then. Raises UsageError when it cannot be,
    now rather than after a long run. Nothing for nothing."""
    if given is None or given == "":
        return ""
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"trace expects the path of a file to write, got {given!r:.60}")
    path = os.path.abspath(os.fsdecode(given))
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise UsageError(f"trace='{given}' cannot be written: there is no directory '{folder}'")
    if os.path.isdir(path):
        raise UsageError(f"trace='{given}' cannot be written: it is a directory; give the name of a file")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"trace='{given}' cannot be written: '{folder}' is not writable")
    return path
