"""The driver's handle on a cluster."""

from __future__ import annotations

from functools import partial
from typing import Any

from windlass._wire import messages as m
from windlass.errors import UsageError
from windlass.worker.split import check_range
from windlass.worker.store import Store
from windlass.worker.task import Task


class DriverStore(Store):
    """The driver's handle: it reads the newest round and may write between two; it is no worker."""

    _num_writes = 0

    def assign(self, key: str, value: Any, *, range: tuple[int, int] | None = None) -> None:
        """Set a value between two rounds, the same two on every server; optimizer state stays. Blocks until done."""
        entry = self._entry(key)
        if entry.key.spec.table is not None:
            raise UsageError(f"'{key}' is a table: it is only pushed to, by workers")
        lo, hi = check_range(entry.key, range)
        flat = self._checked(entry, value, lo, hi, is_range=range is not None)
        me, key_id, what = self._client.state.me, entry.key.id, f"assign('{key}')"
        self._num_writes += 1
        write = self._num_writes
        for shard in entry.key.whole:
            self._give(entry, shard, flat, lo, partial(m.Write, write=write), what)
        with self._saver.between:
            self._client.request(
                (entry.key, 0),
                lambda n: m.Commit(request=n, key=key_id, writer=me, write=write),
                what,
                answers=len(entry.key.whole),
            )

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
