"""`windlass demo`: the same model under the three consistencies, watched while it is fitted, compared at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from windlass.cli.fit import NOISE, Floats, Keys, Problem, declare, fit
from windlass.engines.cluster import Cluster
from windlass.errors import WindlassError
from windlass.types import Bounded, Consistency, Eventual, Sequential
from windlass.worker.driver import DriverStore

POLICIES: dict[str, Consistency] = {"sequential": Sequential(), "bounded(2)": Bounded(2), "eventual": Eventual()}
WATCH_SECONDS = 0.1
MEASURED_EXAMPLES = 1000
PLAIN_REPORTS = 4

Report = Callable[[float, float], None]
"""Told the fraction done and the loss now."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    seconds: float
    steps_per_second: float
    loss: float
    distance: float
    staleness: float


class Measure:
    """How good weights are, on examples that no worker has."""

    def __init__(self, problem: Problem) -> None:
        self._truth = problem.truth()
        self._x, self._y = problem.examples(-1, MEASURED_EXAMPLES)

    def loss(self, w: Floats) -> float:
        return float(np.mean(np.square(self._x @ w - self._y)))

    def distance(self, w: Floats) -> float:
        return float(np.linalg.norm(w - self._truth) / np.linalg.norm(self._truth))


def demo(*, servers: int, workers: int, transport: str, problem: Problem) -> None:
    """Blocks for a few seconds; raises WindlassError when the cluster fails."""
    console = Console()
    console.print(
        f"Fitting a linear model of {problem.features} weights with {_count(servers, 'server')} and "
        f"{_count(workers, 'worker')}, each a process of its own; {problem.steps} steps a worker."
    )
    began = time.monotonic()
    with Cluster(servers=servers, workers=workers, transport=transport) as cluster:
        console.print(f"The cluster was ready after {time.monotonic() - began:.1f} s.", highlight=False)
        console.print()
        _warm_up(cluster, problem)
        with _reports(console) as begin:
            results = [_fit_one(cluster, name, problem, begin(name)) for name in POLICIES]
    console.print()
    console.print(_table(results))
    console.print()
    console.print(
        f"Workers pause at random (mean {problem.pause_seconds * 1e3:g} ms a step). A sequential pull waits for all of "
        "them; a bounded one is at most 2 steps of any worker behind; an eventual one never waits. The noise in "
        f"the data alone makes a loss of about {NOISE**2:g}.",
        style="dim",
        highlight=False,
    )


def _warm_up(cluster: Cluster, problem: Problem) -> None:
    """One step that nobody times: on a new machine the servers compile their kernels in it."""
    keys, policy = Keys.of("warm-up"), POLICIES["sequential"]
    declare(cluster.store(), keys, policy, problem, cluster.num_workers)
    cluster.run(fit, keys, policy, msgspec.structs.replace(problem, steps=1, pause_seconds=0.0))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _fit_one(cluster: Cluster, name: str, problem: Problem, report: Report) -> Result:
    keys, store, measure = Keys.of(name), cluster.store(), Measure(problem)
    declare(store, keys, POLICIES[name], problem, cluster.num_workers)
    with _watched(store, keys, problem.steps * cluster.num_workers, measure, report):
        began = time.monotonic()
        staleness = cluster.run(fit, keys, POLICIES[name], problem)
        seconds = time.monotonic() - began
    w = store.pull(keys.weights)
    report(1.0, measure.loss(w))
    return Result(
        name=name,
        seconds=seconds,
        steps_per_second=problem.steps * cluster.num_workers / seconds,
        loss=measure.loss(w),
        distance=measure.distance(w),
        staleness=sum(staleness) / len(staleness),
    )


@contextmanager
def _watched(store: DriverStore, keys: Keys, total: int, measure: Measure, report: Report) -> Iterator[None]:
    """Inside, a thread reads the store as it changes. The driver is no worker: nobody waits for its reads."""
    is_over = threading.Event()

    def watch() -> None:
        try:
            while not is_over.wait(WATCH_SECONDS):
                w, steps = store.pull([keys.weights, keys.steps])
                report(float(steps.sum()) / total, measure.loss(w))
        except WindlassError:
            pass  # the run will say what happened to the cluster

    thread = threading.Thread(target=watch, name="windlass-demo-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(1.0)


# --- what is shown ----------------------------------------------------------------------------------------------------


@contextmanager
def _reports(console: Console) -> Iterator[Callable[[str], Report]]:
    """Gives a function that begins a bar on a terminal, and lines of text elsewhere."""
    if not console.is_terminal:
        yield lambda name: _plain_report(console, name)
        return
    columns = (
        TextColumn("{task.description:<10}", style="bold"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("loss {task.fields[loss]:<8}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, expand=console.width <= 100) as progress:

        def begin(name: str) -> Report:
            task = progress.add_task(name, total=1.0, loss="")
            return lambda done, loss: progress.update(task, completed=done, loss=f"{loss:.4f}")

        yield begin


def _plain_report(console: Console, name: str) -> Report:
    shown = 0

    def report(done: float, loss: float) -> None:
        nonlocal shown
        if int(done * PLAIN_REPORTS) > shown:
            shown = int(done * PLAIN_REPORTS)
            console.print(f"{name:<10} {done:4.0%}  loss {loss:.4f}", highlight=False)

    return report


def _table(results: list[Result]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("consistency")
    for heading in ("seconds", "steps/s", "final loss", "distance", "staleness"):
        table.add_column(heading, justify="right")
    for one in results:
        table.add_row(
            f"[bold]{one.name}[/bold]",
            f"{one.seconds:.2f}",
            f"{one.steps_per_second:,.0f}",
            f"{one.loss:.4f}",
            f"{one.distance:.2%}",
            f"{one.staleness:.2f}",
        )
    return table
