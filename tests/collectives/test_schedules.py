"""A schedule is right by itself: followed symbol by symbol it brings every contribution everywhere, exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.collectives import schedule as schedules
from windlass.collectives.schedule import Action, Schedule, Step, cut, parts_of
from windlass.collectives.strategies import Strategy, check_machines, check_strategy, plan
from windlass.errors import UsageError

NAMED = [strategy for strategy in Strategy if strategy is not Strategy.AUTO]
MB, GB = 1e6, 1e9
GRADIENT = 40_000_000  # float32 elements: 160 MB

machines_of = st.integers(1, 9).flatmap(
    lambda members: st.lists(st.integers(0, 3), min_size=members, max_size=members).map(
        lambda homes: [[m for m, home in enumerate(homes) if home == each] for each in sorted(set(homes))]
    )
)
sizes = st.integers(0, 40)


def follow(schedule: Schedule, held: dict[int, list[list[int]]], steps: tuple[Step, ...]) -> None:
    """Carry out steps on what each holder has of each element: a list of the members whose contribution is in it."""
    for step in steps:
        before = {holder: [list(each) for each in elements] for holder, elements in held.items()}
        for source, target, lo, hi, action in step:
            for i in range(lo, hi):
                # All of a step may be under way at once: what is sent is what was there before it.
                sent = before[source][i]
                held[target][i] = held[target][i] + sent if action is Action.REDUCE else list(sent)


def start(members: int, size: int) -> dict[int, list[list[int]]]:
    return {member: [[member] for _ in range(size)] for member in range(members)} | {members: [[] for _ in range(size)]}


@given(strategy=st.sampled_from(NAMED), machines=machines_of, size=sizes)
def test_an_all_reduce_brings_every_contribution_everywhere_once(strategy, machines, size):
    members = sum(map(len, machines))
    schedule = plan(strategy, members, size, machines)
    held = start(members, size)
    follow(schedule, held, schedule.reduce)
    owned = [0] * size
    for owner, lo, hi in schedule.owners:
        for i in range(lo, hi):
            owned[i] += 1
            assert sorted(held[owner][i]) == list(range(members))
    assert owned == [1] * size  # each element is finished by one owner: what mean divides, it divides once
    follow(schedule, held, schedule.gather)
    for member in range(members):
        assert [sorted(each) for each in held[member]] == [list(range(members))] * size


@given(strategy=st.sampled_from(NAMED), machines=machines_of, size=sizes, root=st.integers(0, 8))
def test_the_halves_of_an_all_reduce_scatter_gather_and_broadcast(strategy, machines, size, root):
    members = sum(map(len, machines))
    whole = plan(strategy, members, size, machines)
    held = start(members, size)
    follow(whole, held, schedules.reduce_scatter(whole).steps)
    for member, lo, hi in parts_of(members, size):
        assert [sorted(each) for each in held[member][lo:hi]] == [list(range(members))] * (hi - lo)
    held = start(members, size)
    follow(whole, held, schedules.all_gather(whole).steps)
    parts = [[member] for member, lo, hi in parts_of(members, size) for _ in range(lo, hi)]
    assert all(held[member] == parts for member in range(members))
    held = start(members, size)
    follow(whole, held, schedules.broadcast(whole, root % members).steps)
    assert all(held[member] == [[root % members]] * size for member in range(members))


@given(strategy=st.sampled_from(NAMED), machines=machines_of, size=sizes)
def test_the_transfers_of_a_step_do_not_disturb_each_other(strategy, machines, size):
    members = sum(map(len, machines))
    for step in plan(strategy, members, size, machines).steps:
        reads = {(each.source, i) for each in step for i in range(each.lo, each.hi)}
        writes = {(each.target, i) for each in step for i in range(each.lo, each.hi)}
        assert reads.isdisjoint(writes)
        assert all(each.lo < each.hi and each.source != each.target for each in step)


@given(lo=st.integers(0, 9), length=st.integers(0, 99), parts=st.integers(1, 12))
def test_a_cut_covers_everything_in_order_with_lengths_that_differ_by_one_at_most(lo, length, parts):
    spans = cut(lo, lo + length, parts)
    assert len(spans) == parts
    assert [i for a, b in spans for i in range(a, b)] == list(range(lo, lo + length))
    assert max(b - a for a, b in spans) - min(b - a for a, b in spans) <= 1


@pytest.mark.parametrize(("strategy", "milliseconds"), [("root", 60), ("cpu", 80), ("sharded", 15)])
def test_four_gpus_on_a_pcie_switch_take_the_times_of_the_textbook(strategy, milliseconds):
    # 160 MB of gradients, 16 GB/s to and from every port of the switch.
    schedule = plan(Strategy(strategy), 4, GRADIENT)
    assert schedule.port_elements() * 4 / (16 * GB) * 1e3 == pytest.approx(milliseconds)


def test_a_ring_of_eight_gpus_takes_about_six_milliseconds_over_nvlink():
    # Two rings, of double and of single bandwidth: three links of 18 GB/s out of every device.
    schedule = plan(Strategy.RING, 8, GRADIENT)
    assert schedule.link_elements() * 4 / (3 * 18 * GB) * 1e3 == pytest.approx(2 * 7 / 8 * 160 / 54, rel=1e-6)
    assert 5 < schedule.link_elements() * 4 / (3 * 18 * GB) * 1e3 < 6


@pytest.mark.parametrize("members", [2, 4, 8, 16])
def test_what_each_strategy_costs(members):
    size, n = 3600 * members, members
    costs = {each: plan(each, n, size, None) for each in NAMED}
    assert costs[Strategy.ROOT].port_elements() == 2 * (n - 1) * size
    assert costs[Strategy.CPU].port_elements() == 2 * n * size
    for even in (Strategy.SHARDED, Strategy.RING, Strategy.BIDIRECTIONAL_RING):
        assert costs[even].port_elements() == 2 * (n - 1) * size // n
    assert len(costs[Strategy.RING].steps) == 2 * (n - 1)
    assert costs[Strategy.RING].link_elements() == 2 * (n - 1) * size // n
    if n > 2:  # with two, both directions go over the same link
        assert costs[Strategy.BIDIRECTIONAL_RING].link_elements() == (n - 1) * size // n
    assert len(costs[Strategy.TREE].steps) == 2 * (n - 1).bit_length()
    assert costs[Strategy.TREE].port_elements() == 2 * (n - 1).bit_length() * size


@given(per_machine=st.integers(1, 4), machines=st.integers(2, 4))
@settings(max_examples=20)
def test_between_machines_hierarchical_sends_what_one_member_would(per_machine, machines):
    members, size = per_machine * machines, 12 * 12
    grouped = [list(range(m * per_machine, (m + 1) * per_machine)) for m in range(machines)]
    home = {member: m for m, group in enumerate(grouped) for member in group}
    sent = [0] * machines
    for step in plan(Strategy.HIERARCHICAL, members, size, grouped).steps:
        for each in step:
            if home[each.source] != home[each.target]:
                sent[home[each.source]] += each.hi - each.lo
    assert max(sent) <= 2 * (machines - 1) * size / machines + 2 * (machines - 1) * per_machine


def test_an_unknown_strategy_and_impossible_machines_are_told():
    with pytest.raises(UsageError, match=r"strategy expects one of 'auto', 'root', .* got 'star'"):
        check_strategy("star")
    for machines in ([[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1, 3]]):
        with pytest.raises(UsageError, match="every rank below 3 on exactly one machine"):
            check_machines(machines, 3)


def test_a_schedule_reads_as_the_textbook_draws_it():
    assert str(plan("ring", 3, 3)) == (
        "3 members, 3 elements\n"
        "reduce 1: 0→1 [2, 3)  1→2 [0, 1)  2→0 [1, 2)\n"
        "reduce 2: 0→1 [1, 2)  1→2 [2, 3)  2→0 [0, 1)\n"
        "gather 1: 0→1 [0, 1)  1→2 [1, 2)  2→0 [2, 3)\n"
        "gather 2: 0→1 [2, 3)  1→2 [0, 1)  2→0 [1, 2)"
    )
    assert str(plan("cpu", 2, 4)).splitlines()[1:] == [
        "reduce 1: 0→host [0, 4)  1→host [0, 4)", "gather 1: host→0 [0, 4)  host→1 [0, 4)"
    ]
    with pytest.raises(UsageError, match="'auto' is each backend's own choice"):
        plan("auto", 2, 4)
