"""A group in shared memory as a contender: a cluster that stays alive, and the loops its workers run."""

from __future__ import annotations

from typing import Any

import numpy as np

import windlass as wl
from bench.ranks import check_sum, timed

NAMES = {"group": "Windlass, plain tensors", "group-buffer": "Windlass, `group.buffer`"}


class Ours:
    """One way to use a group: plain tensors, or the group's own memory."""

    def __init__(self, name: str, cluster: wl.Cluster) -> None:
        self.name, self._cluster = name, cluster

    def prepare(self, elements: int) -> None:
        self._cluster.run(_prepare, self.name, elements)

    def seconds(self, iterations: int) -> float:
        return max(self._cluster.run(_loop, self.name, iterations))

    def drop(self) -> None:
        self._cluster.run(_drop, self.name)

    def close(self) -> None:
        self._cluster.close()


def contenders(workers: int) -> list[Ours]:
    """Both, in one cluster: two ways to use the same processes."""
    cluster = wl.Cluster(servers=1, workers=workers)
    return [Ours(name, cluster) for name in NAMES]


# --- in the workers ---------------------------------------------------------------------------------------------------

_groups: list[wl.Group] = []
_tensors: dict[str, Any] = {}
"""In a worker: its group, and what each way reduces, kept between runs so that memory is warm."""


def _prepare(store: wl.Store, name: str, elements: int) -> None:
    """Make the tensor, check one sum, and leave zeros behind: what is summed in place would grow without end."""
    if not _groups:
        _groups.append(wl.Group(store))
    [group] = _groups
    tensor = _tensors[name] = group.buffer(elements) if name == "group-buffer" else np.empty(elements, np.float32)
    tensor[:] = store.rank + 1
    group.allreduce(tensor)
    check_sum(tensor, store.num_workers)
    group.barrier()  # in the group's memory, one member's zeros would be seen in another's check
    tensor[:] = 0


def _loop(store: wl.Store, name: str, iterations: int) -> float:
    [group], tensor = _groups, _tensors[name]
    return timed(lambda: group.allreduce(tensor), group.barrier, iterations)


def _drop(store: wl.Store, name: str) -> None:
    _tensors.pop(name, None)
