"""Fit a model in the workers of a cluster."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from windlass.apps.logistic import blocks, gradient
from windlass.apps.logistic.model import Model
from windlass.apps.logistic.plan import Plan
from windlass.apps.logistic.progress import Pass, Teller
from windlass.apps.logistic.reading import Source, as_source
from windlass.apps.logistic.rows import Rows
from windlass.errors import UsageError
from windlass.worker.store import Store

_COUNTS = struct.Struct("<4q")


class Census(NamedTuple):
    """What all workers have together."""

    rows: int
    positive: int
    nonzeros: int
    highest: int
    """The highest feature id, -1 if there is none."""


@dataclass(frozen=True)
class Fitted:
    """The model, the way there, pass by pass, and how many examples it was fitted to."""

    model: Model
    history: list[Pass]
    census: Census


def train(store: Store, source: Source | str | Path, plan: Plan) -> Fitted:
    """Read this worker's part of a file, and fit. To be given to `cluster.run`; every worker gets the same model."""
    plan.check()
    return fit(store, as_source(source).read(store.rank, store.num_workers), plan)


def fit(store: Store, rows: Rows, plan: Plan) -> Fitted:
    """Fit a model to the examples of all workers, of which `rows` are this one's. Every worker calls it, with the same
    plan; it blocks until the fit is done. Its keys, whose names begin with the plan's, are deleted in the end."""
    began = time.monotonic()
    plan.check()
    census = take_census(store, rows)
    if not census.rows:
        raise UsageError("expected examples, got none: no worker has any")
    if census.positive in (0, census.rows):
        kind = "+1" if census.positive else "-1 or 0"
        raise UsageError(f"expected examples of two classes, got {census.rows} that are all labelled {kind}")
    _clear(store, plan)
    teller = Teller(store, plan, began)
    if plan.algorithm == 1:
        ids, weights, bias = gradient.fit(store, rows, plan, census.highest + 1, teller)
    else:
        ids, weights, bias = blocks.fit(store, rows, plan, census.nonzeros / census.rows, teller)
    objective = teller.history[-1].objective
    store.barrier()
    _clear(store, plan)
    return Fitted(Model(ids, weights, bias, plan.l1, objective), teller.history, census)


def warm_up(store: Store, plan: Plan) -> None:
    """Load, or compile, the kernels of such a fit by one to a few examples, so that the seconds of the next one are its
    own. Every worker calls it; it blocks."""
    plan = replace(plan, name=f"{plan.name}-warm-up", l1=0.01, max_passes=3, blocks=2 * (plan.algorithm == 3))
    ids = np.arange(12) % 5
    fit(store, Rows.of(np.arange(0, 13, 3), ids, 1.0 + ids % 2, [1, -1, 1, -1]), plan)


def take_census(store: Store, rows: Rows) -> Census:
    highest = int(rows.ids.max()) if rows.ids.size else -1
    mine = _COUNTS.pack(len(rows), rows.positive, rows.ids.size, highest)
    every = [_COUNTS.unpack(each) for each in store.exchange(mine)]
    counts, positives, nonzeros, highests = zip(*every, strict=True)
    return Census(sum(counts), sum(positives), sum(nonzeros), max(highests))


def _clear(store: Store, plan: Plan) -> None:
    """Delete what a fit of this name has left; nobody goes on before that."""
    if store.is_lowest:
        left = store.keys()
        for key in left:
            if key.startswith(f"{plan.name}/"):
                store.delete(key)
    store.barrier()
