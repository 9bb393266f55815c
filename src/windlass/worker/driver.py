"""The driver's handle on a cluster."""

from __future__ import annotations

from typing import Any

from windlass.errors import UsageError
from windlass.worker.assigning import Assigns
from windlass.worker.task import Task


class DriverStore(Assigns):
    """The driver's handle: it reads the newest round and may write between two; it is no worker."""

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
