"""Leased work under everything that can go wrong: every batch counts once, everywhere, and the work ends."""

from dataclasses import replace

import pytest

from tests.consistency.test_interleavings import AIMED, check_each_is_hit
from windlass.testing import aims
from windlass.testing.explorer import Limits, explore
from windlass.testing.limits import CALM
from windlass.testing.mutants import CountsLeasesAgain, ForgetsLeases
from windlass.testing.network import Shots
from windlass.types import Bounded, Eventual, Sequential

LEASED = Limits(leases=1.0)
HARSH = Limits(
    servers=(1, 4), workers=(2, 5), breaks=10, drops=4, copies=6, slows=4, partitions=3, cuts=3, departures=2,
    zombies=2, joins=3, readers=1, savers=1, crashes=2, deposed=2, additions=2, drains=2, restarts=3, aims=6,
    hurry=(0.01, 0.03, 0.06), large=0.2, leases=1.0, tables=0.4,
)  # fmt: skip


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


@pytest.mark.parametrize("what", ["crash", "stop", "restart", "join"])
def test_it_does_so_whatever_happens_before_and_after_every_kind_of_message_of_leased_work(what, crew):
    limits = replace(AIMED, leases=1.0, restarts=2, whats=(what,))
    check_each_is_hit(crew, aims.LEASED, limits)


def test_an_epoch_does_not_end_before_the_servers_were_asked_about_all_of_it():
    """In this one a new manager asks about the one batch that counts everywhere, and hears of it when all are done."""
    limits = replace(CALM, workers=(2, 2), leases=1.0, savers=1, departures=1, partitions=2, restarts=3, hurry=(0.05,))
    assert explore(1334, limits).problem == ""


def test_work_that_nobody_was_left_to_do_is_no_fault_though_somebody_reads():
    assert explore(77001291, HARSH).problem == ""


def test_a_worker_that_is_about_to_hear_of_a_dead_manager_does_not_give_up_on_the_next_one():
    """In this one it dials a dead server, again and again, before it hears that its dial of the manager has failed."""
    assert explore(77003275, HARSH).problem == ""


def test_a_worker_that_rests_is_not_waited_for_because_of_what_it_asked_for_before():
    """In this one it asks a server to let it begin that is not the head any more, then the head, where it rests after
    that; and the former head becomes the head again."""
    limits = Limits(
        servers=(3, 4), consistencies=(Sequential(),), replicas=(1, 2), leases=1.0, departures=3, joins=3, crashes=2,
        aims=4, savers=1, readers=1,
    )  # fmt: skip
    assert explore(2001596, limits).problem == ""


def test_a_key_is_not_forgotten_whose_only_worker_died_before_it_could_tell_of_it():
    """In this one it pushes a batch to one key, and dies; the next manager hears of that key alone."""
    assert explore(910001740, HARSH).problem == ""


def test_who_enters_when_somebody_has_died_is_level_with_the_others_on_every_key():
    """In this one the scheduler hears of the death first, and the keeper of both keys between two questions."""
    limits = replace(
        HARSH, servers=(3, 4), replicas=(1, 2), consistencies=(Sequential(),), departures=4, joins=4, copies=10,
        drops=8, large=0.6,
    )  # fmt: skip
    assert explore(920015682, limits).problem == ""
    assert explore(970201451, limits).problem == ""  # a late copy of a question was answered in place of the next one


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
