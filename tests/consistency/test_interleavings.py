"""Thousands of interleavings of the pure core, by seed: what is promised holds in each, and nothing is left waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windlass._wire.effects import Later
from windlass.server.sequential import Advance
from windlass.testing.aims import AFTER, BEFORE, KINDS
from windlass.testing.explorer import Limits, explore
from windlass.testing.limits import CALM, WHATS
from windlass.testing.network import Shots
from windlass.testing.seeds import Crew
from windlass.testing.story import event_text
from windlass.types import Bounded, Eventual, Sequential

NUM_BATCHES = 4
SEEDS_PER_BATCH = 200
SOAK_SEEDS = 100_000
AIMED_SEEDS = 8
MAX_AIMED_SEEDS = 160

AIMED = replace(
    CALM, servers=(3, 3), replicas=(1, 1), workers=(2, 3), clock=(2, 3), breaks=3, joins=1, additions=2, drains=1,
    cuts=1, readers=1, aims=4, hurry=(0.03,), large=0.3,
)  # fmt: skip


def check_seeds(crew: Crew, seeds: range, limits: Limits) -> Shots:
    """Run these seeds; if any breaks a promise the test fails, with the story of the first that did."""
    tally = crew.explore(seeds, limits)
    assert tally.num_seeds == len(seeds)
    if tally.problems:
        seed = min(tally.problems)
        story = "\n".join(explore(seed, limits, tells=True).story[-200:])
        failed = f"{len(tally.problems)} of {len(seeds)} seeds failed: {', '.join(map(str, sorted(tally.problems)))}"
        told = f"The story, as explore({seed}, {limits}, tells=True) tells it:\n{story}"
        pytest.fail(f"{failed}\n{tally.problems[seed]}\n{told}")
    return tally.shots


@pytest.mark.parametrize("batch", range(NUM_BATCHES))
def test_every_pull_is_as_promised_whatever_breaks_dies_or_joins(batch: int, crew: Crew) -> None:
    shots = check_seeds(crew, range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH), Limits())
    assert shots.breaks > 80
    assert shots.drops > 15
    assert shots.slows > 40
    assert shots.partitions > 15
    assert shots.cuts > 15
    assert shots.copied.total() > 40
    assert shots.lost > 150
    assert shots.resends > 50
    assert shots.departures > 30
    assert shots.zombies > 20
    assert shots.joins > 25
    assert shots.crashes > 12
    assert shots.deposed > 12
    assert shots.additions > 25
    assert shots.drains > 15
    assert shots.restarts > 25
    assert shots.aimed.total() > 40


@pytest.mark.parametrize("policy", [Sequential(), Bounded(1), Eventual()])
def test_every_pull_is_as_promised_when_nothing_goes_wrong(
    policy: Sequential | Bounded | Eventual, crew: Crew
) -> None:
    shots = check_seeds(crew, range(30), replace(CALM, consistencies=(policy,)))
    assert (shots.lost, shots.resends) == (0, 0)


# --- links ------------------------------------------------------------------------------------------------------------


def test_links_that_break_all_the_time_cost_no_push_and_double_none(crew: Crew) -> None:
    shots = check_seeds(crew, range(70), replace(CALM, breaks=20))
    assert shots.resends > 80


def test_a_lost_frame_costs_no_push_though_its_sender_goes_on_sending(crew: Crew) -> None:
    shots = check_seeds(crew, range(100), replace(CALM, servers=(1, 3), drops=8, slows=3, readers=1, hurry=(0.05,)))
    assert shots.drops > 200
    assert shots.resends > 90


def test_a_message_that_comes_twice_counts_once_whatever_its_kind(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(2, 3), replicas=(1, 2), workers=(3, 4), clock=(2, 3), breaks=1, joins=1, departures=2,
        additions=2, drains=1, cuts=1, copies=50, readers=1, hurry=(0.07,), large=0.3,
    )  # fmt: skip
    shots = check_seeds(crew, range(120), limits)
    for kind in set(KINDS) - set(shots.copied) - {"Drain"}:
        shots.add(check_seeds(crew, range(60), replace(limits, kinds=(kind,))))
    assert set(shots.copied) == set(KINDS) - {"Drain"}, "an operator's word goes over no link"


def test_nodes_that_could_not_reach_each_other_go_on_when_they_can(crew: Crew) -> None:
    limits = replace(CALM, servers=(2, 3), replicas=(0, 2), partitions=3, slows=2, joins=1, readers=1, hurry=(0.03,))
    shots = check_seeds(crew, range(150), limits)
    assert shots.partitions > 130
    assert shots.deposed > 20  # the manager could not reach all of them, either


def test_servers_that_cannot_reach_each_other_stop_nobody_though_the_manager_reaches_both(crew: Crew) -> None:
    """The cuts stay until nobody waits, or long after everybody should have found a way around them."""
    limits = replace(CALM, servers=(2, 4), replicas=(0, 2), cuts=4, joins=1, readers=1, hurry=(0.03,))
    shots = check_seeds(crew, range(150), limits)
    assert shots.cuts > 180
    assert shots.rechains > 50
    assert shots.detours > 150


def test_servers_that_cannot_reach_each_other_lose_nothing_whatever_else_happens(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(2, 4), replicas=(1, 2), cuts=4, breaks=2, partitions=1, departures=1, zombies=1, joins=1,
        crashes=1, deposed=1, additions=1, drains=1, restarts=1, savers=1, aims=1, leases=0.2, hurry=(0.01, 0.03),
    )  # fmt: skip
    shots = check_seeds(crew, range(200), limits)
    assert shots.cuts > 130
    assert shots.rechains > 50
    assert shots.beheaded > 8
    assert shots.crashes > 50
    assert shots.restarts > 60


def test_replies_sent_from_where_they_lie_are_not_overwritten_before_they_are_read(crew: Crew) -> None:
    check_seeds(crew, range(30), Limits(large=1.0))


def test_a_driver_reads_one_and_the_same_round_everywhere(crew: Crew) -> None:
    check_seeds(crew, range(100), replace(CALM, departures=1, zombies=1, readers=1))


def test_a_driver_reads_one_and_the_same_round_everywhere_while_links_break(crew: Crew) -> None:
    check_seeds(crew, range(100), replace(CALM, servers=(2, 3), breaks=8, readers=1))


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_servers_that_die_or_are_taken_for_dead_lose_no_push_and_double_none(crew: Crew) -> None:
    limits = replace(CALM, servers=(3, 4), replicas=(1, 2), crashes=2, deposed=1, breaks=3, joins=1, readers=1)
    shots = check_seeds(crew, range(250), limits)
    assert shots.crashes > 90
    assert shots.deposed > 45
    assert shots.resends > 140


def test_a_server_may_die_with_rounds_that_nobody_else_has(crew: Crew) -> None:
    """Workers are many pushes ahead of what is acknowledged, and links between servers are slow."""
    limits = replace(
        CALM, servers=(3, 4), replicas=(1, 1), workers=(1, 2), keys=(1, 1), clock=(6, 8), consistencies=(Sequential(),),
        crashes=1, slows=4, breaks=2, hurry=(0.02, 0.05),
    )  # fmt: skip
    shots = check_seeds(crew, range(600, 1000), limits)
    assert shots.crashes > 130


def test_a_head_may_die_as_it_hears_that_a_round_is_closed_and_its_keeper_hear_of_that_late(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(3, 4), replicas=(1, 1), keys=(1, 1), clock=(3, 6), consistencies=(Sequential(),), aims=3,
        kinds=("Close",), whats=("crash",), slows=4, hurry=(0.05,),
    )  # fmt: skip
    shots = check_seeds(crew, range(250), limits)
    assert shots.aimed.total() > 60


def test_workers_and_servers_may_die_together(crew: Crew) -> None:
    limits = replace(CALM, servers=(2, 4), replicas=(1, 2), crashes=2, deposed=1, departures=2, zombies=1, joins=1)
    shots = check_seeds(crew, range(150), limits)
    assert shots.crashes > 40
    assert shots.departures > 55


def test_servers_may_come_and_go_in_the_middle_of_everything(crew: Crew) -> None:
    limits = replace(CALM, servers=(1, 3), replicas=(0, 2), breaks=2, joins=1, additions=2, drains=2, readers=1)
    shots = check_seeds(crew, range(150), limits)
    assert shots.additions > 70
    assert shots.drains > 45


def test_a_key_is_placed_anew_if_servers_die_before_they_hold_it_whatever_else_happens(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(2, 4), replicas=(0, 1), keys=(2, 3), orphans=2, crashes=1, breaks=2, departures=1, joins=1,
        additions=1, drains=1, restarts=2, slows=2, readers=1, hurry=(0.03, 0.1), tables=0.3,
    )  # fmt: skip
    shots = check_seeds(crew, range(500), limits)
    assert shots.orphans > 15
    assert shots.restarts > 300


def test_managers_may_die_and_be_followed_by_others_whatever_else_happens(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(2, 3), replicas=(0, 2), breaks=2, departures=1, joins=1, crashes=1, deposed=1, additions=1,
        drains=1, restarts=2, readers=1,
    )  # fmt: skip
    shots = check_seeds(crew, range(200), limits)
    assert shots.restarts > 75
    assert shots.crashes > 18
    assert shots.departures > 35


def check_each_is_hit(crew: Crew, kinds: tuple[str, ...], limits: Limits) -> Shots:
    """Until each of these kinds of message was hit, by the one thing that `limits` names, both before and after it was
    handled."""
    (what,) = limits.whats
    total = Shots()
    for kind in kinds:
        for first in range(0, MAX_AIMED_SEEDS, AIMED_SEEDS):
            shots = check_seeds(crew, range(first, first + AIMED_SEEDS), replace(limits, kinds=(kind,)))
            total.add(shots)
            if total.aimed[kind, BEFORE, what] and total.aimed[kind, AFTER, what]:
                break
    hit = {(kind, moment) for kind, moment, _ in total.aimed}
    assert {(kind, moment) for kind in kinds for moment in (BEFORE, AFTER)} - hit == set()
    return total


@pytest.mark.parametrize("what", ["crash", "stop", "restart", "join"])
def test_a_receiver_may_die_stop_or_be_replaced_and_others_join_before_and_after_every_kind_of_message(
    what: str, crew: Crew
) -> None:
    shots = check_each_is_hit(crew, KINDS, replace(AIMED, whats=(what,)))
    assert set(shots.flown) == set(KINDS), "aims.KINDS must name every kind of message that flows"
    assert shots.aimed.total() > 400


def test_all_of_that_and_lost_links_may_come_together(crew: Crew) -> None:
    shots = check_seeds(crew, range(200), AIMED)
    for what in WHATS:
        kinds = {kind for kind, _, done in shots.aimed if done == what}
        assert len(kinds) > 12, f"{what}: {sorted(kinds)}"


# --- the rig itself ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_one_round_everywhere_when_nothing_goes_wrong(crew: Crew) -> None:
    shots = check_seeds(crew, range(150), replace(CALM, clock=(4, 8), savers=1))
    assert shots.snapshots > 250
    assert shots.melted > 10


def test_a_snapshot_is_one_round_everywhere_whatever_breaks_dies_joins_or_leaves(crew: Crew) -> None:
    limits = replace(
        CALM, servers=(2, 4), replicas=(0, 2), breaks=3, departures=1, zombies=1, joins=1, crashes=2, deposed=1,
        additions=1, drains=1, restarts=1, savers=1,
    )  # fmt: skip
    shots = check_seeds(crew, range(400), limits)
    assert shots.snapshots > 350
    assert shots.melted > 20
    assert shots.crashes > 60
    assert shots.deposed > 30


def test_a_long_run_is_not_taken_for_one_that_never_ends() -> None:
    limits = replace(
        CALM, servers=(3, 3), replicas=(2, 2), workers=(4, 4), keys=(1, 1), clock=(250, 250),
        consistencies=(Eventual(),),
    )  # fmt: skip
    outcome = explore(1, limits)
    assert outcome.problem == ""
    assert outcome.shots.delivered > 20_000  # some runs in which all goes wrong take as many


def test_a_seed_repeats_its_run_message_by_message() -> None:
    for seed in (7, 106):
        first, second = (explore(seed, tells=True) for _ in range(2))
        assert first.story == second.story
        assert len(first.story) > 100
        assert not any(" at 0x" in line for line in first.story)  # the address of an object is another one each time
    assert event_text(Later((None, Advance()))) == "later Advance()"


def test_a_seed_is_the_same_run_in_a_crew_and_alone(crew: Crew) -> None:
    together = crew.explore(range(100, 120), Limits())
    alone = Shots()
    for seed in range(100, 120):
        alone.add(explore(seed).shots)
    assert together.shots == alone


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_pull_is_as_promised_over_a_long_exploration(crew: Crew) -> None:
    limits = Limits(
        servers=(2, 4), breaks=8, departures=2, zombies=2, joins=2, crashes=2, deposed=2, readers=1,
        additions=2, drains=2, restarts=2, drops=3, copies=4, slows=4, partitions=2, cuts=3, aims=3, savers=1,
    )  # fmt: skip
    check_seeds(crew, range(1_000_000, 1_000_000 + SOAK_SEEDS), limits)
