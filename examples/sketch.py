"""Sketches: what a stream of ids holds, in a few kilobytes, counted by many workers; and shortest paths by min.

    python examples/sketch.py                      2 worker processes, and the embedded store
    python examples/sketch.py --inserts 50000000   more of the stream

Each worker draws ids of its own, fills a CountMin sketch and a HyperLogLog of them, and pushes the sketches: the store
adds up counts, and takes the maximum of registers. A dense key with a count for every id says how far off they are.
Then the workers find the shortest paths of a graph whose edges they share, merged by min.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import windlass as wl
from windlass.apps.sketch import CountMin, HyperLogLog, dijkstra, random_edges, shortest_paths, zipf_ids


@dataclass(frozen=True)
class Plan:
    inserts: int
    num_ids: int
    epsilon: float
    delta: float
    precision: int
    num_nodes: int


@dataclass(frozen=True)
class Speed:
    """What a worker needed to insert its ids, and to merge by push and pull."""

    insert_seconds: float
    merge_seconds: float


Parts = dict[str, list[dict[str, Speed]]]
"""By place, what each worker needed for each sketch."""

Places = dict[str, Callable[..., list]]
"""Where it runs: calls a function in every worker, and has the results."""


def main() -> None:
    options = parse()
    plan = Plan(**{name: getattr(options, name) for name in Plan.__dataclass_fields__})
    workers = f"{options.workers} workers"
    try:
        with wl.Store() as embedded, wl.Cluster(workers=options.workers, engine=options.engine) as cluster:
            run: Places = {"embedded": lambda work, plan: [work(embedded, plan)], workers: cluster.run}
            parts = {name: each(stream, plan) for name, each in run.items()}
            stores = {"embedded": embedded, workers: cluster.store()}
            kept = [count(stores, parts, plan), distinct(stores, parts, plan), paths(run, plan)]
    except wl.UsageError as error:
        sys.exit(f"sketch.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if not all(kept):
        sys.exit("sketch.py: a bound does not hold")


# --- CountMin and HyperLogLog -----------------------------------------------------------------------------------------


def stream(store: wl.Store, plan: Plan) -> dict[str, Speed]:
    """One worker's part: draw ids, count them exactly under the key "truth", insert them into sketches and push."""
    ids = zipf_ids(plan.inserts // store.num_workers, num_ids=plan.num_ids, seed=(store.rank, store.num_workers))
    store.create("truth", np.zeros(plan.num_ids, np.int64))
    store.push("truth", np.bincount(ids, minlength=plan.num_ids)).wait()
    return {key: fill(store, key, ids, plan) for key in ("count", "distinct")}


def fill(store: wl.Store, key: str, ids: np.ndarray, plan: Plan) -> Speed:
    make(key, plan).insert(ids[:1000])  # compiles
    sketch = make(key, plan)
    sketch.create(store, key)
    store.barrier()
    began = time.perf_counter()
    sketch.insert(ids)
    inserted = time.perf_counter()
    sketch.push(store, key)
    sketch.pull(store, key)
    return Speed(inserted - began, time.perf_counter() - inserted)


def make(key: str, plan: Plan) -> CountMin | HyperLogLog:
    if key == "count":
        return CountMin(epsilon=plan.epsilon, delta=plan.delta)
    return HyperLogLog(precision=plan.precision)


def count(stores: dict[str, wl.Store], parts: Parts, plan: Plan) -> bool:
    empty = CountMin(epsilon=plan.epsilon, delta=plan.delta)
    wanted = f"epsilon {plan.epsilon:g}, delta {plan.delta:g}"
    print(f"CountMin, {empty.depth} x {empty.width} counts, reduce='sum'; {wanted}")
    row("", "M inserts/s", "merge ms", "largest error", "allowed", "ids beyond", "allowed")
    is_kept = True
    for name, store in stores.items():
        truth, sketch = store.pull("truth"), empty.pull(store, "count")
        above = sketch.estimate(np.arange(plan.num_ids)) - truth
        beyond = float((above > sketch.error).mean())
        is_kept &= above.min() >= 0 and beyond <= plan.delta
        errors = f"{above.max():,}", f"{sketch.error:,.0f}", f"{beyond:.3%}", f"{plan.delta:.3%}"
        row(name, *speeds(parts[name], "count", plan), *errors)
    print()
    return is_kept


def distinct(stores: dict[str, wl.Store], parts: Parts, plan: Plan) -> bool:
    empty = HyperLogLog(precision=plan.precision)
    print(f"HyperLogLog, {empty.registers.size} registers, reduce='max'")
    row("", "M inserts/s", "merge ms", "different ids", "estimate", "error", "standard error")
    is_kept = True
    for name, store in stores.items():
        truth = int((store.pull("truth") > 0).sum())
        found = empty.pull(store, "distinct").estimate()
        is_kept &= abs(found / truth - 1) < 4 * empty.standard_error
        errors = f"{truth:,}", f"{found:,.0f}", f"{found / truth - 1:+.2%}", f"{empty.standard_error:.2%}"
        row(name, *speeds(parts[name], "distinct", plan), *errors)
    print()
    return is_kept


def speeds(parts: list[dict[str, Speed]], key: str, plan: Plan) -> tuple[str, str]:
    slowest = max(part[key].insert_seconds for part in parts)
    return f"{plan.inserts / slowest / 1e6:.0f}", f"{max(part[key].merge_seconds for part in parts) * 1e3:.1f}"


# --- shortest paths ---------------------------------------------------------------------------------------------------


def walk(store: wl.Store, plan: Plan) -> tuple[np.ndarray, int, float]:
    edges = random_edges(plan.num_nodes, 8 * plan.num_nodes).part(store.rank, store.num_workers)
    shortest_paths(store, random_edges(10, 20), 0, key="compile")
    store.barrier()
    began = time.perf_counter()
    found = shortest_paths(store, edges, 0)
    return found.distances, found.rounds, time.perf_counter() - began


def paths(run: Places, plan: Plan) -> bool:
    edges = random_edges(plan.num_nodes, 8 * plan.num_nodes)
    print(f"Shortest paths, {plan.num_nodes:,} nodes and {edges.lengths.size:,} edges, reduce='min'")
    row("", "rounds", "seconds", "reached", "farthest", "as Dijkstra's")
    began = time.perf_counter()
    expected = dijkstra(edges, 0)
    took = time.perf_counter() - began
    reached = expected[np.isfinite(expected)]
    row("Dijkstra", "", f"{took:.2f}", f"{reached.size:,}", f"{reached.max():.4f}", "")
    is_kept = True
    for name, each in run.items():
        distances, rounds, seconds = max(each(walk, plan), key=lambda part: part[2])
        is_same = bool(np.array_equal(distances, expected))
        is_kept &= is_same
        reached = distances[np.isfinite(distances)]
        shown = (f"{reached.size:,}", f"{reached.max():.4f}", "all" if is_same else "not all")
        row(name, str(rounds), f"{seconds:.2f}", *shown)
    return is_kept


def row(name: str, *cells: str) -> None:
    print(f"{name:<12}" + "".join(f"{cell:>15}" for cell in cells), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inserts", type=int, default=10_000_000, help="of all workers together")
    parser.add_argument("--num-ids", type=int, default=1_000_000, help="how many different ids can come")
    parser.add_argument("--epsilon", type=float, default=1e-4, help="of CountMin")
    parser.add_argument("--delta", type=float, default=0.01, help="of CountMin")
    parser.add_argument("--precision", type=int, default=14, help="of HyperLogLog")
    parser.add_argument("--num-nodes", type=int, default=100_000, help="of the graph")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", choices=["processes", "threads"], default="processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
