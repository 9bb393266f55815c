"""Windlass as a contender: clusters that stay alive while the others are measured, and the loops their workers run."""

from __future__ import annotations

from typing import Any

import numpy as np

import windlass as wl
from bench.ranks import check_sum, timed

SERVERS = 2

_arrays: dict[str, tuple[Any, Any]] = {}
"""In a worker: what it pushes from and pulls into, by key. Kept between runs, so that memory is warm."""


class Ours:
    """One way to use a cluster: "plain" arrays with a warm `out=`, or `store.buffer` memory and a view."""

    def __init__(self, name: str, cluster: wl.Cluster, way: str) -> None:
        self.name = name
        self._cluster, self._way = cluster, way
        self._key = ""

    def prepare(self, elements: int) -> None:
        self._key = f"{self.name} {elements}"
        self._cluster.run(_prepare, self._key, elements, self._way)

    def seconds(self, iterations: int) -> float:
        return max(self._cluster.run(_loop, self._key, iterations, self._way))

    def drop(self) -> None:
        self._cluster.run(_drop, self._key)

    def close(self) -> None:
        self._cluster.close()


def contenders(names: list[str], workers: int) -> list[Ours]:
    """Those of "shm", "buffer" and "tcp" that are asked for, in clusters of this many workers. shm and buffer share
    one: they are two ways to use the same processes."""
    ways = {"shm": ("shm", "plain"), "buffer": ("shm", "buffer"), "tcp": ("tcp", "plain")}
    clusters: dict[str, wl.Cluster] = {}
    made = []
    try:
        for name in names:
            transport, way = ways[name]
            if transport not in clusters:
                clusters[transport] = wl.Cluster(servers=SERVERS, workers=workers, transport=transport)
            made.append(Ours(name, clusters[transport], way))
    except BaseException:
        for cluster in clusters.values():
            cluster.close()
        raise
    return made


# --- in the workers ---------------------------------------------------------------------------------------------------


def _prepare(store: wl.Store, key: str, elements: int, way: str) -> None:
    store.create(key, np.zeros(elements, np.float32))
    given = np.full(elements, store.rank + 1, np.float32)
    if way == "buffer":
        for _ in range(2):
            store.buffer(key)[:] = given
        _arrays[key] = (None, None)
    else:
        _arrays[key] = (given, np.full(elements, -1, np.float32))
    for _ in range(3):  # the third finds every page touched: values alternate between two blocks
        result = _step(store, key, way)
    check_sum(result, store.num_workers)


def _step(store: wl.Store, key: str, way: str) -> Any:
    if way == "buffer":
        return store.pushpull(key, store.buffer(key), view=True)
    given, out = _arrays[key]
    return store.pushpull(key, given, out=out)


def _loop(store: wl.Store, key: str, iterations: int, way: str) -> float:
    return timed(lambda: _step(store, key, way), store.barrier, iterations)


def _drop(store: wl.Store, key: str) -> None:
    _arrays.pop(key, None)
    store.barrier()
    store.delete(key)
