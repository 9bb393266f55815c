"""What slow workers cost under each consistency: softmax regression, with sleep for computing.

A *step* of a worker is a gradient on a batch of its own data, a push and a pull. Computing takes a given time, whatever
the machine: what the gradient really took is filled up with sleep. Every run does the same work in total, `steps` times
the number of workers pushes. With rounds or a bounded delay every worker makes `steps` of them; without, whoever is
faster makes more, until the work is done.

Each worker has the images of labels of its own. So it shows when a worker's pushes count for less than another's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.apps.fashion import LABELS, Bytes, Split
from windlass.engines.cluster import Cluster
from windlass.errors import UsageError
from windlass.store.update import SGD
from windlass.types import Bounded, Consistency, Eventual, Sequential
from windlass.worker.store import Store

CONSISTENCIES: tuple[Consistency, ...] = (
    Sequential(),
    Bounded(1),
    Bounded(2),
    Bounded(4),
    Bounded(8),
    Eventual(),
)
LOSS_IMAGES = 1000

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Case(Enum):
    """Who is slow."""

    RANDOM = "a random worker is slow in each step"
    ALWAYS = "the last worker is always slow"

    def is_slow(self, rank: int, step: int, plan: Plan) -> bool:
        """The same for every run: it follows from the plan's seed."""
        if self is Case.ALWAYS:
            return rank == plan.workers - 1
        return bool(np.random.default_rng((plan.seed, step)).integers(plan.workers) == rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained and how slowly; the same in every run."""

    steps: int = 100
    workers: int = 4
    batch_size: int = 32
    lr: float = 0.15
    fast_seconds: float = 0.010
    slow_seconds: float = 0.040
    target_loss: float = 0.7
    seed: int = 0

    def seconds(self, case: Case, rank: int, step: int) -> float:
        """How long computing takes in the n-th step of a worker."""
        return self.slow_seconds if case.is_slow(rank, step, self) else self.fast_seconds


class Problem(NamedTuple):
    """Images in the order of their labels, the mean of all images' pixels, and the labels. Small enough to travel."""

    images: Bytes
    mean: Floats
    labels: Labels

    @classmethod
    def of(cls, split: Split) -> Problem:
        order = np.argsort(split.labels, kind="stable")
        images = split.images[order].reshape(len(order), -1)
        mean: Floats = (images.mean(axis=0) / 255).astype(np.float32)
        return cls(images, mean, split.labels[order].astype(np.int64))

    def part(self, rank: int, workers: int) -> Problem:
        """A worker's own data: some of the labels."""
        return self.take(np.array_split(np.arange(len(self.labels)), workers)[rank])

    def take(self, chosen: npt.NDArray[np.int64]) -> Problem:
        return Problem(self.images[chosen], self.mean, self.labels[chosen])

    def rows(self) -> Floats:
        """For each image its pixels around the mean, and a 1."""
        found = np.ones((len(self.images), self.images.shape[1] + 1), np.float32)
        np.subtract(self.images / np.float32(255), self.mean, out=found[:, :-1])
        return found

    def loss(self, weights: Floats) -> float:
        scores = self.rows() @ weights
        scores -= scores.max(axis=1, keepdims=True)
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), self.labels]).mean())

    def gradient(self, weights: Floats) -> Floats:
        rows = self.rows()
        scores = rows @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        chances[np.arange(len(chances)), self.labels] -= 1
        found: Floats = rows.T @ chances / np.float32(len(chances))
        return found


class Point(NamedTuple):
    """The model as a worker pulled it: when, after how many pushes of all workers, and how good it was."""

    second: float
    pushes: int
    loss: float


@dataclass(slots=True)
class Diary:
    """What one worker noted; times are of the machine's clock, which its processes share."""

    began: float
    ended: float = 0.0
    idle_seconds: float = 0.0
    pushed_at: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    pulled: list[tuple[float, int, Floats]] = field(default_factory=list)  # when, its version, and the weights


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    The *steady* rate is that of the middle half of the run. *Idle* is the time from a push to the pull's answer.
    *Staleness* is how many updates of others a value took between a worker's pull of it and the push of the gradient
    computed from it. Losses are of the last value that worker 0 pulled: on all data, and on the last worker's.
    """

    case: Case
    consistency: Consistency
    seconds: float
    samples_per_second: float
    steady_samples_per_second: float
    pushes: list[int]
    idle_seconds: list[float]
    staleness_mean: float
    staleness_max: int
    seconds_to_target: float | None
    loss: float
    last_workers_loss: float
    curve: list[Point]


def run(cluster: Cluster, case: Case, consistency: Consistency, problem: Problem, plan: Plan) -> Outcome:
    """Train once, in the cluster's workers, on a key of its own. Blocks for about `steps` slow steps."""
    if cluster.num_workers != plan.workers:
        raise UsageError(f"the plan is for {plan.workers} workers, the cluster has {cluster.num_workers}")
    diaries = cluster.run(work, case, consistency, problem, plan)
    return _outcome(case, consistency, problem, plan, diaries)


def work(store: Store, case: Case, consistency: Consistency, problem: Problem, plan: Plan) -> Diary:
    """One worker's part."""
    own = problem.part(store.rank, plan.workers)
    key = f"stragglers/{case.name}/{consistency}"
    shape = (problem.images.shape[1] + 1, len(LABELS))
    store.create(key, np.zeros(shape, np.float32), reduce="mean", update=SGD(lr=plan.lr), consistency=consistency)
    draw = np.random.default_rng((plan.seed, store.rank))
    weights, step, owed = store.pull(key), 0, 0.0
    store.barrier()
    diary = Diary(began=time.monotonic())
    while True:
        until = time.monotonic() + plan.seconds(case, store.rank, step) - owed
        version = store.version(key)
        if store.rank == 0 and step:
            diary.pulled.append((diary.ended, version, weights))
        if _is_done(consistency, version, step, plan):
            break
        gradient = own.take(draw.integers(len(own.labels), size=plan.batch_size)).gradient(weights)
        time.sleep(max(0.0, until - time.monotonic()))
        computed = time.monotonic()
        diary.staleness.append(store.version(key) - version)
        pushed = time.monotonic()
        owed = pushed - computed  # looking is no part of the work: the next step is so much shorter
        weights = store.pushpull(key, gradient, out=np.empty(shape, np.float32))
        diary.ended = time.monotonic()
        diary.idle_seconds += diary.ended - pushed
        diary.pushed_at.append(pushed)
        step += 1
    store.barrier()
    if store.rank == 0:
        store.delete(key)  # the next run begins anew
    return diary


def _is_done(consistency: Consistency, version: int, step: int, plan: Plan) -> bool:
    """Workers that wait for each other must all make the same number of pushes."""
    return version >= plan.steps * plan.workers if isinstance(consistency, Eventual) else step >= plan.steps


def _outcome(case: Case, consistency: Consistency, problem: Problem, plan: Plan, diaries: Sequence[Diary]) -> Outcome:
    began, ended = min(each.began for each in diaries), max(each.ended for each in diaries)
    pushed_at = np.array([at for each in diaries for at in each.pushed_at])
    staleness = [count for each in diaries for count in each.staleness]
    quarter = (ended - began) / 4  # the first and the last are not counted: some start ahead, and some end early
    steady = ((pushed_at > began + quarter) & (pushed_at < ended - quarter)).sum() / (2 * quarter)
    seen = problem.take(np.arange(0, len(problem.labels), max(1, len(problem.labels) // LOSS_IMAGES)))
    per_version = plan.workers if isinstance(consistency, Sequential) else 1
    curve = [Point(at - began, version * per_version, seen.loss(weights)) for at, version, weights in diaries[0].pulled]
    return Outcome(
        case=case,
        consistency=consistency,
        seconds=ended - began,
        samples_per_second=len(pushed_at) * plan.batch_size / (ended - began),
        steady_samples_per_second=float(steady) * plan.batch_size,
        pushes=[len(each.pushed_at) for each in diaries],
        idle_seconds=[each.idle_seconds for each in diaries],
        staleness_mean=float(np.mean(staleness)),
        staleness_max=max(staleness),
        seconds_to_target=next((point.second for point in curve if point.loss <= plan.target_loss), None),
        loss=curve[-1].loss,
        last_workers_loss=problem.part(plan.workers - 1, plan.workers).loss(diaries[0].pulled[-1][2]),
        curve=curve,
    )


def label(consistency: Consistency) -> str:
    """Its name in tables."""
    return f"bounded({consistency.delay})" if isinstance(consistency, Bounded) else type(consistency).__name__.lower()
