"""Windlass as a contender: a table in one server process, and the loops of its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import windlass as wl
from bench.ranks import timed
from bench.sparse_load import DIM, LR, Load, Rows, check_step, load

UPDATES: dict[str, Any] = {"sgd": wl.SGD(lr=LR), "adagrad": wl.Adagrad(lr=LR)}
DELAY = 4
FILL_IDS = 50_000

_loads: dict[int, Load] = {}
_room: dict[int, Rows] = {}
_turns: dict[str, int] = {}
"""In a worker, by number of ids: what it pushes, and what it pulls into; by table, how many steps it has made."""


class Ours:
    """One table of a cluster that stays alive while the others are measured."""

    def __init__(self, name: str, cluster: wl.Cluster, num_ids: int) -> None:
        self.name = name
        self._cluster, self._num_ids = cluster, num_ids
        cluster.run(_fill, name, num_ids)

    def prepare(self, elements: int) -> None:
        self._cluster.run(_check, self.name)

    def seconds(self, iterations: int) -> float:
        return max(self._cluster.run(_loop, self.name, self._num_ids, iterations))

    def drop(self) -> None:
        pass

    def close(self) -> None:
        self._cluster.close()


def contenders(names: Sequence[str], num_workers: int, num_ids: int) -> list[Ours]:
    cluster = wl.Cluster(servers=1, workers=num_workers)
    try:
        return [Ours(name, cluster, num_ids) for name in names]
    except BaseException:
        cluster.close()
        raise


# --- in the workers ---------------------------------------------------------------------------------------------------


def _fill(store: wl.Store, key: str, num_ids: int) -> None:
    """Make every row, as a table has them that is in use. All workers make equally many pushes: a bounded delay counts
    them."""
    store.create_table(key, dim=DIM, update=UPDATES[key], consistency=wl.Bounded(DELAY))
    _loads[num_ids] = load(num_ids, store.rank)
    _room[num_ids] = np.empty((max(each.size for each in _loads[num_ids].ids), DIM), np.float32)
    for ids in np.array_split(np.arange(store.rank, num_ids, store.num_workers), 1 + num_ids // FILL_IDS):
        store.push(key, np.ones((ids.size, DIM), np.float32), ids=ids).wait()
    store.barrier()


def _check(store: wl.Store, key: str) -> None:
    if key != "sgd":
        return
    ids = np.array([-1 - store.rank])
    before = store.pull(key, ids=ids).copy()
    store.push(key, np.ones((1, DIM), np.float32), ids=ids)
    check_step(before, store.pull(key, ids=ids))


def _loop(store: wl.Store, key: str, num_ids: int, iterations: int) -> float:
    work, room = _loads[num_ids], _room[num_ids]

    def step() -> None:
        """Push the gradients of one batch, pull the rows of the next."""
        turn = _turns[key] = _turns.get(key, 0) + 1
        now, then = turn % len(work.ids), (turn + 1) % len(work.ids)
        store.push(key, work.grads[now], ids=work.ids[now])
        store.pull(key, ids=work.ids[then], out=room[: work.ids[then].size])

    return timed(step, store.barrier, iterations)
