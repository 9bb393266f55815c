"""Which backend a group runs over, by what it was given."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from windlass.collectives.backend import Backend
from windlass.errors import UsageError

DEFAULT_TIMEOUT_SECONDS = 300.0


def open_backend(over: Any, timeout: float | None) -> tuple[Backend, float]:
    """The backend, and the seconds that a call may wait. Blocks until every member is here."""
    seconds = DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout
    if hasattr(over, "exchange") and hasattr(over, "num_workers"):
        return _open_shared(over, timeout)
    if (isinstance(over, str) and over == "mpi") or (hasattr(over, "Get_rank") and hasattr(over, "Isend")):
        from windlass.collectives.mpi_group import open_mpi

        return open_mpi(over, seconds), seconds
    if (isinstance(over, str) and over == "torch") or _is_process_group(over):
        from windlass.collectives.torch_group import open_torch

        return open_torch(over, seconds), seconds
    if isinstance(over, Sequence) and not isinstance(over, str):
        from windlass.collectives.devices import DeviceBackend

        return DeviceBackend(over), seconds
    raise UsageError(
        "a Group is made over a worker's wl.Store, a torch.distributed process group or 'torch', an mpi4py "
        f"communicator or 'mpi', or a list of devices; got {type(over).__name__} {over!r:.60}"
    )


def _open_shared(store: Any, timeout: float | None) -> tuple[Backend, float]:
    # Here, because importing numba takes most of a second.
    from windlass.collectives.shared.backend import SharedBackend

    if store.is_driver:
        raise UsageError("the driver's store has no place in a group: make it in the workers, in what run() calls")
    seconds = store.options.timeout if timeout is None else timeout
    backend = SharedBackend(
        store.rank,
        store.num_workers,
        lambda mine: store.exchange(mine, seconds),
        timeout=seconds,
        warn_seconds=store.options.warn_seconds,
        finished=lambda: getattr(store, "finished_ranks", ()),
        loss=lambda: getattr(store, "_loss", None),
    )
    return backend, seconds


def _is_process_group(over: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "distributed") and isinstance(over, torch.distributed.ProcessGroup)
