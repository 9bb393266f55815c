"""What a node that is traced writes down, and where: its record, a file that the launcher has opened for it."""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

import msgspec

from windlass.errors import UsageError
from windlass.trace.spans import OWN, Batch, Category, Header, Span

log = logging.getLogger("windlass")

MAX_SPANS = 1_000_000
"""A node notes down no more than that, and counts what it drops."""

BATCH_SPANS = 128
BATCH_NS = 250_000_000
"""Spans go to the file so many at a time, or after so long: what a killed node had not written yet is lost."""

FRAME = struct.Struct("<I")


class Recorder:
    """The record of one node. Any thread may add to it. Tracing never stops the node: where its record cannot be
    written the log says so, once, and the rest is dropped."""

    def __init__(
        self,
        path: str,
        incarnation: int,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        max_spans: int = MAX_SPANS,
    ) -> None:
        """Raises OSError when the file cannot be opened, or is another's record already."""
        self.now = clock
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(self._file).st_size:
            os.close(self._file)
            raise FileExistsError(f"another store of this process, or of its parent, writes to {path}")
        self._pid = os.getpid()
        self._encode = msgspec.msgpack.Encoder().encode
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._dropped = 0
        self._left = max_spans
        self._is_open = True
        self._is_broken = False
        self._written_ns = clock()
        self._write(Header(incarnation, self._pid, self._written_ns))

    def add(self, span: Span) -> None:
        """Note a span that has ended. Usually a microsecond; now and then a write to the file."""
        with self._lock:
            if self._left <= 0 or not self._is_open:
                self._dropped += 1
                return
            self._left -= 1
            self._spans.append(span)
            if len(self._spans) >= BATCH_SPANS or span.ended_ns - self._written_ns > BATCH_NS:
                self._flush()

    def note(
        self, category: Category, name: str, began_ns: int, args: dict[str, Any], link: tuple[int, ...] = ()
    ) -> None:
        """Note what this thread has done since `began_ns`."""
        self.add(Span(category, name, threading.get_ident(), began_ns, self.now(), args, link))

    def trace(self, name: str, category: str, args: dict[str, Any]) -> Tracing:
        return _Open(self, name, category, args)

    def close(self) -> None:
        """Write what is left. Safe to repeat. In a forked copy of the node it only lets go."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._flush()
                os.close(self._file)

    def _flush(self) -> None:
        """Needs the lock."""
        spans, self._spans = self._spans, []
        dropped, self._dropped = self._dropped, 0
        is_ours = os.getpid() == self._pid  # else this is a forked copy, and the spans are the parent's to write
        if is_ours and not self._is_broken and (spans or dropped):
            self._write(Batch(dropped, spans))
        self._written_ns = self.now()

    def _write(self, what: Header | Batch) -> None:
        body = self._encode(what)
        data = memoryview(FRAME.pack(len(body)) + body)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._is_broken, self._left = True, 0
            log.warning("tracing has stopped here: the record cannot be written: %s", error)


class Tracing(Protocol):
    """What `store.trace` gives. `begin` and `end` are for code whose two ends are in different functions."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


class _Open:
    """A user's span, from `begin` to `end`."""

    __slots__ = ("_args", "_began_ns", "_category", "_name", "_recorder", "_thread")

    def __init__(self, recorder: Recorder, name: str, category: str, args: dict[str, Any]) -> None:
        self._recorder = recorder
        self._name = name
        self._category = category
        self._args = args
        self._began_ns: int | None = None
        self._thread = 0

    def begin(self) -> None:
        self._thread = threading.get_ident()
        self._began_ns = self._recorder.now()

    def end(self) -> None:
        """Harmless where it has not begun, or has ended."""
        began, self._began_ns = self._began_ns, None
        if began is not None:
            ended = self._recorder.now()
            self._recorder.add(Span(self._category, self._name, self._thread, began, ended, self._args))

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()


class _Nothing:
    """What `store.trace` gives where nothing is traced."""

    __slots__ = ()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


NOTHING: Tracing = _Nothing()


def check_category(category: str) -> None:
    """Raise UsageError for a category that is the store's own."""
    if category in OWN:
        raise UsageError(f"trace(category={category!r}) is the store's own category; take {Category.COMPUTE!r}, say")


def open_recorder(path: str, incarnation: int) -> Recorder | None:
    """The recorder of a node that was given this record; None where it was given none, or cannot open it."""
    if not path:
        return None
    try:
        return Recorder(path, incarnation)
    except OSError as error:
        log.warning("this store or server is not traced: its record cannot be opened: %s", error)
        return None
