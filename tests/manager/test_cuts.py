"""Servers that cannot reach each other, though the manager reaches both: whom it believes, and what it does then."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.test_chart import SIZES, bring_about, held, spec, started
from windlass._wire import messages as m
from windlass._wire.effects import Log, Received, Send
from windlass.manager.cuts import FIRST_PAUSE_LEASES, Cuts, joined, pair
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.types import Generation, Incarnation, Role

LEASE = 2.0
A, B, C = Incarnation(1), Incarnation(2), Incarnation(3)
LINK = pair(A, B)


def hear(cuts: Cuts, who: Incarnation, unreachable: tuple[Incarnation, ...], now: float, late: float = 0.0) -> bool:
    """Its beat, that was `late` by so much."""
    return cuts.hear(who, m.Beat(sent=0.0, unreachable=unreachable, echo=now - late), now)


def believe(cuts: Cuts, now: float = 0.0) -> None:
    """A names B until that is believed."""
    for _ in range(3):
        hear(cuts, A, (B,), now)
        hear(cuts, B, (), now)
    assert cuts.certain == {LINK}


# --- whom to believe --------------------------------------------------------------------------------------------------


def test_a_word_is_believed_when_it_is_repeated_and_the_other_was_heard_in_between() -> None:
    cuts = Cuts(LEASE)
    assert hear(cuts, A, (B,), 0.0)
    assert (cuts.certain, cuts.doubted) == (set(), {LINK})
    believe(cuts)


def test_nobody_is_blamed_for_not_answering_somebody_who_is_silent_to_all() -> None:
    """A server that is stopped, or compiles, answers nobody; the manager has its own lease for that."""
    cuts = Cuts(LEASE)
    hear(cuts, B, (), 0.0)
    for _ in range(50):
        hear(cuts, A, (B,), 0.0)
    assert cuts.certain == set()
    hear(cuts, B, (), 0.0)  # it wakes up, and answers A
    hear(cuts, A, (), 0.0)
    assert (cuts.certain, cuts.doubted) == (set(), set())


def test_what_was_long_under_way_proves_nothing() -> None:
    """The manager was stopped, and finds the last beats of a server that has died meanwhile, and the complaints of the
    others. If it took that one for cut off, it might choose the dead over the living."""
    cuts = Cuts(LEASE)
    for _ in range(10):
        hear(cuts, A, (B,), 10.0, late=0.1)
        hear(cuts, B, (), 10.0, late=0.6 * LEASE)
    assert cuts.certain == set()
    for _ in range(10):
        hear(cuts, A, (B,), 10.0, late=0.6 * LEASE)
        hear(cuts, B, (), 10.0, late=0.1)
    assert cuts.certain == set()


def test_a_link_that_has_cost_a_place_is_not_trusted_before_it_was_whole_for_some_time() -> None:
    cuts = Cuts(LEASE)
    believe(cuts)
    cuts.scar([LINK])
    hear(cuts, A, (), 1.0)
    assert (cuts.certain, cuts.doubted) == (set(), {LINK})
    assert not hear(cuts, A, (), 1.0 + 0.9 * FIRST_PAUSE_LEASES * LEASE)
    assert hear(cuts, B, (), 1.0 + FIRST_PAUSE_LEASES * LEASE)  # anybody's beat will do: time has passed
    assert cuts.doubted == set()


@pytest.mark.parametrize(("whole_leases", "most"), [(1, 1), (3, 2), (20, 5), (100, 10)])
def test_a_link_that_comes_and_goes_changes_chains_less_and_less_often(whole_leases: int, most: int) -> None:
    cuts, is_used, num_changes = Cuts(LEASE), True, 0
    for beat in range(8 * 1000):  # a thousand leases: it is whole for some, and cut for two, and so on
        is_cut = beat // 8 % (whole_leases + 2) >= whole_leases
        for who, other in ((A, B), (B, A)):
            hear(cuts, who, (other,) if is_cut else (), beat * LEASE / 8)
        if is_used and LINK in cuts.certain:
            num_changes, is_used = num_changes + 1, False
            cuts.scar(cuts.certain)
        is_used = is_used or LINK not in cuts.doubted  # the manager asks the other to join again at once
    assert 0 < num_changes <= most


def test_each_cut_of_the_same_link_is_remembered_for_twice_as_long() -> None:
    cuts, now, pauses = Cuts(LEASE), 0.0, []
    for _ in range(7):
        believe(cuts, now)
        cuts.scar([LINK])
        hear(cuts, A, (), now)
        began = now
        while cuts.doubted:
            now += LEASE / 4
            hear(cuts, A, (), now)
        pauses.append((now - began) / LEASE)
    assert pauses == [2, 4, 8, 16, 32, 64, 64]


def test_what_a_server_said_is_forgotten_when_it_is_gone() -> None:
    for gone in (A, B):
        cuts = Cuts(LEASE)
        believe(cuts)
        cuts.scar([LINK])
        cuts.lose(gone)
        assert (cuts.certain, cuts.doubted) == (set(), set())


# --- what becomes of chains -------------------------------------------------------------------------------------------

CUTS = st.sets(st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda one: one[0] < one[1]), max_size=6)


@given(chain=st.permutations([1, 2, 3, 4, 5]), cuts=CUTS)
def test_a_chain_keeps_its_head_its_order_and_every_member_that_it_can(chain: Any, cuts: Any) -> None:
    kept = joined(tuple(chain), cuts)
    assert kept[0] == chain[0]
    assert list(kept) == [server for server in chain if server in kept]
    assert not any(pair(*link) in cuts for link in pairwise(kept))
    assert cuts or kept == tuple(chain)


@settings(max_examples=60, deadline=None)
@given(num_servers=st.integers(2, 5), replicas=st.integers(1, 2), sizes=SIZES, cuts=CUTS)
def test_chains_come_to_rest_off_the_cuts_with_the_heads_they_had(
    num_servers: int, replicas: int, sizes: list[int], cuts: Any
) -> None:
    chart = started(num_servers, replicas, sizes)
    bring_about(chart)
    heads = [chain[0] for key in chart.keys.values() for chain in key.chains]
    chart.doubted = cuts
    chart.generation = Generation(1, 2)
    chart.part(cuts)
    assert chart.part(cuts).moves == []  # once is enough
    bring_about(chart)
    chains = [chain for key in chart.keys.values() for chain in key.chains]
    assert [chain[0] for chain in chains] == heads
    assert not any(pair(*link) in cuts for chain in chains for link in pairwise(chain))
    for chain in chains:  # as many copies as there can be
        reached = {server for server in chart.servers if pair(chain[-1], server) not in cuts}
        assert len(chain) == replicas + 1 or reached <= set(chain)
    held(chart)
    chart.doubted = set()
    bring_about(chart)
    assert {len(chain) for key in chart.keys.values() for chain in key.chains} == {min(replicas + 1, num_servers)}


@settings(max_examples=40, deadline=None)
@given(sizes=SIZES, cuts=CUTS)
def test_servers_come_and_go_without_chains_over_a_cut(sizes: list[int], cuts: Any) -> None:
    chart = started(4, 1, sizes)
    chart.doubted = cuts
    chart.part(cuts)
    bring_about(chart)
    chart.generation = Generation(1, 2)
    chart.join(Incarnation(5), 5, is_late=True)
    bring_about(chart)
    chart.leaving.add(chart.servers[0])
    bring_about(chart)
    chains = [chain for key in chart.keys.values() for chain in key.chains]
    assert not any(pair(*link) in cuts for chain in chains for link in pairwise(chain))


# --- the manager ------------------------------------------------------------------------------------------------------


def _manager(servers: int, replicas: int) -> ManagerState:
    manager = ManagerState(ManagerConfig(num_servers=servers, num_workers=0, replicas=replicas, lease_seconds=LEASE))
    for number in range(1, servers + 1):
        join = m.Join(role=Role.SERVER, pid=number, addresses=(), rank=number - 1)
        manager.handle(Received(Incarnation(number), join), 0.0)
    told = manager.handle(Received(A, m.Declare(request=1, spec=spec("w", 1))), 0.0)
    for send in told:
        if isinstance(send, Send) and isinstance(send.message, m.Place):
            manager.handle(Received(send.peer, m.Placed(key=send.message.key)), 0.0)
    return manager


def _report(manager: ManagerState, times: int = 3) -> list[Any]:
    effects: list[Any] = []
    for _ in range(times):
        for who, unreachable in ((A, (B,)), (B, (A,)), (C, ())):
            if who in manager.nodes:
                effects += manager.handle(Received(who, m.Beat(sent=0.0, unreachable=unreachable, echo=0.0)), 0.0)
    return effects


def test_the_manager_says_whom_a_shard_goes_on_without_and_why() -> None:
    manager = _manager(3, 1)
    (charted,) = manager.chart.keys.values()
    assert charted.chains == [(A, B)]
    effects = _report(manager)
    (warning,) = [one.text for one in effects if isinstance(one, Log) and one.level == "warning"]
    assert warning == (
        "server-0 and server-1 do not reach each other, though all reach the manager; shards go on: 1 without server-1"
    )
    assert charted.chains == [(A,)]
    assert charted.learners == {0: C}
    assert manager.chart.servers == [A, B, C]  # nobody is out
    assert manager.generation.number == 2
    _report(manager, 20)
    assert manager.generation.number == 2


def test_a_learner_that_its_teacher_cannot_reach_is_not_waited_for() -> None:
    manager = _manager(3, 1)
    (charted,) = manager.chart.keys.values()
    _report(manager)
    for _ in range(3):
        manager.handle(Received(C, m.Beat(sent=0.0, unreachable=(A,), echo=0.0)), 0.0)
        manager.handle(Received(A, m.Beat(sent=0.0, unreachable=(B,), echo=0.0)), 0.0)
    assert (charted.chains, charted.learners) == ([(A,)], {})


def test_words_of_rounds_are_passed_on_between_servers_and_to_nobody_else() -> None:
    manager = _manager(2, 0)
    close = m.Close(key=next(iter(manager.chart.keys)), shard=0, round=1, members=())
    passed = manager.handle(Received(A, m.PassOn(peer=B, message=close)), 0.0)
    assert passed == [Send(B, m.PassOn(peer=A, message=close))]
    for sender, receiver in ((A, Incarnation(77)), (Incarnation(77), B)):
        assert manager.handle(Received(sender, m.PassOn(peer=receiver, message=close)), 0.0) == []
