"""A file system in memory that dies, or fails once, at the n-th thing that it is told to change."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem


class Fault:
    """`at` counts changes; what it names fails, and everything after it if the process `dies` of it."""

    def __init__(self, at: int, *, dies: bool) -> None:
        self.at, self.dies, self.count, self.has_fired = at, dies, 0, False

    def change(self) -> None:
        self.count += 1
        if self.count == self.at or (self.has_fired and self.dies):
            self.has_fired = True
            raise OSError("the file system fails here, as the test wants it")


class DyingFile(MemoryFile):
    def write(self, data: Any) -> int:
        half = bytes(data)[: len(data) // 2]
        try:
            DyingFileSystem.change()
        except OSError:
            super().write(half)
            raise
        return super().write(data)


class DyingFileSystem(MemoryFileSystem):
    protocol = "dying"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault: ClassVar[Fault | None] = None

    @classmethod
    def change(cls) -> None:
        if cls.fault is not None:
            cls.fault.change()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("dying://") if isinstance(path, str) else path)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "wb":
            return super()._open(path, mode, **options)
        self.change()
        file = DyingFile(self, self._strip_protocol(path), options.get("data"))
        file.commit()
        return file

    def _rm(self, path: str) -> None:
        self.change()
        super()._rm(path)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        self.change()
        super().mkdir(path, create_parents, **options)


def fresh() -> str:
    """The path of an empty, healthy one."""
    fsspec.register_implementation("dying", DyingFileSystem, clobber=True)
    DyingFileSystem.store.clear()
    DyingFileSystem.pseudo_dirs[:] = [""]
    DyingFileSystem.fault = None
    return "dying://root"
