"""What a plan says: read from words, refused in words, drawn from a seed. Nothing runs here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.chaos.obstacles import Situation, obstacle
from windlass.chaos.plan import (
    LONG_LEASES,
    SHORT_LEASES,
    Deed,
    Plan,
    Target,
    in_words,
    parse_delay,
    parse_seconds,
    parse_share,
    parse_sides,
    parse_target,
    schedule,
)
from windlass.errors import UsageError
from windlass.types import Role

SERVER_1 = parse_target("server:1")


# --- words ------------------------------------------------------------------------------------------------------------


def test_targets_are_seats_or_any_of_a_role() -> None:
    assert parse_target("server:1") == Target(Role.SERVER, 1)
    assert parse_target("worker:any") == Target(Role.WORKER)
    assert parse_target("manager").name == "manager"
    assert SERVER_1.name == "server-1"


@pytest.mark.parametrize("text", ["server", "server:", "server:-1", "client:1", "manager:0", "server:1.5", ""])
def test_a_target_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expects server:N, worker:N, server:any, worker:any or manager, got"):
        parse_target(text)


@given(st.lists(st.tuples(st.sampled_from(["server", "worker"]), st.integers(0, 99)), min_size=2, unique=True),
       st.data())  # fmt: skip
def test_a_partition_reads_as_it_is_written(nodes: list[tuple[str, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(nodes) - 1))
    sides = tuple(tuple(Target(Role(role), rank) for role, rank in side) for side in (nodes[:cut], nodes[cut:]))
    assert parse_sides(in_words(sides)) == sides


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server:0,worker:1", "it has no bar"),
        ("server:0|server:0", "a node is on two sides"),
        ("server:any|server:1", "'any' is on no side"),
    ],
)
def test_a_partition_that_parts_nobody_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_sides(text)


def test_shares_and_times_have_units() -> None:
    assert parse_share("5%") == parse_share("0.05") == 0.05
    assert [parse_seconds(text) for text in ("20ms", "5s", "5", "1.5m", "2h")] == [0.02, 5.0, 5.0, 90.0, 7200.0]


@pytest.mark.parametrize(("text", "number"), [("20", "20"), (" 0.5 ", "0.5"), (".5", ".5")])
def test_a_delay_without_its_unit_is_refused_with_what_may_be_meant(text: str, number: str) -> None:
    with pytest.raises(UsageError, match=f"delay expects a time with its unit.*: {number}ms or {number}s is meant"):
        parse_delay(text)
    assert [parse_delay(one) for one in ("20ms", "0.5s", "0", "0ms")] == [0.02, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("text", ["120%", "100%", "-1%", "1.0", "many", ""])
def test_a_share_of_all_or_more_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="drop expects a share from 0% to below 100%"):
        parse_share(text)


@pytest.mark.parametrize("text", ["5 parsecs", "-5s", "s", ""])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a time"):
        parse_seconds(text)


def test_a_plan_without_any_fault_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one fault"):
        Plan()


def test_a_plan_for_a_node_that_is_not_there_is_refused() -> None:
    plan = Plan(kill=(parse_target("server:7"),))
    with pytest.raises(UsageError, match=r"server:7.*the cluster has 3 servers \(server:0 to server:2\)"):
        plan.check(num_servers=3, num_workers=1)
    plan.check(num_servers=8, num_workers=1)


def test_killing_servers_without_replicas_is_warned_of() -> None:
    (text,) = Plan(kill=(SERVER_1,)).warnings(replicas=0, lease_seconds=3.0)
    assert "will be lost, by design" in text
    assert Plan(kill=(SERVER_1,)).warnings(replicas=1, lease_seconds=3.0) == []
    assert "may be taken for dead" in Plan(delay_seconds=1.0).warnings(replicas=1, lease_seconds=3.0)[0]


# --- the order --------------------------------------------------------------------------------------------------------


def _plan(seed: int, seconds: float = 60.0) -> Plan:
    targets = tuple(map(parse_target, ("server:0", "server:1", "worker:2")))
    return Plan(kill=targets, stop=targets, partitions=(parse_sides("server:0|server:1"),), seconds=seconds, seed=seed)


@given(st.integers(0, 2**40))
def test_a_seed_draws_the_same_order_every_time(seed: int) -> None:
    assert schedule(_plan(seed), 3.0) == schedule(_plan(seed), 3.0)


def test_seeds_draw_different_orders() -> None:
    assert len({tuple(schedule(_plan(seed), 3.0)) for seed in range(20)}) == 20


@given(st.integers(0, 2**40), st.floats(0.1, 200.0))
def test_every_fault_comes_once_before_any_comes_again(seed: int, seconds: float) -> None:
    shots = schedule(_plan(seed, seconds), 3.0)
    first = min(5.0, seconds) / 2
    assert [shot.at for shot in shots] == [first + 5.0 * n for n in range(len(shots))]
    assert shots[-1].at < seconds <= shots[-1].at + 5.0
    for start in range(0, len(shots) - 6, 7):
        assert len({str(shot) for shot in shots[start : start + 7]}) == 7


def test_the_first_fault_leaves_the_job_time_to_work() -> None:
    assert [shot.at for shot in schedule(_plan(1, 12.0), 3.0)] == [2.5, 7.5]
    assert [shot.at for shot in schedule(_plan(1, 1.0), 3.0)] == [0.5]


def test_nodes_are_held_for_less_than_a_lease_and_for_more_by_turns() -> None:
    held = [shot.held_seconds / 3.0 for shot in schedule(_plan(1, 600.0), 3.0) if shot.deed is not Deed.KILL]
    assert all(SHORT_LEASES[0] <= one <= SHORT_LEASES[1] or LONG_LEASES[0] <= one <= LONG_LEASES[1] for one in held)
    assert [one > 1 for one in held] == [n % 2 == (held[0] < 1) for n in range(len(held))]


def test_conditions_alone_need_no_shots() -> None:
    assert schedule(Plan(drop=0.1), 3.0) == []


# --- what may be fired now --------------------------------------------------------------------------------------------

ALIVE = frozenset({"manager", "server-0", "server-1", "server-2", "worker-0"})
WHOLE = (("server-0", "server-1"), ("server-1", "server-2"))


def test_a_server_may_be_killed_while_every_shard_has_its_replicas() -> None:
    assert obstacle(["server-1"], True, Situation(ALIVE, WHOLE, 1), 0.0) == ""


def test_a_server_is_spared_while_a_shard_is_under_replicated() -> None:
    there = Situation(ALIVE, (("server-0",), ("server-1", "server-2")), 1)
    assert obstacle(["server-1"], True, there, 0.0).startswith("1 of 2 shards are under-replicated")
    assert obstacle(["server-1"], False, there, 0.0) == ""
    assert obstacle(["worker-0"], True, there, 0.0) == ""


def test_without_replicas_nobody_is_spared() -> None:
    assert obstacle(["server-1"], True, Situation(ALIVE, (("server-1",),), 0), 0.0) == ""


def test_a_server_is_spared_while_another_of_a_chain_is_stopped() -> None:
    there = Situation(ALIVE, WHOLE, 1, disturbed=frozenset({"server-0"}))
    assert obstacle(["server-1"], True, there, 0.0) == "server-0 does not answer, and may have to be replaced first"
    assert obstacle(["server-0"], True, there, 0.0) == "server-0 is still stopped or kept apart"


def test_all_copies_of_a_shard_are_not_cut_off_at_once() -> None:
    reason = obstacle(["manager", "server-0", "server-1"], True, Situation(ALIVE, WHOLE, 1), 0.0)
    assert reason == "server-0, server-1 hold all copies of a shard"


def test_who_is_not_there_cannot_be_hit() -> None:
    assert obstacle(["server-9"], True, Situation(ALIVE, WHOLE, 1), 0.0) == "server-9 is not there"


def test_the_manager_is_not_killed_more_often_than_it_is_started_again() -> None:
    there = Situation(ALIVE, WHOLE, 1, manager_kills=(0.0, 1.0, 2.0, 3.0, 4.0))
    assert "once more would end the job" in obstacle(["manager"], True, there, 50.0)
    assert obstacle(["manager"], True, there, 60.5) == ""
