"""A click model in the manner of DLRM: a row for each of 26 categories and one made of the 13 numbers, their products
pair by pair, and a small network over these. The 26 tables lie on the servers and are bounded; the networks are trained
in step, by `wl.torch.Optimizer`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from windlass.apps.clicks import BLOCK, FIELDS, NUMBERS, Clicks, Floats, Ids, Source, smallest_part, smallest_size
from windlass.errors import UsageError
from windlass.store.initial import Uniform
from windlass.store.optimizers import Adagrad
from windlass.torch.embedding import Embedding, Remote, lookup
from windlass.torch.optimizer import Optimizer
from windlass.torch.prefetch import prefetch
from windlass.torch.row_gradients import RowGradients
from windlass.types import Bounded, Eventual
from windlass.worker.store import Store

PROGRESS = "ctr/progress"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained and how; the same in every worker. `batch_size` is that of all workers together. `filters` are
    those of the tables; `depth` batches are prefetched."""

    source: Source
    samples: int = 400_000
    tests: int = 50_000
    epochs: int = 1
    batch_size: int = 4096
    dim: int = 16
    lr: float = 0.01
    table_lr: float = 0.03
    delay: int = 4
    depth: int = 1
    filters: tuple[Any, ...] = ()
    seed: int = 0

    def check(self, workers: int) -> None:
        """Raise UsageError for what could only fail later."""
        if self.tests < 1:
            raise UsageError(f"expected 1 sample to test with, or more, got {self.tests}")
        if self.batch_size < workers:
            raise UsageError(
                f"a batch of {self.batch_size} cannot be shared by {workers} workers: expected {workers} or more"
            )
        if not self.steps(workers):
            raise UsageError(self._too_few(workers))
        if self.depth and self.depth > self.delay:
            raise UsageError(f"tables that may miss {self.delay} pushes cannot be asked {self.depth} batches ahead")

    def _too_few(self, workers: int) -> str:
        share, least = self.batch_size // workers, smallest_part(self.samples, workers)
        expected = [f"{smallest_size(share, workers)} samples or more"]
        if least:
            expected.append(f"a batch of {least * workers} or less")
        if workers == 1:
            return f"{self.samples} samples are too few for a step of {share}: expected {', or '.join(expected)}"
        expected.append("fewer workers")
        return (
            f"{self.samples} samples are too few for one step of {workers} workers: they are dealt out in blocks of "
            f"{BLOCK}, and somebody has {least} of the {share} that each takes. Expected {', or '.join(expected)}"
        )

    def steps(self, workers: int) -> int:
        """Of every worker, in an epoch."""
        return smallest_part(self.samples, workers) // (self.batch_size // workers)


class Batch(NamedTuple):
    numbers: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor


class ClickModel(nn.Module):
    """`tables` are Embeddings, of Windlass or of torch, one for each field."""

    def __init__(self, tables: Sequence[nn.Module], *, dim: int, seed: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)
        pairs = (FIELDS + 1) * FIELDS // 2
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(pairs + dim + FIELDS * dim, 64), nn.ReLU(), nn.Linear(64, 1))
        one, other = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
        self.register_buffer("pairs", one * (FIELDS + 1) + other, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for each in (*self.bottom, *self.top):
            if isinstance(each, nn.Linear):
                nn.init.xavier_uniform_(each.weight, generator=generator)
                nn.init.zeros_(each.bias)

    def lookups(self, batch: Batch) -> Iterator[tuple[Any, torch.Tensor]]:
        """What forward will look up, for `wl.torch.prefetch`."""
        return zip(self.tables, batch.ids.t().contiguous().unbind(0), strict=True)

    def forward(self, batch: Batch) -> torch.Tensor:
        """The log-odds of a click, for each sample."""
        wanted = list(self.lookups(batch))
        is_remote = isinstance(wanted[0][0], Remote)
        found = lookup(wanted) if is_remote else [table(ids) for table, ids in wanted]
        dense = self.bottom(batch.numbers)
        rows = torch.stack([*found, dense], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)  # type: ignore[arg-type]
        logits: torch.Tensor = self.top(torch.cat([products, rows.flatten(1)], dim=1)).squeeze(1)
        return logits


class Outcome(NamedTuple):
    """What a worker has done: samples and seconds of training, and the scores and labels of its part of the test after
    each epoch."""

    samples: int
    seconds: float
    scores: list[Floats]
    labels: Floats
    truth: Floats


def table_name(field: int) -> str:
    return f"field-{field}"


def _init(plan: Plan) -> Uniform:
    return Uniform(low=-0.05, high=0.05, seed=plan.seed)


def make_tables(store: Store, plan: Plan) -> list[nn.Module]:
    """The table of each field. Every worker calls it."""
    return [
        Embedding(
            store.create_table(
                table_name(field),
                dim=plan.dim,
                init=_init(plan),
                reduce="mean",  # over the workers, as the optimizer's
                update=Adagrad(lr=plan.table_lr),
                consistency=Bounded(plan.delay),
                filters=list(plan.filters),
                slots=2,  # there are 26 tables to spread over the servers
            )
        )
        for field in range(FIELDS)
    ]


def train(store: Store, plan: Plan) -> Outcome:
    """One worker's part of the training. For `cluster.run(train, plan)`."""
    rank, workers = store.rank, store.num_workers
    plan.check(workers)
    store.create(PROGRESS, np.zeros(2, np.float32), update="add", consistency=Eventual())
    model = ClickModel(make_tables(store, plan), dim=plan.dim, seed=plan.seed)
    networks = torch.optim.Adam(model.parameters(), lr=plan.lr)
    optimizer = Optimizer(networks, store, named_parameters=model.named_parameters())
    loader = Loader(plan, rank, workers)
    test = plan.source.read(plan.samples, plan.samples + plan.tests, rank, workers)
    batches = prefetch(loader, model.lookups, depth=plan.depth) if plan.depth else loader
    watch = Watch(lambda count, loss: store.push(PROGRESS, np.array([count, loss], np.float32)))
    scores: list[Floats] = []
    for _ in range(plan.epochs):
        store.barrier()
        watch.begin()
        fit(model, optimizer, batches, watch.step)
        RowGradients.of(store).wait()
        store.barrier()  # every push is in what is tested now
        watch.end()
        scores.append(score(model, test, plan.batch_size))
    return Outcome(watch.samples, watch.seconds, scores, test.labels, test.truth)


class Watch:
    """Counts samples and seconds of training, from the end of the first step on: that one makes and loads things."""

    def __init__(self, tell: Callable[[int, float], Any]) -> None:
        self.samples, self.seconds = 0, 0.0
        self._tell, self._began, self._is_first = tell, 0.0, True

    def begin(self) -> None:
        self._began = time.perf_counter()

    def step(self, count: int, loss: float) -> None:
        if self._is_first:
            self._is_first = False
            self.begin()
        else:
            self.samples += count
        self._tell(count, loss)

    def end(self) -> None:
        self.seconds += time.perf_counter() - self._began


def train_alone(plan: Plan, tell: Callable[[int, float], Any]) -> Outcome:
    """The same training in this process with `nn.Embedding`, without Windlass: what to compare with."""
    plan.check(1)
    loader = Loader(plan)
    test = plan.source.read(plan.samples, plan.samples + plan.tests)
    known = [np.unique(np.concatenate([loader.clicks.ids[:, f], test.ids[:, f]])) for f in range(FIELDS)]
    tables = [PlainTable(known[field], first_rows(plan, field)) for field in range(FIELDS)]
    model = ClickModel(tables, dim=plan.dim, seed=plan.seed)
    rows = {id(table.rows.weight) for table in tables}
    networks = [each for each in model.parameters() if id(each) not in rows]
    both = Both(
        torch.optim.Adagrad([table.rows.weight for table in tables], lr=plan.table_lr),
        torch.optim.Adam(networks, lr=plan.lr),
    )
    watch = Watch(tell)
    scores: list[Floats] = []
    for _ in range(plan.epochs):
        watch.begin()
        fit(model, both, loader, watch.step)
        watch.end()
        scores.append(score(model, test, plan.batch_size))
    return Outcome(watch.samples, watch.seconds, scores, test.labels, test.truth)


def first_rows(plan: Plan, field: int) -> Callable[[Ids], Floats]:
    """What the rows of a field's ids start as, on whichever server."""
    init = _init(plan).salted(table_name(field))
    return lambda ids: init.rows(ids, plan.dim)


class PlainTable(nn.Module):
    """`nn.Embedding` by any ids, which are known beforehand."""

    def __init__(self, ids: Ids, first: Callable[[Ids], Floats]) -> None:
        super().__init__()
        self._ids = torch.from_numpy(ids)
        rows = torch.from_numpy(first(ids))
        self.rows = nn.Embedding(len(ids), rows.shape[1], _weight=rows)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rows(torch.searchsorted(self._ids, ids))
        return found


class Both(NamedTuple):
    """Two optimizers that step together."""

    one: torch.optim.Optimizer
    other: torch.optim.Optimizer

    def zero_grad(self) -> None:
        for each in self:
            each.zero_grad()

    def step(self) -> None:
        for each in self:
            each.step()


def fit(model: ClickModel, optimizer: Any, batches: Any, tell: Callable[[int, float], Any]) -> None:
    """An ordinary epoch; `tell` is told the samples and the summed loss of each step."""
    for batch in batches:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tell(len(batch.labels), float(loss.detach()) * len(batch.labels))


@torch.no_grad()
def score(model: ClickModel, clicks: Clicks, batch_size: int) -> Floats:
    """The model's log-odds."""
    parts = [model(as_batch(clicks.take(slice(at, at + batch_size)))) for at in range(0, len(clicks), batch_size)]
    found: Floats = torch.cat([torch.empty(0), *parts]).numpy()
    return found


def as_batch(clicks: Clicks) -> Batch:
    return Batch(*map(torch.from_numpy, (clicks.numbers, clicks.ids, clicks.labels)))


class Loader:
    """A worker's batches of an epoch, in another order every time."""

    def __init__(self, plan: Plan, rank: int = 0, workers: int = 1) -> None:
        self.share = plan.batch_size // workers
        self.clicks = plan.source.read(0, plan.samples, rank, workers)
        self._steps = plan.steps(workers)
        self._seed, self._epoch = (plan.seed, rank), 0

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        order = np.random.default_rng((*self._seed, self._epoch)).permutation(len(self.clicks))
        self._epoch += 1
        for step in range(self._steps):
            yield as_batch(self.clicks.take(order[step * self.share : (step + 1) * self.share]))
