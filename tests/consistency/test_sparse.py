"""The same proofs over tables, and over keys with filters: what is promised of dense keys holds of these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.consistency.test_interleavings import AIMED, check_each_is_hit, check_seeds
from windlass.server.state import ServerState
from windlass.testing.aims import AFTER, BEFORE, KINDS, LEASED, SAVED
from windlass.testing.explorer import explore
from windlass.testing.limits import CALM, Limits
from windlass.testing.seeds import Crew
from windlass.testing.sparse_mutants import SPARSE_MUTANTS, Forgetful

TABLES = Limits(tables=1.0)
SPARSE = Limits(tables=0.6, filters=0.8, readers=1, savers=1)
MAX_SEEDS = 100


def test_every_pull_of_a_table_is_as_promised_whatever_breaks_dies_joins_or_moves(crew: Crew) -> None:
    shots = check_seeds(crew, range(150), TABLES)
    assert shots.failed_tables > 20
    assert shots.moved_tables > 20
    assert shots.taught_tables > 80
    assert shots.resends > 100
    assert min(shots.departures, shots.joins, shots.crashes, shots.deposed, shots.restarts) > 8


def test_every_pull_is_as_promised_where_keys_have_filters_whatever_happens(crew: Crew) -> None:
    shots = check_seeds(crew, range(150), SPARSE)
    assert shots.need_ids > 200
    assert shots.kept_back > 200
    assert shots.failed_tables > 10
    assert shots.moved_tables > 10
    assert shots.snapshots > 100
    assert shots.saved_residuals > 100


def test_replicas_let_the_same_rows_go_whatever_their_clocks_say(crew: Crew) -> None:
    shots = check_seeds(crew, range(80), Limits(tables=1.0, ageing=1.0, filters=0.3))
    assert shots.failed_tables > 8
    assert shots.taught_tables > 40


def test_leased_work_counts_once_in_every_row(crew: Crew) -> None:
    shots = check_seeds(crew, range(80), Limits(tables=0.8, filters=0.6, leases=1.0))
    assert shots.need_ids > 10
    assert shots.failed_tables > 8


def test_a_word_that_a_list_of_ids_is_missing_may_be_lost_come_twice_or_find_its_receiver_dead(crew: Crew) -> None:
    limits = replace(
        CALM, tables=1.0, filters=1.0, servers=(2, 3), replicas=(0, 1), breaks=4, drops=2, copies=10, joins=1,
        crashes=1, additions=1, aims=3, kinds=("NeedIds", "Push", "Pull"), hurry=(0.05,),
    )  # fmt: skip
    shots = check_seeds(crew, range(80), limits)
    assert shots.copied["NeedIds"] > 3
    assert {moment for kind, moment, _ in shots.aimed if kind == "NeedIds"} == {BEFORE, AFTER}


@pytest.mark.parametrize("what", ["crash", "stop", "restart", "join"])
def test_all_of_it_is_as_promised_whatever_happens_before_and_after_every_message_of_a_save(
    what: str, crew: Crew
) -> None:
    savers_own = {"Frozen", "Dumped"}  # nobody takes the place of a saver that died
    kinds = tuple(kind for kind in SAVED if what != "restart" or kind not in savers_own)
    limits = replace(AIMED, tables=0.6, filters=0.8, savers=1, whats=(what,))
    check_each_is_hit(crew, kinds, limits)


def test_every_kind_of_message_of_such_runs_is_known(crew: Crew) -> None:
    shots = check_seeds(crew, range(1000, 1040), replace(SPARSE, leases=0.2))
    assert set(shots.flown) <= {*KINDS, *SAVED, *LEASED}


@pytest.mark.parametrize("name", SPARSE_MUTANTS)
def test_the_explorer_finds_the_mistake_that_is_planted_in_a_server_of_tables(name: str, crew: Crew) -> None:
    mutant = SPARSE_MUTANTS[name]
    found = crew.find(range(MAX_SEEDS), mutant.limits, mutant.server, mutant.rules)
    assert found is not None, f"{name} ({mutant.server.__doc__}) passed {MAX_SEEDS} seeds"
    assert crew.explore(range(10), mutant.limits).problems == {}, "the real server passes there"


def test_a_filter_that_forgets_what_it_leaves_out_is_found_out(crew: Crew) -> None:
    limits = replace(CALM, tables=0.5, filters=1.0, chains=((Forgetful(0.5),),))
    assert crew.find(range(20), limits, ServerState, frozenset({"residual"})) is not None


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_pull_of_tables_is_as_promised_over_a_long_exploration(crew: Crew) -> None:
    limits = Limits(
        tables=0.7, filters=0.7, ageing=0.1, leases=0.15, servers=(2, 4), breaks=8, departures=2, zombies=2, joins=2,
        crashes=2, deposed=2, readers=1, additions=2, drains=2, restarts=2, drops=3, copies=4, slows=4, partitions=2,
        aims=3, savers=1,
    )  # fmt: skip
    check_seeds(crew, range(2_000_000, 2_030_000), limits)


def test_who_joins_while_a_round_is_saved_has_what_it_kept_back_after_that_round_saved() -> None:
    """In this one it is asked before it begins to push, and its first push is of the round that is saved."""
    limits = replace(CALM, servers=(1, 3), filters=1.0, savers=1, departures=2, joins=3)
    assert explore(88000139, limits).problem == ""
