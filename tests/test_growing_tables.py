"""How a server's state machine divides the work that a push to a table is, so that others are heard in between."""

from __future__ import annotations

import numpy as np

from tests.test_server_state import KEY, ME, W0, W1, membership, sent
from windlass._wire import messages as m
from windlass._wire.effects import Later, Received
from windlass.server.state import ServerConfig, ServerState
from windlass.store.initial import initial_rule
from windlass.types import MANAGER, Eventual, Heap, KeySpec, Role, Rule, TableSpec

SLOTS, ROWS, DIM = 4, 200, 2


def server() -> ServerState:
    spec = KeySpec(
        name="rows", shape=(0, DIM), dtype="float32", reduce=Rule("sum"), update=Rule("add"), consistency=Eventual(),
        chunk_bytes=1 << 20, table=TableSpec(dim=DIM, init=initial_rule(0.0), slots=SLOTS),
    )  # fmt: skip
    state = ServerState(ME, Heap(), ServerConfig(join=m.Join(role=Role.SERVER, pid=0, addresses=()), manager=()))
    state.handle(membership(1, W0, W1), 0)
    state.handle(Received(MANAGER, m.Place(key=KEY, spec=spec, chains=((ME,),))), 0)
    return state


def push(clock: int, first_id: int) -> Received:
    """Rows of ones for so many ids in each slot; which slot an id is in is the worker's to say."""
    pieces = tuple((slot, 0, ROWS) for slot in range(SLOTS))
    message = m.Push(key=KEY, shard=0, clock=clock, since=0, part=0, parts=1, pieces=pieces)
    data = []
    for slot in range(SLOTS):
        ids = np.arange(first_id + slot * ROWS, first_id + (slot + 1) * ROWS)
        data.append(np.concatenate([ids.view(np.uint8), np.ones((ROWS, DIM), np.float32).reshape(-1).view(np.uint8)]))
    return Received(W0, message, tuple(data))


def pull(state: ServerState, first_id: int) -> float:
    """What another worker reads of a row in the first slot, now."""
    ids = np.array([first_id]).view(np.uint8)
    message = m.Pull(pull=1, key=KEY, shard=0, clock=0, pieces=((0, 0, 1),))
    effects = state.handle(Received(W1, message, (ids,)), 0)
    assert [pulled.error for _, pulled in sent(effects, m.Pulled)] == [""]
    return float(effects[0].data[0].array.view(np.float32)[0])  # type: ignore[union-attr]


def later(effects: list) -> list[Later]:
    return [effect for effect in effects if isinstance(effect, Later)]


def test_slots_that_grow_are_updated_one_by_one_and_others_are_heard_in_between() -> None:
    state = server()
    assert later(state.handle(push(1, 0), 0)) == []  # nobody knows yet that they do
    left = later(state.handle(push(2, 10_000), 0))
    assert len(left) == SLOTS  # the first is done; three more, and the end
    assert pull(state, 10_000) == 1.0
    acks = []
    for work in left:
        assert acks == []
        acks += sent(state.handle(work, 0), m.Ack)
    assert [ack.clock for _, ack in acks] == [2]


def test_slots_that_have_all_rows_already_are_updated_at_once() -> None:
    state = server()
    for clock in (1, 2):
        for work in later(state.handle(push(clock, 0), 0)):
            state.handle(work, 0)
    effects = state.handle(push(3, 0), 0)
    assert later(effects) == []
    assert [ack.clock for _, ack in sent(effects, m.Ack)] == [3]
    assert pull(state, 0) == 3.0
