"""The driver's handle on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from windlass.errors import DeletedKey, UsageError
from windlass.worker.assigning import Assigns
from windlass.worker.task import Task

Found = TypeVar("Found")


class DriverStore(Assigns):
    """The driver's handle: it reads the newest round and may write between two; it is no worker. A key that workers
    have deleted and made anew is the new one to it."""

    def pull(self, key: str | Sequence[str], **options: Any) -> Any:
        pull = super().pull
        return self._anew([key] if isinstance(key, str) else key, lambda: pull(key, **options))

    def version(self, key: str) -> int:
        version = super().version
        return self._anew([key], lambda: version(key))

    def _anew(self, keys: Sequence[str], look: Callable[[], Found]) -> Found:
        try:
            return look()
        except DeletedKey:
            for key in keys:
                self._put_down(key)
            return look()

    def push(self, *args: Any, **kwargs: Any) -> Task:
        raise UsageError(
            "the driver is no worker and cannot push; use assign(), or push in the function given to run()"
        )

    def pushpull(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(
            "the driver is no worker and cannot push; use assign(), or push in the function given to run()"
        )

    def barrier(self, timeout: float | None = None) -> None:
        raise UsageError("the driver is no worker and takes part in no barrier")
