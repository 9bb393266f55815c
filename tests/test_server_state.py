"""The server's state machine by itself: no socket, no thread, no clock."""

from __future__ import annotations

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import LinkDown, LinkUp, Received, Send, Tick
from windlass.server.state import ServerConfig, ServerState
from windlass.types import MANAGER, Heap, Incarnation, KeyId, KeySpec, Node, Role, Rule, Sequential

ME, KEY = Incarnation(9), KeyId(1)
W0, W1 = Incarnation(1), Incarnation(2)
SPEC = KeySpec(
    name="w",
    shape=(4096,),
    dtype="float64",
    reduce=Rule("sum"),
    update=Rule("add"),
    consistency=Sequential(),
    chunk_bytes=1 << 20,
)
WHOLE = ((0, 0, 4096),)


def node(who: Incarnation, role: Role, rank: int) -> Node:
    return Node(name=f"{role}-{rank}", role=role, incarnation=who, rank=rank, pid=0, addresses=())


def membership(number: int, *workers: Incarnation) -> Received:
    nodes = (node(ME, Role.SERVER, 0), *(node(who, Role.WORKER, who - 1) for who in workers))
    return Received(MANAGER, m.Membership(term=1, number=number, nodes=nodes, reason="test"))


def server(*, has_value: bool = True) -> ServerState:
    state = ServerState(ME, Heap(), ServerConfig(join=m.Join(role=Role.SERVER, pid=0, addresses=()), manager=()))
    state.handle(membership(1, W0, W1), 0)
    state.handle(Received(MANAGER, m.Place(key=KEY, spec=SPEC, chains=((ME,),))), 0)
    if has_value:
        init = m.Init(request=1, key=KEY, shard=0, pieces=WHOLE)
        state.handle(Received(W0, init, (np.zeros(4096).view(np.uint8),)), 0)
    return state


def push(who: Incarnation, clock: int, value: float = 1.0, pull: int = 0, pieces=WHOLE) -> Received:
    message = m.Push(key=KEY, shard=0, clock=clock, since=0, part=0, parts=1, pieces=pieces, pull=pull)
    return Received(who, message, (np.full(4096, value).view(np.uint8),))


def sent(effects: list, kind: type) -> list:
    return [
        (effect.peer, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def test_a_round_closes_when_every_worker_has_pushed_and_all_are_acknowledged():
    state = server()
    assert sent(state.handle(push(W0, 1), 0), m.Ack) == []
    acks = sent(state.handle(push(W1, 1), 0), m.Ack)
    assert [(who, ack.clock) for who, ack in acks] == [(W0, 1), (W1, 1)]


def test_resent_push_is_acked_again_but_counted_once():
    state = server()
    state.handle(push(W0, 1), 0)
    assert sent(state.handle(push(W0, 1), 0), m.Ack) == []  # staged: not applied, so not acknowledged
    state.handle(push(W1, 1), 0)
    assert sent(state.handle(push(W0, 1), 0), m.Ack) == [(W0, m.Ack(key=KEY, shard=0, clock=1))]
    assert state.keys[KEY].shards[0].slots[0].content.dense.block.array.view(np.float64)[0] == 2.0


def test_a_push_that_leaves_a_gap_is_not_counted_and_not_acknowledged():
    state = server()
    assert sent(state.handle(push(W0, 2), 0), m.Ack) == []
    assert sent(state.handle(push(W1, 1), 0), m.Ack) == []
    assert len(sent(state.handle(push(W0, 1), 0), m.Ack)) == 2


def test_a_departed_workers_whole_push_counts_and_the_round_closes_without_waiting_for_it():
    state = server()
    state.handle(push(W0, 1, 5.0), 0)
    state.handle(membership(2, W1), 0)
    assert (W1, m.Ack(key=KEY, shard=0, clock=1)) in sent(state.handle(push(W1, 1, 7.0), 0), m.Ack)
    assert state.keys[KEY].shards[0].slots[0].content.dense.block.array.view(np.float64)[0] == 12.0


def test_whoever_has_left_the_generation_is_refused_and_never_acknowledged():
    state = server()
    state.handle(membership(2, W1), 0)
    effects = state.handle(push(W0, 1), 0)
    assert sent(effects, m.Ack) == []
    assert any("not in this generation" in getattr(effect, "text", "") for effect in effects)


def test_that_somebody_rests_is_forgotten_when_it_has_left_and_a_late_word_of_it_changes_nothing():
    state = server()
    shard = state.keys[KEY].shards[0]
    for who in (W0, W1):
        state.handle(Received(who, m.Detach(request=5, key=KEY, shard=0)), 0)
    assert (shard.resting, shard.asked) == ({W0, W1}, {W0: 5, W1: 5})
    state.handle(membership(2, W1), 0)
    assert (shard.resting, shard.asked) == ({W1}, {W1: 5})
    for late in (m.Detach(request=5, key=KEY, shard=0), m.Attach(request=4, key=KEY, shard=0, clock=0)):
        assert sent(state.handle(Received(W0, late), 0), m.Done) == []
    assert (shard.resting, shard.asked) == ({W1}, {W1: 5})


def test_whoever_is_ahead_of_our_generation_is_heard_when_we_catch_up():
    state = server()
    newcomer = Incarnation(3)
    assert sent(state.handle(Received(newcomer, m.Attach(request=7, key=KEY, shard=0)), 0), m.Done) == []
    effects = state.handle(membership(2, W0, W1, newcomer), 0)
    assert sent(effects, m.Done) == [(newcomer, m.Done(request=7, detail=0))]


def test_where_whoever_has_pushed_most_is_is_said_when_we_know_the_generation_that_the_question_names():
    """Who asks heard of a death before we did. Another keeper may know of it, and where all are is the same on all."""
    state = server()
    state.handle(push(W0, 1), 0)
    ask = m.Attach(request=3, key=KEY, shard=0, clock=-2, term=1, number=1)
    assert sent(state.handle(Received(W1, ask), 0), m.Done) == [(W1, m.Done(request=3, detail=1))]
    ask = m.Attach(request=4, key=KEY, shard=0, clock=-2, term=1, number=2)
    assert sent(state.handle(Received(W1, ask), 0), m.Done) == []
    assert sent(state.handle(membership(2, W1), 0), m.Done) == [(W1, m.Done(request=4, detail=0))]


def test_a_question_that_names_a_generation_is_answered_by_the_next_one_too():
    state = server()
    ask = m.Attach(request=3, key=KEY, shard=0, clock=-2, term=1, number=2)
    assert sent(state.handle(Received(W1, ask), 0), m.Done) == []
    assert sent(state.handle(membership(3, W1), 0), m.Done) == [(W1, m.Done(request=3, detail=0))]


def test_if_rank_zero_dies_before_its_first_value_the_next_rank_is_asked_for_one():
    state = server(has_value=False)
    assert sent(state.handle(Received(W1, m.Attach(request=3, key=KEY, shard=0)), 0), m.Done) == []
    effects = state.handle(membership(2, W1), 0)
    assert sent(effects, m.Done) == [(W1, m.Done(request=3, detail=-1))]


def test_a_pinned_value_is_not_written_until_its_reader_lets_go():
    state = server()
    state.handle(push(W0, 1, pull=1), 0)
    pulled = [effect for effect in state.handle(push(W1, 1, pull=1), 0) if isinstance(effect, Send)]
    seen = pulled[0].data[0].array
    assert pulled[0].pins
    assert seen.view(np.float64)[0] == 2.0
    state.handle(push(W0, 2), 0)
    state.handle(push(W1, 2), 0)
    assert seen.view(np.float64)[0] == 2.0  # the next round went to another block
    state.handle(LinkDown(W0, "cut"), 0)
    state.handle(push(W1, 3), 0)
    state.handle(LinkUp(W0), 0)
    state.handle(push(W0, 3), 0)
    assert state.keys[KEY].shards[0].slots[0].content.dense.block.array.view(np.float64)[0] == 6.0


def test_pieces_that_do_not_fit_are_answered_with_what_is_wrong():
    state = server()
    for pieces, text in [
        (((7, 0, 4096),), "slot 7 of 'w' is not in shard 0"),
        (((0, 0, 5000),), "slot 0 of 'w': elements [0, 5000) are outside a slot that has 4096"),
        (((0, 0, 10),), "slot 0 of 'w': expected 80 bytes, got 32768"),
        (((0, 0, 10), (0, 10, 20)), "2 pieces came with 1 buffers"),
    ]:
        [(who, ack)] = sent(state.handle(push(W0, 1, pieces=pieces), 0), m.Ack)
        assert (who, ack.error) == (W0, text)
    pull = m.Pull(pull=1, key=KEY, shard=0, clock=0, pieces=((3, 0, 1),))
    [(_, pulled)] = sent(state.handle(Received(W0, pull), 0), m.Pulled)
    assert pulled.error == "slot 3 of 'w' is not in shard 0"
    assert len(sent(state.handle(push(W0, 1), 0) + state.handle(push(W1, 1), 0), m.Ack)) == 2


def test_only_the_manager_is_believed_about_members_and_keys():
    state = server()
    before = state.members.generation
    state.handle(Received(W0, membership(9, W0).message), 0)
    state.handle(Received(W0, m.Forget(request=0, name="w", key=KEY)), 0)
    assert state.members.generation == before
    assert KEY in state.keys


def test_what_a_departed_worker_has_written_and_not_committed_is_let_go():
    state = server()
    for who in (W0, W1):
        write = m.Write(request=7, key=KEY, shard=0, pieces=WHOLE, write=1)
        assert sent(state.handle(Received(who, write, (np.ones(4096).view(np.uint8),)), 0), m.Done)
    state.handle(membership(2, W1), 0)
    assert list(state.keys[KEY].shards[0]._writes) == [W1]


def test_what_a_driver_has_written_is_let_go_when_it_is_dead_or_away_for_a_lease():
    """It is no member: only its link tells. One that is back within a lease commits what it has written."""
    dead, away, back = Incarnation(31), Incarnation(32), Incarnation(33)
    state = server()
    for who in (dead, away, back):
        state.handle(LinkUp(who), 0)
        write = m.Write(request=7, key=KEY, shard=0, pieces=WHOLE, write=1)
        assert sent(state.handle(Received(who, write, (np.ones(4096).view(np.uint8),)), 0), m.Done)
        state.handle(LinkDown(who, "broken", is_death=who == dead), 1.0)
    writes = state.keys[KEY].shards[0]._writes
    state.handle(Tick(), 1.1)
    assert list(writes) == [away, back]
    state.handle(LinkUp(back), 1.2)
    state.handle(Tick(), 1.2 + state.config.lease_seconds)
    assert list(writes) == [back]
    order = m.Commit(request=8, key=KEY, writer=back, write=1)
    effects = state.handle(Received(back, order), 9.0)
    assert sent([one for later in effects for one in state.handle(later, 9.0)], m.Done)
    assert not writes
