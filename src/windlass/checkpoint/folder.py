"""A directory on any file system that fsspec knows: the only place here that touches files.

On a local disk what was written is on the disk when a call returns, and a file is replaced by a rename. On an object
store a file is there once it is written whole, which comes to the same.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from windlass.errors import ClusterError, UsageError, WindlassError


class Folder:
    """Thread-safe. Blocks as long as the file system does. What goes wrong is a ClusterError that names the file."""

    def __init__(self, fs: Any, path: str, *, is_local: bool) -> None:
        self._fs, self._path, self.is_local = fs, path.rstrip("/") or "/", is_local

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> Folder:
        """A local path, or any URL that fsspec knows. Raises UsageError for what it does not know."""
        import fsspec  # here, because it takes a tenth of a second that only those should pay who save or load
        from fsspec.implementations.local import LocalFileSystem

        try:
            fs, inside = fsspec.core.url_to_fs(os.fspath(path))
        except (ValueError, ImportError, TypeError) as error:
            raise UsageError(f"'{path}' is no place for checkpoints: {error}") from error
        return cls(fs, inside, is_local=isinstance(fs, LocalFileSystem))

    def child(self, name: str) -> Folder:
        return Folder(self._fs, f"{self._path.rstrip('/')}/{name}", is_local=self.is_local)

    def parent(self) -> Folder:
        return Folder(self._fs, self._fs._parent(self._path), is_local=self.is_local)

    @property
    def name(self) -> str:
        return self._path.rpartition("/")[2]

    def __str__(self) -> str:
        return self._path if self.is_local else str(self._fs.unstrip_protocol(self._path))

    # --- looking ----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        self._fs.invalidate_cache()
        with self._told("looked for"):
            return bool(self._fs.isdir(self._path))

    def is_file(self) -> bool:
        with self._told("looked for"):
            return bool(self._fs.isfile(self._path))

    def files(self) -> dict[str, int]:
        """The names of the files in it, and their bytes. None are in a folder that is not there."""
        return {name: info["size"] for name, info in self._list().items() if info["type"] == "file"}

    def folders(self) -> list[str]:
        return sorted(name for name, info in self._list().items() if info["type"] == "directory")

    def _list(self) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()  # others write here too, and some file systems remember what they saw
        with self._told("listed"):
            try:
                listed = self._fs.ls(self._path, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return {}
            named = ((info["name"].rstrip("/"), info) for info in listed)
            return {name.rpartition("/")[2]: info for name, info in named if name != self._path}

    def modified(self, name: str) -> float | None:
        """When the file was written last, by the file system's clock; None where it does not tell."""
        with suppress(Exception):
            return float(self._fs.modified(self._of(name)).timestamp())
        return None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes begin to end of a file; fewer where it is shorter."""
        with self._told("read", name):
            return bytes(self._fs.cat_file(self._of(name), start=begin, end=end))

    # --- changing ---------------------------------------------------------------------------------------------------

    def make(self) -> None:
        with self._told("made"):
            self._fs.makedirs(self._path, exist_ok=True)
            if self.is_local:
                _sync(os.path.dirname(self._path))

    def write(self, name: str, chunks: Iterable[Any]) -> None:
        """Write a file, chunk by chunk. On failure a part of it may be left."""
        with self._told("written", name), self._fs.open(self._of(name), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            if self.is_local:
                file.flush()
                os.fsync(file.fileno())

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, or replace it, all at once: whoever reads sees the old one or the new one."""
        if not self.is_local:
            with self._told("written", name):
                self._fs.pipe_file(self._of(name), data)
            return
        beside = f"{name}.part"
        try:
            self.write(beside, [data])
            with self._told("written", name):
                os.replace(self._of(beside), self._of(name))
                _sync(self._path)
        except BaseException:
            with suppress(WindlassError):
                self.remove(beside)
            raise

    def remove(self, name: str) -> None:
        """Remove a file; harmless if there is none."""
        with self._told("removed", name), suppress(FileNotFoundError):
            self._fs.rm_file(self._of(name))

    def remove_if_empty(self) -> None:
        """Remove the folder, unless something is left in it. On an object store there is nothing to remove."""
        if not self._list():
            with suppress(OSError, NotImplementedError):
                self._fs.rmdir(self._path)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Inside, nobody else on this machine may claim it: UsageError for whoever tries. Only on local disks."""
        if not self.is_local:
            yield
            return
        claim = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = f"another save to '{self}' is under way; let one worker save, or wait for it"
                raise UsageError(problem) from None
            except OSError:
                pass  # a file system without locks, as some networks' are
            try:
                yield
            finally:
                with suppress(OSError):  # by closing alone a child forked meanwhile would keep it
                    fcntl.flock(claim, fcntl.LOCK_UN)
        finally:
            os.close(claim)

    # --- below ------------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    @contextmanager
    def _told(self, verb: str, name: str = "") -> Iterator[None]:
        """Whatever a file system raises becomes a ClusterError. They are many, and not all raise OSErrors."""
        try:
            yield
        except WindlassError:
            raise
        except Exception as error:
            what = f"{self}/{name}" if name else str(self)
            reason = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
            raise ClusterError(f"'{what}' cannot be {verb}: {reason}") from error


def _sync(path: str) -> None:
    """Names are kept by the directory that they stand in: it goes to the disk, too."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
