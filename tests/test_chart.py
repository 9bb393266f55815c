"""Where shards go when servers come and go: evenly, and with little more moved than must be."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass._wire.messages import Recruited, Settled
from windlass.manager.chart import Chart, Charted, Steps
from windlass.types import (
    Generation,
    Incarnation,
    KeyId,
    KeySpec,
    Rule,
    Sequential,
    TableSpec,
    fitting_chunk_bytes,
)

SIZES = st.lists(st.integers(1, 60), min_size=4, max_size=12)


def spec(name: str, slots: int) -> KeySpec:
    return KeySpec(
        name=name, shape=(slots * 1024,), dtype="float32", reduce=Rule("sum"), update=Rule("assign"),
        consistency=Sequential(), chunk_bytes=4096,
    )  # fmt: skip


def started(num_servers: int, replicas: int, sizes: list[int]) -> Chart:
    chart = Chart(replicas, shards_per_server=4)
    for server in range(1, num_servers + 1):
        chart.join(Incarnation(server), server, is_late=False)
    for number, slots in enumerate(sizes, 1):
        chart.place(KeyId(number), spec(f"k{number}", slots)).is_placed = True
    return chart


def bring_about(chart: Chart) -> int:
    """Carry out all that the chart wants, as a cluster would. Bytes copied."""
    copied, under_way = 0, chart.plan()
    for _ in range(100_000):
        if not under_way.moves and not under_way.settles:
            return copied
        following = Steps()
        for move in under_way.moves:
            if move.learner:
                key, last = chart.keys[move.key], chart.keys[move.key].chains[move.shard][-1]
                copied += key.nbytes(move.shard)
                said = Recruited(key=move.key, shard=move.shard, learner=move.learner, term=9, number=9)
                steps = chart.recruited(said, last)
                assert steps is not None
                following.moves += [one for one in steps.moves if one.learner]
                following.settles += steps.settles
        for head, key_id, shard in under_way.settles:
            assert chart.settled(Settled(key=key_id, shard=shard, term=9, number=9), head) is not None
        more = chart.plan()
        under_way = Steps([*following.moves, *more.moves], [*following.settles, *more.settles])
    raise AssertionError("the chart never comes to rest")


def held(chart: Chart) -> dict[Incarnation, int]:
    found = dict.fromkeys(chart.servers, 0)
    for key in chart.keys.values():
        for shard, chain in enumerate(key.chains):
            assert len(set(chain)) == len(chain)
            for server in chain:
                found[server] += key.nbytes(shard)
    assert found == {server: chart.load.held.get(server, 0) for server in chart.servers}
    return found


def largest(chart: Chart) -> int:
    return max(key.nbytes(shard) for key in chart.keys.values() for shard in range(len(key.chains)))


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(1, 6), replicas=st.integers(0, 2), sizes=SIZES)
def test_a_server_that_joins_gets_its_share_and_little_more_is_copied(num_servers, replicas, sizes):
    chart = started(num_servers, replicas, sizes)
    missing = max(0, replicas + 1 - num_servers) > 0
    bring_about(chart)
    chart.generation = Generation(1, 2)
    chart.join(Incarnation(99), 99, is_late=True)
    copied = bring_about(chart)
    loads = held(chart)
    mean = sum(loads.values()) / len(loads)
    assert max(loads.values()) <= max(1.1 * mean, mean + largest(chart))  # as evenly as whole shards allow
    if not missing:
        assert copied <= mean + 2 * largest(chart)


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(2, 6), replicas=st.integers(0, 2), sizes=SIZES, pick=st.integers(0, 5))
def test_a_server_that_leaves_ends_empty_and_every_shard_keeps_its_copies(num_servers, replicas, sizes, pick):
    chart = started(num_servers, replicas, sizes)
    bring_about(chart)
    leaver = chart.servers[pick % num_servers]
    before = held(chart)[leaver]
    chart.leaving.add(leaver)
    copied = bring_about(chart)
    assert not chart.holds(leaver)
    assert copied <= before
    wanted = min(replicas + 1, num_servers - 1)
    assert all(len(chain) == wanted for key in chart.keys.values() for chain in key.chains)


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(2, 6), replicas=st.integers(1, 2), sizes=SIZES, pick=st.integers(0, 5))
def test_a_server_that_dies_is_replaced_in_every_chain(num_servers, replicas, sizes, pick):
    chart = started(num_servers, replicas, sizes)
    bring_about(chart)
    moves = chart.lose(chart.servers[pick % num_servers])
    assert all(move.chain for move in moves)
    bring_about(chart)
    wanted = min(replicas + 1, num_servers - 1)
    assert all(len(chain) == wanted for key in chart.keys.values() for chain in key.chains)
    assert all(not key.targets and not key.learners and not key.settling for key in chart.keys.values())


class Watched(dict[KeyId, Charted]):
    """Keys that must not be looked through."""

    def values(self):
        raise AssertionError("all keys are looked at")


def test_a_key_that_is_declared_costs_the_same_however_many_there_are():
    chart = started(num_servers=3, replicas=1, sizes=[5] * 20)
    bring_about(chart)
    chart.keys = Watched(chart.keys)
    chart.place(KeyId(21), spec("k21", 5)).is_placed = True
    steps = chart.plan()
    assert not steps.moves
    assert not steps.settles


def test_a_chain_that_is_too_short_is_found_wherever_it_comes_from():
    chart = started(num_servers=1, replicas=1, sizes=[3, 3])  # placed too short
    chart.join(Incarnation(2), 2, is_late=True)
    bring_about(chart)
    again = Chart(1, shards_per_server=4)  # noted down too short by another manager
    for server in (1, 2):
        again.join(Incarnation(server), server, is_late=False)
    again.restore(KeyId(1), spec("k1", 1), [(Incarnation(1),)], is_placed=True)
    bring_about(again)
    chart.join(Incarnation(3), 3, is_late=True)
    bring_about(chart)
    chart.lose(Incarnation(1))  # cut short
    bring_about(chart)
    chains = [chain for one in (chart, again) for key in one.keys.values() for chain in key.chains]
    assert {len(chain) for chain in chains} == {2}
    again.drop(KeyId(1))
    assert not again.plan().moves


# --- as evenly as is promised -----------------------------------------------------------------------------------------

MODELS = st.lists(st.integers(20, 400), min_size=1, max_size=5)


def large(num_servers: int, replicas: int, megabytes: list[int]) -> Chart:
    """Keys as workers declare them where nobody says how they are to be cut."""
    chart = Chart(replicas)
    for server in range(1, num_servers + 1):
        chart.join(Incarnation(server), server, is_late=False)
    for number, size in enumerate(megabytes, 1):
        chunk_bytes, like = fitting_chunk_bytes(size * 1_000_000), spec(f"k{number}", 1)
        one = msgspec.structs.replace(like, shape=(size * 250_000,), chunk_bytes=chunk_bytes)
        chart.place(KeyId(number), one).is_placed = True
    return chart


def check_even(chart: Chart) -> None:
    """Within a tenth of the mean, and a slot."""
    loads = held(chart)
    mean = sum(loads.values()) / len(loads)
    slot = max(key.spec.chunk_bytes for key in chart.keys.values())
    assert max(loads.values()) <= 1.1 * mean + slot, loads


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(1, 8), replicas=st.integers(0, 2), megabytes=MODELS, joining=st.integers(1, 8))
def test_servers_hold_about_the_same_until_they_are_twice_as_many(num_servers, replicas, megabytes, joining):
    chart = large(num_servers, replicas, megabytes)
    bring_about(chart)
    check_even(chart)
    for late in range(min(joining, num_servers)):
        chart.generation = Generation(1, 2 + late)
        chart.join(Incarnation(90 + late), 90 + late, is_late=True)
        bring_about(chart)
        check_even(chart)


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(2, 8), replicas=st.integers(0, 2), megabytes=MODELS, pick=st.integers(0, 7))
def test_servers_hold_about_the_same_when_one_has_left(num_servers, replicas, megabytes, pick):
    chart = large(num_servers, replicas, megabytes)
    bring_about(chart)
    leaver = chart.servers[pick % num_servers]
    chart.leaving.add(leaver)
    bring_about(chart)
    chart.lose(leaver)
    bring_about(chart)
    check_even(chart)


def test_a_model_of_20_mb_lies_evenly_on_two_to_six_servers():
    chart = large(3, 1, [20])
    for count in (3, 4, 5, 6):
        if count > 3:
            chart.generation = Generation(1, count)
            chart.join(Incarnation(count), count, is_late=True)
        bring_about(chart)
        loads = held(chart).values()
        assert max(loads) <= 1.1 * sum(loads) / count


def test_a_table_lies_evenly_on_two_to_four_servers():
    table = TableSpec(dim=16, init=Rule("zeros"))
    for replicas in (0, 1):
        chart = large(2, replicas, [])
        one = msgspec.structs.replace(spec("emb", 1), shape=(0, 16), table=table)
        chart.place(KeyId(1), one).is_placed = True
        for count in (2, 3, 4):
            if count > 2:
                chart.generation = Generation(1, count)
                chart.join(Incarnation(count), count, is_late=True)
            bring_about(chart)
            loads = held(chart).values()
            assert max(loads) <= 1.1 * sum(loads) / count, (replicas, count)
