"""The slots of a table in one thread, without a server: how fast they are, how much memory many rows take, and the
longest that anything kept a slot busy while they came."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from bench.sparse_load import DIM, RAW_IDS, raw_batches
from bench.table import Extra
from bench.targets import Verdict
from windlass.store.batch import Route, expand_rows, merge_rows, route
from windlass.store.reduce import BUILT_IN
from windlass.store.table import Contribution, TableSlot
from windlass.store.table_options import TableOptions
from windlass.store.update import Adagrad
from windlass.types import Array, Heap

NUM_SLOTS = 16
STEP_ROWS = 100_000
SUM = BUILT_IN["sum"]
NO_TARGET = Verdict("", None)


def make_slots() -> list[TableSlot]:
    options = TableOptions(dim=DIM).share(NUM_SLOTS)
    return [TableSlot(options, reducer=SUM, updater=Adagrad(lr=0.05), memory=Heap()) for _ in range(NUM_SLOTS)]


def push(slots: list[TableSlot], way: Route, grads: Array) -> float:
    """Returns how long the slowest slot took, in seconds of the processor."""
    slowest = 0.0
    for slot, lo, hi in zip(slots, way.bounds[:-1], way.bounds[1:], strict=True):
        begun = time.thread_time()
        slot.apply([Contribution(way.ids[lo:hi], grads[lo:hi], True)], divisor=1, hyper=None, now=0.0)
        slowest = max(slowest, time.thread_time() - begun)
    return slowest


def pull(slots: list[TableSlot], way: Route, out: Array) -> None:
    for slot, lo, hi in zip(slots, way.bounds[:-1], way.bounds[1:], strict=True):
        slot.pull(way.ids[lo:hi], out[lo:hi])


def rate(runs: Sequence[tuple[int, Callable[[], object]]], seconds: float) -> tuple[float, float]:
    """Each run is so many ids. Millions of ids a second, the median of all runs over so many seconds: by the clock, and
    by the processor's time, which says more where others are at work."""
    walls, busies = [], []
    for _, run in runs:
        run()
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        for count, run in runs:
            wall, busy = time.perf_counter(), time.thread_time()
            run()
            walls.append(count / (time.perf_counter() - wall) / 1e6)
            busies.append(count / (time.thread_time() - busy) / 1e6)
    return float(np.median(walls)), float(np.median(busies))


def _speed(
    what: str, runs: Sequence[tuple[int, Callable[[], object]]], seconds: float, target: float | None = None
) -> Extra:
    wall, busy = rate(runs, seconds)
    verdict = NO_TARGET if target is None else Verdict(f"≥ {target:g} M ids/s", wall >= target)
    return Extra(what, f"{wall:.1f} M ids/s, {busy:.1f} by processor time", verdict)


def measure_batches(num_ids: int, seconds: float) -> list[Extra]:
    """What the worker does to a batch as it comes from the data, before and after it travels."""
    batches = raw_batches(num_ids)
    ways = [route(batch, NUM_SLOTS) for batch in batches]
    raw = np.random.default_rng(1).standard_normal((RAW_IDS, DIM), np.float32)
    rows = np.ones((max(way.ids.size for way in ways), DIM), np.float32)

    def merged(batch: Array) -> Array:
        return merge_rows(route(batch, NUM_SLOTS), raw, dtype="float32", reducer=SUM)

    routes = [(RAW_IDS, partial(route, each, NUM_SLOTS)) for each in batches]
    merges = [(RAW_IDS, partial(merged, each)) for each in batches]
    expansions = [(RAW_IDS, partial(expand_rows, way, rows)) for way in ways]
    return [
        _speed("in the worker, raw ids: the different ones found and sorted by slot", routes, seconds, 10),
        _speed("the same, and their gradients added up", merges, seconds),
        _speed("rows back for every raw id", expansions, seconds),
    ]


def measure_slots(num_ids: int, seconds: float) -> list[Extra]:
    """Push and pull of the different ids of a batch where the table is: no process, no message."""
    ways = [route(batch, NUM_SLOTS) for batch in raw_batches(num_ids)]
    rows = np.ones((max(num_ids, RAW_IDS), DIM), np.float32)
    slots = make_slots()
    push(slots, route(np.arange(num_ids), NUM_SLOTS), rows)
    pushes = [(way.ids.size, partial(push, slots, way, rows)) for way in ways]
    pulls = [(way.ids.size, partial(pull, slots, way, rows)) for way in ways]
    return [
        _speed("one thread, no server: push, Adagrad", pushes, seconds),
        _speed("one thread, no server: pull", pulls, seconds),
    ]


def measure_size(num_rows: int) -> list[Extra]:
    """Rows that come until there are so many: bytes, and the longest anything took."""
    slots, slowest, worst_share = make_slots(), 0.0, 0.0
    rows_bytes = 2 * 4 * DIM
    grads = np.ones((STEP_ROWS, DIM), np.float32)
    push(make_slots(), route(np.arange(STEP_ROWS), NUM_SLOTS), grads)  # to compile it
    for lo in range(0, num_rows, STEP_ROWS):
        way = route(np.arange(lo, min(num_rows, lo + STEP_ROWS)), NUM_SLOTS)
        slowest = max(slowest, push(slots, way, grads))
        if lo >= num_rows // 8:
            worst_share = max(worst_share, sum(slot.nbytes for slot in slots) / (lo + way.ids.size) / rows_bytes)
    share = sum(slot.nbytes for slot in slots) / num_rows / rows_bytes
    slots[1].dump()  # to compile it
    begun = time.thread_time()
    slots[0].dump()
    dumped = time.thread_time() - begun
    title = f"{num_rows:,} rows of {DIM} with Adagrad"
    return [
        Extra(
            f"{title}, one after the other: the longest push to a slot, growth and all",
            f"{slowest * 1e3:.1f} ms of the processor",
            Verdict("≤ 50 ms", slowest <= 0.05),
        ),
        Extra(
            f"{title}: bytes, beside those of values and state",
            f"{share:.3f}×, at worst on the way {worst_share:.3f}×",
            Verdict("≤ 1.35×", share <= 1.35),
        ),
        Extra(f"{title}: copy of a slot, for a snapshot", f"{dumped * 1e3:.1f} ms of the processor", NO_TARGET),
    ]
