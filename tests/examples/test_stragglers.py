"""Slow workers under each consistency, in a short run: who waits, how stale, what it costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import windlass as wl
from windlass.apps import fashion
from windlass.apps.stragglers import CONSISTENCIES, Case, Plan, Problem, label, run

SCRIPT = Path(__file__).parents[2] / "examples" / "stragglers.py"
PLAN = Plan(steps=20, target_loss=1.2)


@pytest.fixture(scope="module")
def problem():
    return Problem.of(fashion.Source(fashion.SAMPLE, is_sample=True).load().train)


@pytest.fixture(scope="module")
def outcomes(problem):
    with wl.Cluster(workers=PLAN.workers) as cluster:
        return {
            (case, label(consistency)): run(cluster, case, consistency, problem, PLAN)
            for case in Case
            for consistency in (wl.Sequential(), wl.Bounded(4), wl.Eventual())
        }


@pytest.mark.parametrize("case", Case)
def test_every_run_does_the_same_work_and_learns(outcomes, case):
    for (of, name), outcome in outcomes.items():
        if of is case:
            least = PLAN.steps * PLAN.workers
            assert least <= sum(outcome.pushes) < least + PLAN.workers
            assert name == "eventual" or outcome.pushes == [PLAN.steps] * PLAN.workers
            assert outcome.curve[0].loss > 1.5 > 1.3 > outcome.loss
            assert 0 < outcome.seconds_to_target < outcome.seconds


def test_sequential_takes_as_long_as_its_slow_steps_and_is_never_stale(outcomes):
    for case in Case:
        outcome = outcomes[case, "sequential"]
        assert outcome.seconds > PLAN.steps * PLAN.slow_seconds
        assert outcome.staleness_max == 0
        assert outcome.curve[-1].pushes == PLAN.steps * PLAN.workers


def test_where_slowness_changes_hands_a_delay_helps_and_makes_stale(outcomes):
    sequential, bounded = outcomes[Case.RANDOM, "sequential"], outcomes[Case.RANDOM, "bounded(4)"]
    assert bounded.samples_per_second > 1.2 * sequential.samples_per_second
    assert sum(bounded.idle_seconds) < sum(sequential.idle_seconds)
    assert bounded.staleness_mean > 1


def test_where_one_is_always_slow_only_not_waiting_helps(outcomes):
    sequential, bounded = outcomes[Case.ALWAYS, "sequential"], outcomes[Case.ALWAYS, "bounded(4)"]
    eventual = outcomes[Case.ALWAYS, "eventual"]
    assert bounded.seconds > PLAN.steps * PLAN.slow_seconds
    assert eventual.samples_per_second > 1.5 * sequential.samples_per_second
    assert eventual.pushes[-1] < min(eventual.pushes[:-1])
    assert eventual.last_workers_loss > sequential.last_workers_loss  # its data counted for less
    assert sequential.idle_seconds[-1] < min(sequential.idle_seconds[:-1])  # nobody keeps the slow one waiting


def test_who_is_slow_is_the_same_in_every_run():
    assert len(CONSISTENCIES) == 6
    for step in range(50):
        slow = [rank for rank in range(4) if Case.RANDOM.is_slow(rank, step, PLAN)]
        assert len(slow) == 1
        assert [Case.ALWAYS.is_slow(rank, step, PLAN) for rank in range(4)] == [False, False, False, True]
        assert PLAN.seconds(Case.RANDOM, slow[0], step) == PLAN.slow_seconds
    chosen = [rank for step in range(200) for rank in range(4) if Case.RANDOM.is_slow(rank, step, PLAN)]
    assert min(np.bincount(chosen)) > 30


def test_the_gradient_is_that_of_the_loss(problem):
    few = problem.take(np.arange(0, 10_000, 700))
    weights = np.random.default_rng(0).normal(scale=0.1, size=(785, 10)).astype(np.float32)
    direction = np.random.default_rng(1).normal(size=(785, 10)).astype(np.float32)
    step = np.float32(1e-3)
    slope = (few.loss(weights + step * direction) - few.loss(weights - step * direction)) / (2 * step)
    assert slope == pytest.approx(float((few.gradient(weights) * direction).sum()), rel=1e-2)


def test_a_cluster_of_another_size_is_refused(problem):
    with (
        wl.Cluster(engine="threads", workers=2) as cluster,
        pytest.raises(wl.UsageError, match="for 3 workers, the cluster has 2"),
    ):
        run(cluster, Case.RANDOM, wl.Eventual(), problem, replace(PLAN, workers=3))


def test_the_example_prints_every_run_says_why_and_draws(tmp_path):
    command = [sys.executable, "-W", "error", str(SCRIPT), "--steps", "6", "--target", "2", "--images", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for consistency in CONSISTENCIES:
        assert done.stdout.count(f"\n{label(consistency)} ") == 2
    assert "A bounded delay gains nothing in the long run." in done.stdout
    assert (tmp_path / "stragglers.png").read_bytes().startswith(b"\x89PNG")
