"""How fast the slots of a table are in one thread, without a server: `python -m bench.table_core`.

1,000,000 ids x 16 float32 with Adagrad, batches of 4096 x 26 zipf(1.05) ids of which about 32,000 are different; then
10,000,000 rows: how much memory they take, and the longest that anything kept a slot busy while they came.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from windlass.store.batch import Route, expand_rows, merge_rows, route
from windlass.store.reduce import BUILT_IN
from windlass.store.table import Contribution, TableOptions, TableSlot
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
    """Returns how long the slowest slot took, in seconds."""
    slowest = 0.0
    for slot, lo, hi in zip(slots, way.bounds[:-1], way.bounds[1:], strict=True):
        begun = time.perf_counter()
        slot.apply([Contribution(way.ids[lo:hi], grads[lo:hi], True)], divisor=1, hyper=None, now=0.0)
        slowest = max(slowest, time.perf_counter() - begun)
    return slowest


def pull(slots: list[TableSlot], way: Route, out: Array) -> None:
    for slot, lo, hi in zip(slots, way.bounds[:-1], way.bounds[1:], strict=True):
        slot.pull(way.ids[lo:hi], out[lo:hi])


def rate(what: str, count: int, work: Callable[[], object], seconds: float) -> None:
    """Print the best and the median of runs over so many seconds, by the clock and by the processor's time."""
    work()
    runs, ends = [], time.perf_counter() + seconds
    while time.perf_counter() < ends or len(runs) < 3:
        wall, busy = time.perf_counter(), time.thread_time()
        work()
        runs.append((time.perf_counter() - wall, time.thread_time() - busy))
    walls, busies = sorted(run[0] for run in runs), sorted(run[1] for run in runs)
    best, median = count / walls[0] / 1e6, count / walls[len(walls) // 2] / 1e6
    processor = count / busies[len(busies) // 2] / 1e6
    print(f"{what:<34} {best:7.1f} M ids/s best, {median:7.1f} median; by processor time {processor:7.1f}")


def speeds(seconds: float) -> None:
    batches = zipf_batches(1_000_000)
    ways = [route(batch, NUM_SLOTS) for batch in batches]
    rng = np.random.default_rng(1)
    raw = rng.standard_normal((BATCH, DIM)).astype(np.float32)
    grads = [merge_rows(way, raw, dtype="float32", reducer=SUM) for way in ways]
    out = np.empty((max(way.ids.size for way in ways), DIM), np.float32)
    slots = make_slots()
    everything = route(np.arange(1_000_000), NUM_SLOTS)
    push(slots, everything, np.ones((1_000_000, DIM), np.float32))
    count = sum(way.ids.size for way in ways)
    print(f"{count // NUM_BATCHES} different ids a batch")
    rate("push (Adagrad)", count, lambda: [push(slots, *each) for each in zip(ways, grads, strict=True)], seconds)
    rate("pull", count, lambda: [pull(slots, way, out) for way in ways], seconds)
    raws = NUM_BATCHES * BATCH
    rate("find different ids, sort by slot", raws, lambda: [route(batch, NUM_SLOTS) for batch in batches], seconds)
    rate("... and add up their rows", raws, lambda: [
        merge_rows(route(batch, NUM_SLOTS), raw, dtype="float32", reducer=SUM) for batch in batches
    ], seconds)  # fmt: skip
    rate("rows back to the batch's order", raws, lambda: [expand_rows(way, out) for way in ways], seconds)


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
    print(f"{num_rows:,} rows in {took:.1f} s; the slowest push to a slot took {slowest * 1e3:.1f} ms")
    print(f"memory {held / num_rows / rows_bytes:.3f} x values and state; at worst on the way {worst_share:.3f} x")
    begun = time.perf_counter()
    slots[0].dump()
    print(f"dump of a slot of {slots[0].num_rows:,} rows: {(time.perf_counter() - begun) * 1e3:.1f} ms")


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
