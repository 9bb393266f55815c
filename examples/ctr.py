"""A click model with 26 embedding tables on the servers.

    python examples/ctr.py                         generated samples, 2 workers: about half a minute
    python examples/ctr.py --filters               gradients of rows in 8 bits, lists of ids by their digest
    python examples/ctr.py --compare               both, and what filters save
    python examples/ctr.py --plain                 the same in one process with nn.Embedding
    python examples/ctr.py --data train.txt        Criteo's own file, tab- or comma-separated

The networks are trained in step, the tables with bounded delay; the rows of the next batch come while this one is
worked on. Reports samples a second, the area under the curve on samples that nobody trained on, and what was pushed.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import windlass as wl
from windlass.apps.clicks import Source, auc, count_lines
from windlass.apps.ctr import PROGRESS, Outcome, Plan, train, train_alone

FILTERS = (wl.filters.IdCache(), wl.filters.Int8(block=64))
WATCH_SECONDS = 0.2
COMPILING = "a new install compiles kernels"


class Result(NamedTuple):
    """What a run came to. `traffic`: bytes pushed to tables before and after filters."""

    name: str
    auc: float
    best_auc: float
    samples_per_second: float
    traffic: tuple[int, int] | None


def main() -> None:
    options = parse()
    console = Console(highlight=False)
    try:
        results = [run(options, console, kind) for kind in kinds(options)]
    except (wl.WindlassError, OSError) as error:
        sys.exit(f"ctr.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    for result in results:
        show(console, result)
    if options.compare:
        conclude(console, *results)


def kinds(options: argparse.Namespace) -> list[str]:
    if options.plain:
        return ["nn.Embedding"]
    if options.compare:
        return ["no filters", "filters"]
    return ["filters" if options.filters else "no filters"]


def run(options: argparse.Namespace, console: Console, kind: str) -> Result:
    plan = plan_of(options, FILTERS if kind == "filters" else ())
    if kind == "nn.Embedding":
        plan.check(1)
        with bar(console, kind, plan.steps(1) * plan.batch_size * plan.epochs) as tell:
            done = [train_alone(plan, tell)]
        return result_of(kind, done, None)
    plan.check(options.workers)
    with console.status(f"starting {options.servers} servers and {options.workers} workers; {COMPILING} first"):
        cluster = wl.Cluster(engine=options.engine, servers=options.servers, workers=options.workers)
    with cluster:
        share = plan.batch_size // options.workers
        total = plan.steps(options.workers) * share * options.workers * plan.epochs
        with bar(console, kind, total) as tell, watched(cluster.store(), tell):
            done = cluster.run(train, plan)
        return result_of(kind, done, pushed(cluster.store()))


def plan_of(options: argparse.Namespace, filters: tuple[Any, ...]) -> Plan:
    source = Source(path=options.data, max_ids=options.ids, seed=options.seed)
    samples, tests = options.samples, options.tests
    if options.data is not None:
        found = count_lines(options.data)
        tests = min(tests, found // 10)
        samples = min(samples, found - tests)
    return Plan(
        source=source, samples=samples, tests=tests, epochs=options.epochs, batch_size=options.batch_size,
        dim=options.dim, lr=options.lr, table_lr=options.table_lr, delay=options.delay, depth=options.prefetch,
        filters=filters, seed=options.seed,
    )  # fmt: skip


def result_of(name: str, done: Sequence[Outcome], traffic: tuple[int, int] | None) -> Result:
    scores, labels, truth = (
        np.concatenate(each) for each in zip(*((one.scores[-1], one.labels, one.truth) for one in done), strict=True)
    )
    speed = sum(one.samples for one in done) / max(one.seconds for one in done)
    best = auc(truth, labels) if truth.any() else float("nan")
    return Result(name, auc(scores, labels), best, speed, traffic)


# --- what is shown ---------------------------------------------------------------------------------------------------


@contextmanager
def bar(console: Console, name: str, samples: int) -> Iterator[Any]:
    """A progress bar, on a terminal; gives what to tell of samples and their summed loss."""
    width = max(8, min(40, console.width - 72))
    columns = (TextColumn(f"{name:12}"), BarColumn(width), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True,
                        disable=not console.is_terminal)  # fmt: skip
    with progress:
        task = progress.add_task(name, total=samples, loss=COMPILING)

        def tell(count: float, loss: float) -> None:
            if count:
                progress.update(task, advance=count, loss=f"loss {loss / count:.4f}")

        yield tell


@contextmanager
def watched(store: wl.Store, tell: Any) -> Iterator[None]:
    """Look now and then how far the workers are."""
    store.create(PROGRESS, np.zeros(2, np.float32), update="add", consistency=wl.Eventual())
    is_over = threading.Event()

    def watch() -> None:
        before = np.zeros(2)
        while not is_over.wait(WATCH_SECONDS):
            try:
                now = store.pull(PROGRESS).astype(np.float64)
            except wl.WindlassError:  # the run will say what is wrong
                return
            tell(*(now - before))
            before = now

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def pushed(store: wl.Store) -> tuple[int, int] | None:
    """Bytes of ids and gradients pushed to tables, and what they were after the filters; None without filters."""
    told = [key for server in store.status()["servers"].values() for key in server["keys"].values()]
    filters = [key["filters"] for key in told if key.get("filters")]
    if not filters:
        return None
    return sum(each[0]["before"] for each in filters), sum(each[-1]["after"] for each in filters)


def show(console: Console, result: Result) -> None:
    best = "" if np.isnan(result.best_auc) else f" (the planted model: {result.best_auc:.4f})"
    console.print(
        f"{result.name:12} {result.samples_per_second:>10,.0f} samples/s   AUC {result.auc:.4f}{best}", soft_wrap=True
    )
    if result.traffic is not None:
        before, after = result.traffic
        console.print(
            f"{'':12} pushed to tables: {before / 1e6:.1f} MB of ids and gradients, sent as {after / 1e6:.1f} MB, "
            f"{before / after:.2f}x less",
            soft_wrap=True,
        )


def conclude(console: Console, without: Result, with_filters: Result) -> None:
    console.print(f"Filters change the AUC by {with_filters.auc - without.auc:+.4f}.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="Criteo's file; without it samples are generated")
    parser.add_argument("--samples", type=int, default=400_000, help="to train on")
    parser.add_argument("--tests", type=int, default=50_000, help="samples after those, to test with")
    parser.add_argument("--ids", type=int, default=100_000, help="the most ids that a generated field has")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4096, help="of all workers together")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01, help="of the networks (Adam)")
    parser.add_argument("--table-lr", type=float, default=0.03, help="of the tables (Adagrad)")
    parser.add_argument("--delay", type=int, default=4, help="of the tables: pushes of a worker that may be missing")
    parser.add_argument("--prefetch", type=int, default=1, help="how many batches ahead rows are asked for; 0: not")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--engine", choices=["processes", "threads"], default="processes")
    parser.add_argument("--seed", type=int, default=0)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--filters", action="store_true", help="id cache and int8 on the tables")
    how.add_argument("--compare", action="store_true", help="without filters, then with them")
    how.add_argument("--plain", action="store_true", help="in one process, with nn.Embedding and without Windlass")
    return parser.parse_args()


if __name__ == "__main__":
    main()
