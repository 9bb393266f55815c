"""Room that a shard of a table sets aside for a push that is to come: whose it is, and until when."""

from __future__ import annotations

import numpy as np

from tests.test_server_state import KEY, ME, W0, W1, membership, sent
from windlass._wire import messages as m
from windlass._wire.effects import Effect, Later, Received
from windlass.server.state import ServerConfig, ServerState
from windlass.store.initial import initial_rule
from windlass.types import MANAGER, Bounded, Consistency, Heap, Incarnation, KeySpec, Role, Rule, Sequential, TableSpec

DIM, ROWS = 16, 100  # of which a slot of so many bytes has room for one and a half
MAX_BYTES = 15_000
ARRIVAL = Bounded(2)


def server(consistency: Consistency = ARRIVAL) -> ServerState:
    table = TableSpec(dim=DIM, init=initial_rule(0.0), slots=1, max_bytes=MAX_BYTES)
    spec = KeySpec(
        name="rows", shape=(0, DIM), dtype="float32", reduce=Rule("sum"), update=Rule("add"),
        consistency=consistency, chunk_bytes=1 << 20, table=table,
    )  # fmt: skip
    state = ServerState(ME, Heap(), ServerConfig(join=m.Join(role=Role.SERVER, pid=0, addresses=()), manager=()))
    state.handle(membership(1, W0, W1), 0)
    state.handle(Received(MANAGER, m.Place(key=KEY, spec=spec, chains=((ME,),))), 0)
    return state


def done(state: ServerState, event: Received) -> list[Effect]:
    """All that it leads to."""
    effects = state.handle(event, 0)
    for one in effects:
        if isinstance(one, Later):
            effects += state.handle(one, 0)
    return effects


def reserve(state: ServerState, who: Incarnation, clock: int, first_id: int, count: int = ROWS) -> str:
    """Empty if there was room."""
    pieces = ((0, 0, count),) if count else ()
    ids = np.arange(first_id, first_id + count).view(np.uint8)
    asked = m.Reserve(request=5, key=KEY, shard=0, clock=clock, pieces=pieces)
    effects = done(state, Received(who, asked, (ids,) if count else ()))
    answered = [message for peer, message in sent(effects, m.Done | m.Refused) if peer == who]
    assert len(answered) == 1
    return answered[0].reason if isinstance(answered[0], m.Refused) else ""


def push(state: ServerState, who: Incarnation, clock: int, first_id: int) -> str:
    """Empty if it was taken."""
    ids, rows = np.arange(first_id, first_id + ROWS), np.ones(ROWS * DIM, np.float32)
    message = m.Push(key=KEY, shard=0, clock=clock, since=0, part=0, parts=1, pieces=((0, 0, ROWS),))
    data = np.concatenate([ids.view(np.uint8), rows.view(np.uint8)])
    [(_, ack)] = sent(done(state, Received(who, message, (data,))), m.Ack)
    return ack.error


def test_room_that_is_set_aside_is_nobody_elses_until_its_push_has_come() -> None:
    state = server()
    assert reserve(state, W0, 1, 0) == ""
    assert "'rows' has taken nothing of this push: the table would outgrow max_bytes" in reserve(state, W1, 1, 1000)
    assert "would outgrow" in push(state, W1, 1, 1000)  # nor for what comes unasked
    assert push(state, W0, 1, 0) == ""
    assert reserve(state, W1, 2, 0) == ""  # these have their rows
    assert reserve(state, W1, 2, 1000) != ""


def test_the_same_rows_need_room_once_whoever_brings_them() -> None:
    state = server()
    assert [reserve(state, W0, 1, 0), reserve(state, W1, 1, 0), reserve(state, W0, 2, 0)] == ["", "", ""]
    assert [push(state, W0, 1, 0), push(state, W1, 1, 0), push(state, W0, 2, 0)] == ["", "", ""]


def test_of_a_worker_that_left_no_room_is_kept() -> None:
    state = server()
    assert reserve(state, W0, 1, 0) == ""
    assert reserve(state, W1, 1, 1000) != ""
    state.handle(membership(2, W1), 0)
    assert reserve(state, W1, 1, 1000) == ""


def test_room_is_given_back_by_who_will_not_push_and_asked_for_again_it_is_set_aside_once() -> None:
    state = server()
    assert [reserve(state, W0, 1, 0), reserve(state, W0, 1, 0)] == ["", ""]  # as after a broken link
    assert reserve(state, W0, 1, 0, count=0) == ""
    assert reserve(state, W1, 1, 1000) == ""
    assert reserve(state, W0, 1, 0) != ""


def test_a_late_repetition_sets_nothing_aside_for_a_push_that_has_come() -> None:
    state = server()
    assert [reserve(state, W0, 1, 0), push(state, W0, 1, 0), reserve(state, W0, 1, 0)] == ["", "", ""]
    (shard,) = state.keys[KEY].shards.values()
    assert not shard._aside


def test_a_table_with_rounds_sets_no_room_aside() -> None:
    assert reserve(server(Sequential()), W0, 1, 0) == "'rows' sets no room aside"
