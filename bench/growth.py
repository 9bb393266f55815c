"""A table that grows to many rows in a server process, while another worker pulls from it: the longest pull."""

from __future__ import annotations

import statistics
import time

import numpy as np

import windlass as wl
from bench.sparse_load import DIM
from bench.table import Extra
from bench.targets import Verdict

STEP_ROWS = 32_768
PULLED_IDS = 64
TABLE, OVER = "grown", "over"


def measure_growth(num_rows: int) -> list[Extra]:
    with wl.Cluster(servers=1, workers=2) as cluster:
        (took, nbytes), (usual, longest) = cluster.run(_grow, num_rows)
    share = nbytes / num_rows / (2 * 4 * DIM)
    title = f"a server's table that grows to {num_rows:,} rows of {DIM} with Adagrad, in {took:.1f} s"
    return [
        Extra(
            f"{title}: the longest that a pull of another worker takes",
            f"{longest * 1e3:.1f} ms, usually {usual * 1e3:.1f} ms",
            Verdict("≤ 50 ms", longest <= 0.05),
        ),
        Extra("the same table: bytes, beside those of values and state", f"{share:.3f}×", _at_most(share)),
    ]


def _at_most(share: float) -> Verdict:
    return Verdict("≤ 1.35×", share <= 1.35)


def _grow(store: wl.Store, num_rows: int) -> tuple[float, float]:
    """The first worker pushes rows that are new, all the time; the second pulls some that are there. Returns how long
    it took and the table's bytes, or the median and the longest time of a pull."""
    store.create_table(TABLE, dim=DIM, update=wl.Adagrad(lr=0.05), consistency=wl.Eventual())
    store.create(OVER, np.zeros(1, np.int64), update="add", consistency=wl.Eventual())
    if store.rank == 0:
        store.push(TABLE, np.ones((STEP_ROWS, DIM), np.float32), ids=np.arange(STEP_ROWS)).wait()
    store.pull(TABLE, ids=np.arange(PULLED_IDS))
    store.barrier()
    if store.rank == 1:
        return _watch(store)
    began = time.perf_counter()
    grads = np.ones((STEP_ROWS, DIM), np.float32)
    before = None
    for lo in range(STEP_ROWS, num_rows, STEP_ROWS):
        ids = np.arange(lo, min(num_rows, lo + STEP_ROWS))
        task = store.push(TABLE, grads[: ids.size], ids=ids)
        if before is not None:
            before.wait()
        before = task
    if before is not None:
        before.wait()
    took = time.perf_counter() - began
    store.push(OVER, np.ones(1, np.int64)).wait()
    return took, float(store.table(TABLE).nbytes)


def _watch(store: wl.Store) -> tuple[float, float]:
    rng, found = np.random.default_rng(0), []
    while store.pull(OVER)[0] == 0:
        ids = rng.integers(0, STEP_ROWS, PULLED_IDS)
        began = time.perf_counter()
        store.pull(TABLE, ids=ids)
        found.append(time.perf_counter() - began)
    return statistics.median(found), max(found)
