"""`windlass logistic`: fit a sparse linear model by servers and workers, watched while it converges; and apply it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from windlass._words import count, say
from windlass.apps import logistic
from windlass.apps.logistic import Census, Fitted, Plan, Source, load, warm_up
from windlass.apps.logistic import progress as telling
from windlass.cli.demo_words import COMPILING, is_first_use
from windlass.engines._compiling import SILENCE
from windlass.engines.cluster import Cluster
from windlass.errors import UsageError, WindlassError
from windlass.worker.store import Store

WATCH_SECONDS = 0.1
KERNELS = ("store/kernels.py", "store/table_kernels.py", "store/row_kernels.py", "apps/logistic/kernels.py")
HEADING = "pass        objective   non-zeros      traffic   seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the user asked for."""

    source: Source
    plan: Plan
    servers: int
    workers: int
    test: str
    save: str

    def check(self) -> None:
        """Raise UsageError for what could only fail later."""
        self.plan.check()
        self.source.check()
        if self.test:
            self.test_source.check()
        if self.save and not Path(self.save).absolute().parent.is_dir():
            raise UsageError(f"--save: there is no directory {Path(self.save).absolute().parent}")

    @property
    def test_source(self) -> Source:
        return Source(self.test, self.source.format, self.source.label)


def fit(job: Job) -> None:
    """Blocks until the model is fitted. Raises UsageError, or what else went wrong in the cluster."""
    job.check()
    console = Console(highlight=False)
    plan = job.plan
    who = f"{count(job.servers, 'server')} and {count(job.workers, 'worker')}"
    is_first = is_first_use(*KERNELS)
    title = f"Algorithm {plan.algorithm} on {job.source.path}: l1 {plan.l1:g}, {who}, {_policy(plan)}."
    board = Board(console, plan, title, COMPILING if is_first else "reading")
    began = time.monotonic()
    if is_first and console.is_terminal:
        os.environ[SILENCE] = "1"  # the bars say it
    with console.status(f"Starting {who}" + (f": {COMPILING}" if is_first else "")):
        cluster = Cluster(servers=job.servers, workers=job.workers)
    with cluster, board, _watched(cluster, plan, board):
        fitted = cluster.run(_train, job.source, plan)[0]
    board.finish(fitted)
    _conclude(console, job, fitted, time.monotonic() - began)


def _train(store: Store, source: Source, plan: Plan) -> Fitted:
    """What a worker does. A broken file is told of at once, and the seconds of a pass are its own."""
    rows = source.read(store.rank, store.num_workers)
    warm_up(store, plan)
    return logistic.fit(store, rows, plan)


def _conclude(console: Console, job: Job, fitted: Fitted, seconds: float) -> None:
    model, last, census = fitted.model, fitted.history[-1], fitted.census
    console.print()
    traffic = size(last.pushed_bytes + last.pulled_bytes)
    passes = f"{last.number} pass{'' if last.number == 1 else 'es'}"
    say(console, f"{_examples(census)}; {passes}, {traffic} pushed and pulled, {seconds:.1f} s in all.")
    say(console, f"Objective {number(model.objective)} with {model.ids.size:,} weights that are not 0.")
    if last.number >= job.plan.most_passes:
        say(console, f"It still falls: raise --max-passes above {job.plan.most_passes} to come closer to the least.")
    if job.test:
        score = model.score(job.test_source)
        text = f"Test accuracy {score.accuracy:.4f}, mean loss {score.loss:.4f}"
        say(console, f"{text}, on {count(score.rows, 'example')}.")
    if job.save:
        model.save(job.save)
        say(console, f"The model is in {job.save}.")


def _policy(plan: Plan) -> str:
    return str(plan.consistency).lower().removesuffix("()").replace("delay=", "")


def _examples(census: Census) -> str:
    return f"{count(census.rows, 'example')} with {census.nonzeros / census.rows:.1f} features each"


def predict(model: str, source: Source, *, is_chance: bool) -> None:
    """Print a line for each example, and on stderr how well it does."""
    loaded = load(model)
    source.check()
    rows = correct = 0
    for stretch in source.stretches():
        chances = loaded.chances(stretch)
        labels = loaded.predict(stretch)
        lines = [f"{each:.6g}" for each in chances] if is_chance else [f"{int(each):+d}" for each in labels]
        print("\n".join(lines))
        rows += len(stretch)
        correct += int((labels == stretch.labels).sum())
    if rows:
        text = f"windlass: {count(rows, 'example')}, {correct / rows:.4f} of them as labelled"
        say(Console(stderr=True), text)


# --- while it runs ----------------------------------------------------------------------------------------------------


class Board:
    """Shows a fit in a `with` block: on a terminal a bar, elsewhere whole lines. What is fitted is said when the fit is
    under way: where it cannot be, the error stands alone."""

    def __init__(self, console: Console, plan: Plan, title: str, opening: str) -> None:
        self._console, self._title, self._is_begun = console, title, False
        self._progress = Progress(
            TextColumn("pass {task.completed:.0f}", style="bold"),
            BarColumn(bar_width=max(8, min(30, console.width - 62))),
            TextColumn("{task.fields[where]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=plan.most_passes, where=opening)

    def __enter__(self) -> Board:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            say(self._console, self._title)
            self._console.print(HEADING, style="bold", soft_wrap=True)

    def show(self, sums: telling.Sums) -> None:
        """Where the workers are now."""
        share = sums.share
        traffic = size(share.pushed_bytes + share.pulled_bytes)
        where = f"objective {number(sums.objectives[0])}, {share.nonzeros:,.0f} non-zeros, {traffic}"
        if share.pushed_bytes:
            self._begin()
            self._progress.update(self._bar, completed=share.passes, where=where)

    def finish(self, fitted: Fitted) -> None:
        """The passes, those that are worth a line: the first ten, every tenth of the first hundred, and so on."""
        self._begin()
        last = fitted.history[-1].number
        for each in fitted.history:
            if each.number % 10 ** max(0, len(str(each.number)) - 1) == 0 or each.number == last:
                line = (
                    f"{each.number:>4}   {number(each.objective):>14}   {each.nonzeros:>9,}   "
                    f"{size(each.pushed_bytes + each.pulled_bytes):>10}   {each.seconds:>7.2f}"
                )
                self._console.print(line, soft_wrap=True)


@contextmanager
def _watched(cluster: Cluster, plan: Plan, board: Board) -> Iterator[None]:
    """Inside, a thread shows what is in the store. The driver is no worker: nobody waits for its reads."""
    store, is_over = cluster.store(), threading.Event()

    def watch() -> None:
        while not is_over.wait(WATCH_SECONDS):
            try:
                known = store.keys()
                if plan.key(telling.KEY) in known:
                    board.show(telling.read(store, plan, cluster.num_workers))
            except WindlassError:
                pass  # the key is not there yet, or not any more; what happened to the cluster the run will say

    thread = threading.Thread(target=watch, name="windlass-logistic-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(1.0)


def number(objective: float) -> str:
    """An objective, everywhere alike: to the hundredth, and a small one to six digits."""
    return f"{objective:,.2f}" if objective >= 1000 else f"{objective:.6g}"


def size(count: float) -> str:
    """Bytes, in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"
