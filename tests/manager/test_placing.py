"""Keys whose servers die before all of them have made room: nothing is in such a key yet, so it is placed anew."""

from __future__ import annotations

from typing import Any

from tests.test_chart import spec
from windlass._wire import messages as m
from windlass._wire.effects import LinkDown, Persist, Received, Send
from windlass.manager.records import AnyRecord, Image, KeyDropped, Term
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.types import Incarnation, Role

A, B, C = (Incarnation(number) for number in (1, 2, 3))
WORKER = Incarnation(10)
JOINS = {
    who: m.Join(role=Role.SERVER, pid=who, addresses=(), rank=who - 1) for who in (A, B, C)
} | {WORKER: m.Join(role=Role.WORKER, pid=WORKER, addresses=(), rank=0)}  # fmt: skip


class Office:
    """A manager of some servers and a worker; `records` is what it has written down."""

    def __init__(self, servers: int, replicas: int = 0) -> None:
        self.config = ManagerConfig(num_servers=servers, num_workers=1, replicas=replicas)
        self.records: list[AnyRecord] = [Term(term=1)]
        self.manager = ManagerState(self.config)
        for who in (*(A, B, C)[:servers], WORKER):
            self.hear(who, JOINS[who])

    def handle(self, event: Any) -> list[tuple[Incarnation, m.AnyMessage]]:
        """What it says, but for generations."""
        effects = self.manager.handle(event, 0.0)
        self.records += [one.record for one in effects if isinstance(one, Persist)]
        sent = [(one.peer, one.message) for one in effects if isinstance(one, Send)]
        return [(peer, message) for peer, message in sent if not isinstance(message, m.Membership)]

    def hear(self, peer: Incarnation, message: m.AnyMessage) -> list[tuple[Incarnation, m.AnyMessage]]:
        return self.handle(Received(peer, message))

    def lose(self, server: Incarnation) -> list[tuple[Incarnation, m.AnyMessage]]:
        return self.handle(LinkDown(server, "it died", is_death=True))

    def declare(self, num_slots: int) -> dict[Incarnation, m.Place]:
        """Whom the manager tells to hold a key of so many slots, and what."""
        told = self.hear(WORKER, m.Declare(request=7, spec=spec("w", num_slots)))
        return placed(told)


def placed(told: list[tuple[Incarnation, m.AnyMessage]]) -> dict[Incarnation, m.Place]:
    return {peer: message for peer, message in told if isinstance(message, m.Place)}


def test_a_key_whose_only_server_dies_before_it_holds_it_is_placed_on_another() -> None:
    office = Office(2)
    [(first, _)] = office.declare(1).items()
    told = office.lose(first)
    [(second, order)] = placed(told).items()
    assert second != first
    assert order.chains == ((second,),)
    [(peer, declared)] = office.hear(second, m.Placed(key=order.key))
    assert peer == WORKER
    assert isinstance(declared, m.Declared)
    assert (declared.request, declared.key, declared.chains) == (7, order.key, ((second,),))


def test_who_has_made_room_for_the_other_part_gives_it_back_and_is_told_anew() -> None:
    office = Office(3)
    orders = office.declare(3)
    assert set(orders) == {A, B, C}
    old = orders[A].key
    assert office.hear(A, m.Placed(key=old)) == []
    told = office.lose(B)
    assert [peer for peer, message in told if isinstance(message, m.Forget) and message.key == old] == [A, C]
    again = placed(told)
    assert set(again) == {A, C}
    new = again[A].key
    assert new != old
    assert {server for chain in again[A].chains for server in chain} == {A, C}
    assert office.hear(C, m.Placed(key=old)) == []  # it had not heard yet
    assert office.hear(A, m.Placed(key=new)) == []
    [(_, declared)] = office.hear(C, m.Placed(key=new))
    assert isinstance(declared, m.Declared)


def test_so_it_is_when_the_one_that_dies_had_made_room_and_others_had_not() -> None:
    office = Office(2)
    old = office.declare(2)[A].key
    office.hear(A, m.Placed(key=old))
    again = placed(office.lose(A))
    assert set(again) == {B}
    assert office.hear(B, m.Placed(key=old)) == []
    [(_, declared)] = office.hear(B, m.Placed(key=again[B].key))
    assert isinstance(declared, m.Declared)
    assert all(declared.chains)  # else it would be lost before it was used


def test_a_key_with_a_replica_left_stays_where_it_is() -> None:
    office = Office(2, replicas=1)
    old = office.declare(1)[A].key
    assert placed(office.lose(A)) == {}
    [(_, declared)] = office.hear(B, m.Placed(key=old))
    assert isinstance(declared, m.Declared)
    assert (declared.key, declared.chains) == (old, ((B,),))


def test_where_no_server_is_left_whoever_waits_is_told_so() -> None:
    office = Office(1)
    office.declare(1)
    [(peer, refused)] = office.lose(A)
    assert peer == WORKER
    assert isinstance(refused, m.Refused)
    assert (refused.request, refused.is_usage) == (7, False)
    assert refused.reason == "'w' cannot be placed: no server is alive"


def test_a_manager_that_dies_before_it_has_written_down_the_new_place_is_followed_by_one_that_finds_another() -> None:
    office = Office(2)
    old = office.declare(2)[A].key
    office.lose(A)
    kept = office.records[: next(n for n, record in enumerate(office.records) if isinstance(record, KeyDropped))]
    office.records = [*kept, Term(term=2)]
    office.manager = ManagerState(office.config, Image(office.records))
    office.hear(WORKER, JOINS[WORKER])
    told = office.hear(B, JOINS[B])
    assert (B, m.Forget(request=0, name="w", key=old)) in told
    again = placed(told)
    assert all(again[B].chains)
    office.hear(WORKER, m.Declare(request=8, spec=spec("w", 2)))
    [(_, declared)] = office.hear(B, m.Placed(key=again[B].key))
    assert isinstance(declared, m.Declared)
    assert (declared.request, all(declared.chains)) == (8, True)
