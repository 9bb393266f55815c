"""A manager that was stopped for a while: whom it blames for the silence."""

from __future__ import annotations

from tests.test_chart import spec
from windlass._wire import messages as m
from windlass._wire.effects import Received, Send, Tick
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.types import Incarnation, KeyId, Role

LEASE, TICK = 2.0, 0.05
A, B = Incarnation(1), Incarnation(2)


def manager(**options: float) -> ManagerState:
    made = ManagerState(ManagerConfig(num_servers=2, num_workers=0, lease_seconds=LEASE, **options))
    for rank, who in enumerate((A, B)):
        made.handle(Received(who, m.Join(role=Role.SERVER, pid=who, addresses=(), rank=rank)), 0.0)
    return made


def tick(made: ManagerState, begin: float, end: float, *, heard: tuple[Incarnation, ...] = ()) -> None:
    """Time passes, with a tick now and then; these are heard meanwhile."""
    now = begin
    while now < end:
        for who in heard:
            made.handle(Received(who, m.Beat(sent=now)), now)
        made.handle(Tick(), now)
        now += TICK


def test_nobody_is_out_for_a_silence_in_which_the_manager_did_not_listen():
    made = manager()
    tick(made, 0.0, 1.0)
    tick(made, 100.0, 100.0 + LEASE / 4)  # the tick comes before what has piled up on the links is read
    assert set(made.nodes) == {A, B}


def test_who_stays_silent_after_the_pause_is_out_a_lease_later():
    made = manager()
    tick(made, 0.0, 1.0, heard=(A, B))
    tick(made, 100.0, 100.0 + 1.5 * LEASE, heard=(A,))
    assert set(made.nodes) == {A}


def test_a_silence_while_the_manager_listens_counts_from_its_beginning():
    made = manager()
    tick(made, 0.0, LEASE, heard=(A,))
    assert set(made.nodes) == {A, B}
    tick(made, LEASE, LEASE + 2 * TICK, heard=(A,))
    assert set(made.nodes) == {A}


def test_a_beat_is_answered_with_who_makes_room_for_a_key():
    made = manager()
    told = made.handle(Received(A, m.Declare(request=1, spec=spec("w", 2))), 0.0)
    assert {send.peer for send in told if isinstance(send, Send) and isinstance(send.message, m.Place)} == {A, B}
    assert beaten(made) == (A, B)
    made.handle(Received(B, m.Placed(key=KeyId(1))), 0.0)
    assert beaten(made) == (A,)
    made.handle(Received(A, m.Placed(key=KeyId(1))), 0.0)
    assert beaten(made) == ()


def beaten(made: ManagerState) -> tuple[Incarnation, ...]:
    """Whom the manager's answer names."""
    (answer,) = made.handle(Received(A, m.Beat(sent=0.0)), 0.0)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, m.Beat)
    return answer.message.makers
