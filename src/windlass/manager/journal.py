"""The manager's journal: an append-only file of records, each on disk before anything is said that follows from it.

    a record:  length (4 bytes, little-endian)   crc32 of the body (4 bytes)   body (msgpack)

A manager that dies while it writes leaves a torn record at the end; whoever opens the journal next cuts it off, and
nothing that it would have said has been said. The file is locked for as long as it is open: there is one manager.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import msgspec

from windlass.errors import ClusterError, UsageError
from windlass.manager.records import AnyRecord, Image, Term

MAGIC = b"windlass journal 1\n"
COMPACT_BYTES = 1 << 20
"""Above this size a journal is written anew when it is opened, as short as it can be."""

_HEAD = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)


class Journal:
    """Opens the file, or makes it, and takes its lock; `image` is what was in it. Its term is one higher than that of
    the manager before, and on disk. For a new cluster (`is_new`) nothing else of the old one counts. Raises
    ClusterError when another manager holds it, UsageError for a path that is no journal's. Not thread-safe."""

    def __init__(self, path: str, *, is_new: bool = False) -> None:
        self.path = path
        self._fd = _open_locked(path)
        try:
            data = _read_all(self._fd)
            if data and not (data.startswith(MAGIC) or MAGIC.startswith(data)):
                raise UsageError(f"{path} is not a manager's journal; name a new file, or one that a manager has made")
            records = list(whole_records(data))
            self.image = Image(record for record, _ in records)
            self._end = records[-1][1] if records else 0
            if is_new:
                self.image = Image([Term(term=self.image.term)])
                self._end = 0
            os.ftruncate(self._fd, self._end)
            if not self._end:
                self._write(MAGIC)
            elif self._end > COMPACT_BYTES:
                self._compact()
            self.image.term += 1
            self.append(Term(term=self.image.term))
        except BaseException:
            self.close()
            raise

    def append(self, record: AnyRecord) -> None:
        """Blocks until the record is on disk. Raises OSError when it cannot be: the caller must not go on then."""
        self._write(_framed(record))
        os.fdatasync(self._fd)

    def _write(self, data: bytes) -> None:
        while data:
            written = os.pwrite(self._fd, data, self._end)
            self._end += written
            data = data[written:]

    def _compact(self) -> None:
        """Another file takes this one's place, locked before it has the name. One without a name stays as it is."""
        if os.path.realpath(self.path) != os.path.abspath(self.path) or os.fstat(self._fd).st_nlink != 1:
            return
        fresh = f"{self.path}.new"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(self._fd)
        self._fd, self._end = fd, 0
        self._write(MAGIC + b"".join(map(_framed, self.image.records())))
        os.fsync(fd)
        os.replace(fresh, self.path)
        directory = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Let go of the lock. Safe to repeat."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def whole_records(data: bytes) -> Iterator[tuple[AnyRecord, int]]:
    """The records up to the first that is torn, each with where it ends."""
    at = len(MAGIC)
    while data.startswith(MAGIC) and at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        if end > len(data) or zlib.crc32(body) != crc or not length:
            return
        yield _decoder.decode(body), end
        at = end


def _framed(record: AnyRecord) -> bytes:
    body = _encoder.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _open_locked(path: str) -> int:
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"the manager's journal {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise ClusterError(
                f"another manager holds the journal {path}; there is one for a cluster: stop that one first"
            ) from None
        with suppress(FileNotFoundError):  # another file may have taken its place before we had the lock
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)


def _read_all(fd: int) -> bytes:
    parts = []
    at = 0
    while part := os.pread(fd, 1 << 20, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
