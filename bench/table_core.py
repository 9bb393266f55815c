"""How fast the slots of a table are in one thread, without a server: `python -m bench.table_core`.

1,000,000 ids x 16 float32 with Adagrad, batches of 4096 x 26 zipf(1.05) ids of which about 32,000 are different; then
10,000,000 rows: how much memory they take, and the longest that anything kept a slot busy while they came.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from windlass.store.batch import Route, expand_rows, merge_rows, route
from windlass.store.reduce import BUILT_IN
from windlass.store.table import Contribution, TableSlot
from windlass.store.table_options import TableOptions
from windlass.store.update import Adagrad
from windlass.types import Array, Heap

DIM, NUM_SLOTS, BATCH, NUM_BATCHES = 16, 16, 4096 * 26, 8
SUM = BUILT_IN["sum"]


def zipf_batches(num_ids: int, exponent: float = 1.05) -> list[Array]:
    rng = np.random.default_rng(0)
    heights = np.cumsum(1 / np.arange(1, num_ids + 1) ** exponent)
    names = rng.permutation(num_ids)
    return [names[np.searchsorted(heights / heights[-1], rng.random(BATCH))] for _ in range(NUM_BATCHES)]


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


def rate(what: str, runs: Sequence[tuple[int, Callable[[], object]]], seconds: float) -> None:
    """Each run is so many ids. Print the best and the median of all runs over so many seconds, by the clock, and the
    median by the processor's time, which says more where others are at work."""
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
    best, median, processor = max(walls), float(np.median(walls)), float(np.median(busies))
    print(f"{what:<34} {best:7.1f} M ids/s best, {median:7.1f} median; by processor time {processor:7.1f}")


def speeds(seconds: float) -> None:
    batches = zipf_batches(1_000_000)
    ways = [route(batch, NUM_SLOTS) for batch in batches]
    raw = np.random.default_rng(1).standard_normal((BATCH, DIM)).astype(np.float32)
    grads = [merge_rows(way, raw, dtype="float32", reducer=SUM) for way in ways]
    out = np.empty((max(way.ids.size for way in ways), DIM), np.float32)
    slots = make_slots()
    push(slots, route(np.arange(1_000_000), NUM_SLOTS), np.ones((1_000_000, DIM), np.float32))
    print(f"{sum(way.ids.size for way in ways) // NUM_BATCHES} different ids a batch")

    def merged(batch: Array) -> Array:
        return merge_rows(route(batch, NUM_SLOTS), raw, dtype="float32", reducer=SUM)

    pairs = list(zip(ways, grads, strict=True))
    rate("push (Adagrad)", [(way.ids.size, partial(push, slots, way, grad)) for way, grad in pairs], seconds)
    rate("pull", [(way.ids.size, partial(pull, slots, way, out)) for way in ways], seconds)
    rate("find different ids, sort by slot", [(BATCH, partial(route, batch, NUM_SLOTS)) for batch in batches], seconds)
    rate("... and add up their rows", [(BATCH, partial(merged, batch)) for batch in batches], seconds)
    rate("rows back to the batch's order", [(BATCH, partial(expand_rows, way, out)) for way in ways], seconds)


def size(num_rows: int) -> None:
    slots, slowest, worst_share = make_slots(), 0.0, 0.0
    rows_bytes = 2 * 4 * DIM
    grads = np.ones((100_000, DIM), np.float32)
    begun = time.perf_counter()
    for lo in range(0, num_rows, 100_000):
        way = route(np.arange(lo, min(num_rows, lo + 100_000)), NUM_SLOTS)
        slowest = max(slowest, push(slots, way, grads))
        if lo >= num_rows // 8:
            worst_share = max(worst_share, sum(slot.nbytes for slot in slots) / (lo + way.ids.size) / rows_bytes)
    took, held = time.perf_counter() - begun, sum(slot.nbytes for slot in slots)
    print(f"{num_rows:,} rows in {took:.1f} s; the slowest push to a slot took {slowest * 1e3:.1f} ms of the processor")
    print(f"memory {held / num_rows / rows_bytes:.3f} x values and state; at worst on the way {worst_share:.3f} x")
    slots[1].dump()  # to compile it
    begun = time.thread_time()
    slots[0].dump()
    print(f"dump of a slot of {slots[0].num_rows:,} rows: {(time.thread_time() - begun) * 1e3:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each speed")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large table; 0: none")
    arguments = parser.parse_args()
    speeds(arguments.seconds)
    if arguments.rows:
        size(arguments.rows)


if __name__ == "__main__":
    main()
