"""Thousands of interleavings of the pure core, by seed: what is promised holds in each, and nothing is left waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windlass.testing.explorer import Limits, explore
from windlass.testing.network import Shots
from windlass.types import Bounded, Eventual, Sequential

CALM = Limits(breaks=0, departures=0, zombies=0, joins=0, crashes=0, deposed=0, additions=0, drains=0, restarts=0)

NUM_BATCHES = 5
SEEDS_PER_BATCH = 400
SOAK_SEEDS = 100_000


def _explore(seeds: range, limits: Limits) -> Shots:
    """Run these seeds; the first that breaks a promise fails the test, with its story."""
    shots = Shots()
    for seed in seeds:
        outcome = explore(seed, limits)
        shots.add(outcome.shots)
        if outcome.problem:
            story = "\n".join(explore(seed, limits, tells=True).story[-200:])
            pytest.fail(f"{outcome.problem}\nThe story, as explore({seed}, {limits}, tells=True) tells it:\n{story}")
    return shots


@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_every_pull_is_as_promised_whatever_breaks_dies_or_joins(batch: int) -> None:
    shots = _explore(range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH), Limits())
    assert shots.breaks > 200
    assert shots.lost > 250
    assert shots.resends > 100
    assert shots.departures > 50
    assert shots.zombies > 50
    assert shots.joins > 40
    assert shots.crashes > 20
    assert shots.deposed > 20
    assert shots.additions > 50
    assert shots.drains > 50


@pytest.mark.parametrize("policy", [Sequential(), Bounded(1), Eventual()])
def test_every_pull_is_as_promised_when_nothing_goes_wrong(policy: Sequential | Bounded | Eventual) -> None:
    shots = _explore(range(100), replace(CALM, consistencies=(policy,)))
    assert (shots.lost, shots.resends) == (0, 0)


def test_links_that_break_all_the_time_cost_no_push_and_double_none() -> None:
    shots = _explore(range(200), replace(CALM, breaks=20))
    assert shots.resends > 300


def test_replies_sent_from_where_they_lie_are_not_overwritten_before_they_are_read() -> None:
    _explore(range(60), Limits(large=1.0))


def test_a_driver_reads_one_and_the_same_round_everywhere() -> None:
    _explore(range(300), replace(CALM, departures=1, zombies=1, readers=1))


def test_a_driver_reads_one_and_the_same_round_everywhere_while_links_break() -> None:
    _explore(range(300), replace(CALM, servers=(2, 3), breaks=8, readers=1))


@pytest.mark.parametrize("batch", range(2))
def test_servers_that_die_or_are_taken_for_dead_lose_no_push_and_double_none(batch: int) -> None:
    limits = replace(CALM, servers=(3, 4), replicas=(1, 2), crashes=2, deposed=1, breaks=3, joins=1, readers=1)
    shots = _explore(range(batch * 500, (batch + 1) * 500), limits)
    assert shots.crashes > 200
    assert shots.deposed > 100
    assert shots.resends > 300


def test_workers_and_servers_may_die_together() -> None:
    limits = replace(CALM, servers=(2, 4), replicas=(1, 2), crashes=2, deposed=1, departures=2, zombies=1, joins=1)
    shots = _explore(range(500), limits)
    assert shots.crashes > 150
    assert shots.departures > 200


def test_servers_may_come_and_go_in_the_middle_of_everything() -> None:
    limits = replace(CALM, servers=(1, 3), replicas=(0, 2), breaks=2, joins=1, additions=2, drains=2, readers=1)
    shots = _explore(range(500), limits)
    assert shots.additions > 300
    assert shots.drains > 200


def test_managers_may_die_and_be_followed_by_others_whatever_else_happens() -> None:
    limits = replace(
        CALM, servers=(2, 3), replicas=(0, 2), breaks=2, departures=1, joins=1, crashes=1, deposed=1, additions=1,
        drains=1, restarts=2, readers=1,
    )  # fmt: skip
    shots = _explore(range(500), limits)
    assert shots.restarts > 200
    assert shots.crashes > 50
    assert shots.departures > 100


def test_a_snapshot_is_one_round_everywhere_when_nothing_goes_wrong() -> None:
    shots = _explore(range(150), replace(CALM, clock=(4, 8), savers=1))
    assert shots.snapshots > 250
    assert shots.melted > 10


def test_a_snapshot_is_one_round_everywhere_whatever_breaks_dies_joins_or_leaves() -> None:
    limits = replace(
        CALM, servers=(2, 4), replicas=(0, 2), breaks=3, departures=1, zombies=1, joins=1, crashes=2, deposed=1,
        additions=1, drains=1, restarts=1, savers=1,
    )  # fmt: skip
    shots = _explore(range(400), limits)
    assert shots.snapshots > 350
    assert shots.melted > 20
    assert shots.crashes > 60
    assert shots.deposed > 30


def test_a_seed_repeats_its_run_message_by_message() -> None:
    first, second = (explore(7, tells=True) for _ in range(2))
    assert first.story == second.story
    assert len(first.story) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_pull_is_as_promised_over_a_long_exploration() -> None:
    limits = Limits(
        servers=(2, 4), breaks=8, departures=2, zombies=2, joins=2, crashes=2, deposed=2, readers=1,
        additions=2, drains=2, restarts=2, savers=1,
    )  # fmt: skip
    _explore(range(1_000_000, 1_000_000 + SOAK_SEEDS), limits)
