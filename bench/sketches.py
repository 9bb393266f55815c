"""How fast workers fill a CountMin sketch and a HyperLogLog, and what merging them costs."""

from __future__ import annotations

import statistics
import time

import windlass as wl
from bench.table import Extra
from bench.targets import Verdict
from windlass.apps.sketch import CountMin, HyperLogLog, zipf_ids

WORKERS = 2
INSERTS = 4_000_000


def measure_sketches(num_ids: int, repeats: int) -> list[Extra]:
    """Two workers insert at once; the slower one's time counts."""
    with wl.Cluster(servers=1, workers=WORKERS) as cluster:
        found = {kind: cluster.run(_fill, kind, num_ids, repeats) for kind in ("CountMin", "HyperLogLog")}
    extras = []
    for kind, parts in found.items():
        turns = [tuple(map(max, zip(*turn, strict=True))) for turn in zip(*parts, strict=True)]
        speed = statistics.median(WORKERS * INSERTS / inserting / 1e6 for inserting, _ in turns)
        merge = statistics.median(merging for _, merging in turns)
        extras.append(
            Extra(
                f"{kind}, {WORKERS} workers: inserts of both",
                f"{speed:.0f} M/s; a merge takes {merge * 1e3:.1f} ms",
                Verdict("≥ 20 M/s", speed >= 20),
            )
        )
    return extras


def _fill(store: wl.Store, kind: str, num_ids: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds to insert, and to push and pull, of each repeat."""
    ids = zipf_ids(INSERTS, num_ids=num_ids, seed=store.rank)
    sketch: CountMin | HyperLogLog = CountMin() if kind == "CountMin" else HyperLogLog()
    sketch.create(store, kind)
    sketch.insert(ids[:1000])
    found = []
    for _ in range(repeats):
        store.barrier()
        began = time.perf_counter()
        sketch.insert(ids)
        inserted = time.perf_counter()
        sketch.push(store, kind)
        sketch.pull(store, kind)
        found.append((inserted - began, time.perf_counter() - inserted))
    return found
