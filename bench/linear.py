"""`python -m bench.linear`: sparse logistic regression beside liblinear, from data in memory to within 1 % of the least
objective that liblinear finds.

The set is generated: 200,000 examples with about 42 of 1,000,000 features each, some frequent and most rare, of which
20,000 decide the label. Contenders take turns.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import windlass as wl
from bench.quiet import busy_cores
from bench.table import write_section
from windlass.apps import logistic

SECTION = "bench.linear"
WITHIN = 1.01
MOST_TIMES_LIBLINEAR = 2.0
ARRAYS = ("starts", "ids", "values", "labels")
COLUMNS = ("who", "seconds", "times liblinear", "passes", "objective", "non-zeros", "traffic", "target", "verdict")


@dataclass(frozen=True)
class Size:
    rows: int = 200_000
    features: int = 1_000_000
    per_row: int = 44  # some are drawn twice: 42 or 43 stay
    informative: int = 20_000


def make(size: Size, seed: int = 0) -> logistic.Rows:
    """Feature k is drawn with a probability that falls as (k + 30) to the power of -1.1; ids are then shuffled."""
    rng = np.random.default_rng(seed)
    counts = np.maximum(rng.poisson(size.per_row, size.rows), 1)
    low, high = 30.0**-0.1, (size.features + 30.0) ** -0.1
    drawn = (low + (high - low) * rng.random(counts.sum())) ** -10 - 30
    ranks = np.minimum(drawn.astype(np.int64), size.features - 1)
    rows = np.repeat(np.arange(size.rows), counts)
    pairs = np.unique(rows * size.features + ranks)
    rows, ranks = pairs // size.features, pairs % size.features
    truth = np.zeros(size.features)
    chosen = rng.choice(min(size.features, 10 * size.informative), size.informative, replace=False)
    truth[chosen] = rng.standard_normal(size.informative)
    margins = np.bincount(rows, truth[ranks], minlength=size.rows)
    labels = rng.random(size.rows) < 1 / (1 + np.exp(-margins))
    starts = np.searchsorted(rows, np.arange(size.rows + 1))
    ids = rng.permutation(size.features)[ranks]
    return logistic.Rows.of(starts, ids, np.ones(ids.size), labels)


# --- liblinear --------------------------------------------------------------------------------------------------------


class Liblinear:
    """scikit-learn's liblinear, stopped as soon as it is near enough to where it ends."""

    def __init__(self, rows: logistic.Rows, l1: float) -> None:
        from scipy.sparse import csr_matrix

        shape = (len(rows), int(rows.ids.max()) + 1)
        indices, starts = rows.ids.astype(np.int32), rows.starts.astype(np.int32)
        self._matrix = csr_matrix((rows.values.astype(np.float64), indices, starts), shape=shape)
        self._labels, self._l1 = rows.labels, l1
        self.least = self._objective(self._fit(1000))
        self.iterations = next(count for count in range(1, 1000) if self._is_near(count))

    def seconds(self) -> float:
        began = time.perf_counter()
        fitted = self._fit(self.iterations)
        seconds = time.perf_counter() - began
        self.objective, self.nonzeros = self._objective(fitted), int(np.count_nonzero(fitted.coef_))
        return seconds

    def _fit(self, iterations: int) -> Any:
        from sklearn.linear_model import LogisticRegression

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged, which is the point
            model = LogisticRegression(
                penalty="l1",
                solver="liblinear",
                C=1 / self._l1,
                fit_intercept=False,
                max_iter=iterations,
                random_state=0,  # so that as many iterations come to the same objective every time
            )
            return model.fit(self._matrix, self._labels)

    def _objective(self, fitted: Any) -> float:
        weights = fitted.coef_.ravel()
        losses = np.logaddexp(0, -self._labels * (self._matrix @ weights))
        return float(losses.sum() + self._l1 * np.abs(weights).sum())

    def _is_near(self, iterations: int) -> bool:
        return self._objective(self._fit(iterations)) <= WITHIN * self.least


# --- Windlass ---------------------------------------------------------------------------------------------------------


def work(store: wl.Store, folder: str, plan: logistic.Plan, warm: logistic.Plan) -> logistic.Fitted:
    """In a worker: read what is its own, have kernels compiled by a small fit, and fit."""
    rows = logistic.Rows(*(np.load(f"{folder}/{name}.npy") for name in ARRAYS)).part(store.rank, store.num_workers)
    rows = logistic.Rows(*(np.ascontiguousarray(getattr(rows, name)) for name in ARRAYS))
    logistic.fit(store, rows.take(0, min(1000, len(rows))), warm)
    store.barrier()
    return logistic.fit(store, rows, plan)


def near(fitted: list[logistic.Fitted], enough: float) -> logistic.Pass:
    """The first pass that is near enough, when the last worker knew it."""
    passes = [next((each for each in one.history if each.objective <= enough), one.history[-1]) for one in fitted]
    return max(passes, key=lambda each: each.seconds)


# --- the report -------------------------------------------------------------------------------------------------------


def megabytes(number: float) -> str:
    return f"{number / 1e6:.1f} MB"


def section(rows: list[tuple[str, ...]], notes: list[str]) -> str:
    lines = [*(f"- {note}" for note in notes), "", "| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def main(
    l1: Annotated[float, typer.Option(help="The weight of the penalty.")] = 1.0,
    workers: Annotated[int, typer.Option(min=1)] = 2,
    delay: Annotated[int, typer.Option(min=0)] = 0,
    turns: Annotated[int, typer.Option(min=1, help="How often each is measured; the medians count.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the set, once: to see that it works.")] = False,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure both, and say whether the target is kept; the exit status is 1 if it is not."""
    size = Size(20_000, 100_000, 44, 2_000) if quick else Size()
    turns = 1 if quick else turns
    rows = make(size)
    liblinear = Liblinear(rows, l1)
    enough = WITHIN * liblinear.least
    plan = logistic.Plan(l1=l1, intercept=False, delay=delay, max_passes=12)
    theirs: list[float] = []
    ours: list[logistic.Pass] = []
    noise = 0.0
    with tempfile.TemporaryDirectory() as folder, wl.Cluster(servers=1, workers=workers) as cluster:
        for name in ARRAYS:
            np.save(f"{folder}/{name}.npy", getattr(rows, name))
        for _ in range(turns):
            noise = max(noise, busy_cores())
            theirs.append(liblinear.seconds())
            warm = logistic.Plan(l1=l1, intercept=False, delay=delay, max_passes=2)
            ours.append(near(cluster.run(work, folder, plan, warm), enough))
    least, mine = statistics.median(theirs), sorted(ours, key=lambda each: each.seconds)[len(ours) // 2]
    times = mine.seconds / least
    is_kept = mine.objective <= enough and times <= MOST_TIMES_LIBLINEAR
    table = [
        ("liblinear", f"{least:.2f}", "1", str(liblinear.iterations), f"{liblinear.objective / liblinear.least:.4f}",
         f"{liblinear.nonzeros:,}", "", "", ""),
        (f"Windlass, {workers} workers", f"{mine.seconds:.2f}", f"{times:.2f}", str(mine.number),
         f"{mine.objective / liblinear.least:.4f}", f"{mine.nonzeros:,}",
         megabytes(mine.pushed_bytes + mine.pulled_bytes), f"≤ {MOST_TIMES_LIBLINEAR:g}× liblinear",
         "PASS" if is_kept else "MISS"),
    ]  # fmt: skip
    notes = [
        f"Command: `{f'python -m bench.linear {shlex.join(sys.argv[1:])}'.strip()}`",
        f"{len(rows):,} examples, {size.features:,} features, {rows.ids.size / len(rows):.1f} non-zeros a row, "
        f"l1 {l1:g}, without a bias; from arrays in memory, kernels compiled, to an objective within 1 % of the least "
        f"that liblinear finds, {liblinear.least:.0f}; medians of {turns}.",
        f"Objectives are divided by that. Others kept {noise:.1f} cores busy, at most, before a turn.",
    ]
    shown = Table(*COLUMNS, title="logistic regression with an L1 penalty")
    for row in table:
        shown.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(shown)
    console.print(*notes, sep="\n", soft_wrap=True)
    if markdown_file is not None:
        write_section(markdown_file, SECTION, section(table, notes))
    raise typer.Exit(0 if is_kept else 1)


if __name__ == "__main__":
    typer.run(main)
