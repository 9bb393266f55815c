"""Which store a model trains over, where its user gave none."""

from __future__ import annotations

from windlass.engines.cluster import connect
from windlass.errors import UsageError
from windlass.worker.store import Store


def store_for(store: Store | None, call: str) -> Store:
    """The store given; else that of the cluster which this process was started in. UsageError, which says how to write
    `call`, if there is neither."""
    if store is None:
        try:
            return connect()
        except UsageError as error:
            raise UsageError(
                f"{call.format('')} has no store, and this process was not started by `windlass run`: pass it one, "
                f"{call.format(', store')}. The function given to cluster.run() gets it as its first argument; "
                "wl.Store() makes one for this process alone"
            ) from error
    if not isinstance(store, Store):
        raise UsageError(f"{call.format(', store')} expects a store, got {type(store).__name__}")
    return store
