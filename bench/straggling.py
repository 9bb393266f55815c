"""Slow workers under each consistency, and under DDP, which waits for them: the experiment of docs/stragglers.md."""

from __future__ import annotations

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import windlass as wl
from bench.table import Extra
from bench.targets import Verdict
from bench.trainers import Theirs
from windlass.apps import fashion
from windlass.apps.stragglers import Case, Plan, Problem, label, run
from windlass.types import Consistency

REPEATS = 3
TARGETS: dict[tuple[Case, Consistency], float] = {
    (Case.RANDOM, wl.Bounded(4)): 1.7,
    (Case.RANDOM, wl.Eventual()): 2.0,
    (Case.ALWAYS, wl.Eventual()): 2.5,
}


def measure() -> list[Extra]:
    """Samples per second relative to sequential's, medians of interleaved repeats."""
    plan = Plan()
    source = fashion.find("sample", fashion.default_places(os.environ), lambda _text: None)
    problem = Problem.of(source.load().train)
    rates: dict[tuple[Case, str], list[float]] = {}
    ddp = Theirs("ddp", plan.workers)
    try:
        with wl.Cluster(servers=1, workers=plan.workers) as cluster:
            for _ in range(REPEATS):
                for case in Case:
                    for consistency in (wl.Sequential(), wl.Bounded(4), wl.Eventual()):
                        found = run(cluster, case, consistency, problem, plan).samples_per_second
                        rates.setdefault((case, label(consistency)), []).append(found)
                    seconds = ddp.straggle(case.name, plan.steps)
                    samples = plan.steps * plan.workers * plan.batch_size
                    rates.setdefault((case, "DDP"), []).append(samples / seconds)
    finally:
        ddp.close()
    extras = []
    for (case, name), found in rates.items():
        rate = statistics.median(found)
        ratio = rate / statistics.median(rates[case, "sequential"])
        wanted = next((factor for (of, how), factor in TARGETS.items() if of is case and label(how) == name), None)
        verdict = Verdict("", None) if wanted is None else Verdict(f"≥ {wanted:g}× sequential", ratio >= wanted)
        extras.append(Extra(f"{case.value}: {name}", f"{rate:.0f} samples/s, {ratio:.2f}× sequential", verdict))
    return extras


def straggle(rank: int, case: str, steps: int) -> float:
    """One rank of DDP: the same computing times, all-reduced in every step. The seconds that it took."""
    plan, which = Plan(steps=steps), Case[case]
    model = DistributedDataParallel(nn.Linear(784, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=plan.lr)
    inputs, labels = torch.randn(plan.batch_size, 784), torch.randint(0, 10, (plan.batch_size,))
    dist.barrier()
    begin = time.monotonic()
    for step in range(steps):
        until = time.monotonic() + plan.seconds(which, rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        time.sleep(max(0.0, until - time.monotonic()))
        loss.backward()
        optimizer.step()
    dist.barrier()
    return time.monotonic() - begin
