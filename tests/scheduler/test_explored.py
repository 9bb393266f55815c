"""Leased work under everything that can go wrong: every batch counts once, everywhere, and the work ends."""

import pytest

from windlass.testing.explorer import Limits, explore
from windlass.testing.mutants import CountsLeasesAgain, ForgetsLeases
from windlass.testing.network import Shots
from windlass.types import Bounded, Eventual

LEASED = Limits(leases=1.0)


def test_every_batch_counts_once_through_crashes_joins_and_restarts():
    shots = Shots()
    for seed in range(120):
        outcome = explore(seed, LEASED)
        assert not outcome.problem, outcome.problem
        shots.add(outcome.shots)
    assert min(shots.departures, shots.joins, shots.crashes, shots.restarts, shots.deposed) > 5, shots


def test_it_does_so_when_workers_come_and_go_more_often():
    limits = Limits(leases=1.0, departures=2, joins=2, breaks=1, additions=0, drains=0)
    for seed in range(500, 560):
        outcome = explore(seed, limits)
        assert not outcome.problem, outcome.problem


@pytest.mark.parametrize(
    ("mutant", "limits"),
    [
        (CountsLeasesAgain, Limits(leases=1.0, consistencies=(Eventual(), Bounded(1)), departures=2)),
        (
            ForgetsLeases,
            Limits(
                leases=1.0, servers=(3, 3), replicas=(1, 1), departures=2, deposed=0, additions=0, drains=0, restarts=0
            ),
        ),
    ],
)
def test_a_server_that_counts_work_twice_is_found_out(mutant, limits):
    assert any("leases" in explore(seed, limits, server=mutant).problem for seed in range(150))
