"""What workers have kept back, as a snapshot has it."""

from __future__ import annotations

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Received, Send
from windlass.filters import TopK, filter_rules
from windlass.server.deposits import Deposits
from windlass.server.state import ServerConfig, ServerState
from windlass.types import MANAGER, Heap, Incarnation, KeyId, KeySpec, Node, Role, Rule, Sequential

SAVER, FIRST, LATE = Incarnation(98), Incarnation(10), Incarnation(11)


def _given(number: float) -> tuple[m.Deposited, tuple[np.ndarray, ...]]:
    values = np.full(2, number, np.float32)
    given = m.Deposited(
        key=KeyId(1), saver=SAVER, snapshot=1, name="0.values", dtype="float32", meta={"sent": 1, "los": [0]}, part=0,
        parts=1, attempt=1,
    )  # fmt: skip
    return given, (values.view(np.uint8),)


def test_who_joins_while_residuals_are_read_comes_too_late_for_them() -> None:
    deposits: Deposits[str] = Deposits()
    deposits.ask("snapshot", 3)
    deposits.take("snapshot", FIRST, 0, *_given(1.0))
    assert deposits.frost("snapshot", [FIRST]) is m.Frost.FROZEN
    arrays, meta = deposits.content("snapshot")
    assert deposits.missing("snapshot", [FIRST, LATE]) == []
    deposits.take("snapshot", LATE, 1, *_given(2.0))
    again, meta_again = deposits.content("snapshot")
    assert (again.keys(), meta_again) == (arrays.keys(), meta)
    assert set(meta) == {"0"}


def test_what_a_worker_gives_before_it_begins_does_not_count_for_a_round_that_it_is_in() -> None:
    deposits: Deposits[str] = Deposits()
    deposits.ask("snapshot", 2)
    for rank, who in enumerate((FIRST, LATE)):
        deposits.take("snapshot", who, rank, *_given(0.0))
    deposits.begin(LATE, 1, lambda which: which == "another")
    deposits.begin(FIRST, 2, lambda which: True)
    assert deposits.missing("snapshot", [FIRST, LATE]) == []
    deposits.begin(LATE, 1, lambda which: True)
    assert deposits.missing("snapshot", [FIRST, LATE]) == [LATE]
    deposits.take("snapshot", LATE, 1, *_given(2.0))
    arrays, _ = deposits.content("snapshot")
    assert arrays["1.0.values"].tolist() == [2.0, 2.0]


def test_who_was_there_when_the_key_was_made_and_begins_late_is_asked_again() -> None:
    """It is counted on from the start, and says that it has kept nothing back, because it does not use the key yet."""
    me, key = Incarnation(1), KeyId(1)
    state = ServerState(me, Heap(), ServerConfig(join=m.Join(role=Role.SERVER, pid=0, addresses=()), manager=()))
    nodes = tuple(
        Node(name=f"{role}-{rank}", role=role, incarnation=who, rank=rank, pid=0, addresses=())
        for who, role, rank in ((me, Role.SERVER, 0), (FIRST, Role.WORKER, 0), (LATE, Role.WORKER, 1))
    )
    spec = KeySpec(
        name="w", shape=(8,), dtype="float32", reduce=Rule("sum"), update=Rule("add"), consistency=Sequential(),
        chunk_bytes=4096, filters=filter_rules((TopK(0.5),)),
    )  # fmt: skip

    def hear(peer: Incarnation, message: m.AnyMessage, *data: np.ndarray) -> list[Effect]:
        return state.handle(Received(peer, message, data), 0.0)

    def asked() -> list[Incarnation]:
        """Who is asked for what it has kept back after the first round."""
        told = hear(SAVER, m.Freeze(request=1, key=key, shard=0, snapshot=1, round=1))
        return [one.peer for one in told if isinstance(one, Send) and isinstance(one.message, m.Deposit)]

    hear(MANAGER, m.Membership(term=1, number=1, nodes=nodes, reason=""))
    hear(MANAGER, m.Place(key=key, spec=spec, chains=((me,),)))
    hear(FIRST, m.Init(request=1, key=key, shard=0, pieces=((0, 0, 8),)), np.zeros(8, np.float32).view(np.uint8))
    assert asked() == [FIRST, LATE]
    given, values = _given(0.0)
    for who in (FIRST, LATE):
        hear(who, given, *values)
    assert asked() == []
    hear(LATE, m.Attach(request=2, key=key, shard=0, clock=-1))
    assert asked() == [LATE]
