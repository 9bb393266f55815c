"""Whom a server misses among the others, and how it speaks to them then: no socket, no thread, no clock."""

from __future__ import annotations

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, LinkDown, LinkUp, Log, Received, Send, Tick
from windlass.server.state import ServerConfig, ServerState
from windlass.types import MANAGER, Heap, Incarnation, KeyId, KeySpec, Node, Role, Rule, Sequential

LEASE = 2.0
KEEPER, ME, AFTER, WORKER = Incarnation(1), Incarnation(2), Incarnation(3), Incarnation(10)
KEY = KeyId(1)
SPEC = KeySpec(
    name="w", shape=(2048,), dtype="float32", reduce=Rule("sum"), update=Rule("add"), consistency=Sequential(),
    chunk_bytes=4096,
)  # fmt: skip


class Rig:
    """A server that is the head of shard 1, whose keeper is another; a third one follows it. `now` is its clock."""

    def __init__(self, *, is_chained: bool = True) -> None:
        self.now = 0.0
        self.state = ServerState(
            ME, Heap(), ServerConfig(m.Join(role=Role.SERVER, pid=0, addresses=()), manager=(), lease_seconds=LEASE)
        )
        nodes = [_node(who, Role.SERVER, who - 1) for who in (KEEPER, ME, AFTER)] + [_node(WORKER, Role.WORKER, 0)]
        self.do(Received(MANAGER, m.Membership(term=1, number=1, nodes=tuple(nodes), reason="test")))
        for who in (MANAGER, KEEPER, AFTER, WORKER):
            self.do(LinkUp(who))
        mine = (ME, AFTER) if is_chained else (ME,)
        self.do(Received(MANAGER, m.Place(key=KEY, spec=SPEC, chains=((KEEPER,), mine))))
        init = m.Init(request=1, key=KEY, shard=1, pieces=((1, 0, 1024),))
        self.do(Received(WORKER, init, (np.zeros(4096, np.uint8),)))
        self.do(Received(WORKER, m.Attach(request=2, key=KEY, shard=1, clock=0)))

    def do(self, event: object) -> list[Effect]:
        return self.state.handle(event, self.now)  # type: ignore[arg-type]

    def pass_time(
        self, seconds: float, *silent: Incarnation, step: float = LEASE / 8, makers: tuple[Incarnation, ...] = ()
    ) -> list[Effect]:
        """Time passes; everybody answers but these. The manager says who makes room for a key."""
        effects: list[Effect] = []
        for _ in range(round(seconds / step)):
            self.now += step
            said = self.do(Tick())
            effects += said
            for one in said:
                if isinstance(one, Send) and isinstance(one.message, m.Beat) and one.peer not in silent:
                    told = makers if one.peer == MANAGER else ()
                    self.do(Received(one.peer, m.Beat(sent=one.message.sent, is_answer=True, makers=told)))
        return effects

    def push(self, clock: int) -> list[Effect]:
        push = m.Push(key=KEY, shard=1, clock=clock, since=0, part=0, parts=1, pieces=((1, 0, 1024),))
        return self.do(Received(WORKER, push, (np.zeros(4096, np.uint8),)))


def _node(who: Incarnation, role: Role, rank: int) -> Node:
    return Node(name=f"{role}-{rank}", role=role, incarnation=who, rank=rank, pid=0, addresses=())


def _named(effects: list[Effect]) -> tuple[Incarnation, ...]:
    """Whom the manager was told of last."""
    beats = [one.message for one in effects if isinstance(one, Send) and one.peer == MANAGER]
    return next((beat.unreachable for beat in reversed(beats) if isinstance(beat, m.Beat)), ())


def _sent(effects: list[Effect], kind: type[m.AnyMessage]) -> list[tuple[Incarnation, m.AnyMessage]]:
    return [(one.peer, one.message) for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def test_nobody_is_missed_while_all_answer() -> None:
    rig = Rig()
    effects = rig.pass_time(5 * LEASE)
    assert _named(effects) == ()
    assert not [one for one in effects if isinstance(one, Log)]
    assert {peer for peer, _ in _sent(effects, m.Beat)} == {MANAGER, KEEPER, AFTER}


def test_a_server_without_a_link_is_named_after_a_lease_and_not_before() -> None:
    rig = Rig()
    rig.do(LinkDown(KEEPER, "cut"))
    assert _named(rig.pass_time(0.9 * LEASE, KEEPER)) == ()
    effects = rig.pass_time(0.5 * LEASE, KEEPER)
    assert _named(effects) == (KEEPER,)
    (warning,) = [one.text for one in effects if isinstance(one, Log)]
    assert warning.startswith("has not reached server-0 for 2.0 s, though both are members")
    rig.do(LinkUp(KEEPER))
    assert _named(rig.pass_time(LEASE / 4, KEEPER)) == (KEEPER,)  # a link through which nothing comes is none
    assert _named(rig.pass_time(LEASE / 4)) == ()


def test_one_that_does_not_answer_on_an_open_link_is_named_too() -> None:
    rig = Rig()
    assert _named(rig.pass_time(1.5 * LEASE, AFTER)) == (AFTER,)
    assert _named(rig.pass_time(LEASE / 4)) == ()


def test_one_that_makes_room_for_a_key_is_not_missed_until_a_lease_after_it_should_have() -> None:
    rig = Rig()
    effects = rig.pass_time(5 * LEASE, AFTER, makers=(AFTER,))
    assert (_named(effects), [one for one in effects if isinstance(one, Log)]) == ((), [])
    assert _named(rig.pass_time(0.9 * LEASE, AFTER)) == ()
    assert _named(rig.pass_time(0.5 * LEASE, AFTER)) == (AFTER,)


def test_one_that_is_out_of_reach_already_stays_so_while_it_makes_room() -> None:
    rig = Rig()
    rig.pass_time(1.5 * LEASE, AFTER)
    assert _named(rig.pass_time(LEASE, AFTER, makers=(AFTER,))) == (AFTER,)


def test_what_a_silent_manager_has_said_of_makers_holds_for_a_lease() -> None:
    rig = Rig()
    rig.pass_time(LEASE, AFTER, makers=(AFTER,))
    assert _named(rig.pass_time(2.5 * LEASE, AFTER, MANAGER)) == (AFTER,)


def test_whoever_slept_blames_nobody_for_that_time() -> None:
    rig = Rig()
    rig.pass_time(LEASE)
    rig.now += 100 * LEASE
    assert _named(rig.do(Tick())) == ()
    assert _named(rig.pass_time(LEASE / 4)) == ()


def test_a_round_is_reported_through_the_manager_and_closed_the_same_way() -> None:
    rig = Rig(is_chained=False)
    rig.do(LinkDown(KEEPER, "cut"))
    (lost,) = _sent(rig.push(1), m.Staged)
    assert lost[0] == KEEPER
    effects = rig.pass_time(1.5 * LEASE, KEEPER)
    assert _sent(effects, m.PassOn)[0] == (MANAGER, m.PassOn(peer=KEEPER, message=lost[1]))
    close = m.PassOn(peer=KEEPER, message=m.Close(key=KEY, shard=1, round=1, members=(WORKER,)))
    assert [peer for peer, _ in _sent(rig.do(Received(MANAGER, close)), m.Ack)] == [WORKER]
    assert [peer for peer, _ in _sent(rig.push(2), m.PassOn)] == [MANAGER]
    rig.do(LinkUp(KEEPER))
    rig.do(Received(KEEPER, m.Close(key=KEY, shard=1, round=2, members=(WORKER,))))
    assert [peer for peer, _ in _sent(rig.push(3), m.Staged)] == [KEEPER]


def test_only_the_manager_passes_words_on() -> None:
    rig = Rig(is_chained=False)
    rig.push(1)
    close = m.PassOn(peer=KEEPER, message=m.Close(key=KEY, shard=1, round=1, members=(WORKER,)))
    assert _sent(rig.do(Received(AFTER, close)), m.Ack) == []


def test_whoever_asks_what_it_waits_for_is_told_whom_the_server_misses() -> None:
    rig = Rig(is_chained=False)
    rig.do(LinkDown(KEEPER, "cut"))
    rig.push(1)
    rig.pass_time(LEASE / 2, KEEPER)  # long before anything is done about it
    ((_, answer),) = _sent(rig.do(Received(WORKER, m.Inspect(request=3, key=KEY))), m.Done)
    assert isinstance(answer, m.Done)
    assert answer.detail == (
        "round 1 of 'w' is staged here and waits for another shard of the key; has not reached server-0 for 0.8 s"
    )


def test_a_new_key_asks_those_it_needs_unless_they_have_just_answered():
    rig = Rig()
    rig.pass_time(LEASE / 8)
    place = m.Place(key=KeyId(2), spec=SPEC, chains=((KEEPER,), (ME, AFTER)))
    assert rig.do(Received(MANAGER, place)) == [Send(MANAGER, m.Placed(key=KeyId(2)))]
    rig.pass_time(LEASE, AFTER)
    rig.now += LEASE / 16  # no beat is due, and AFTER's word is out
    said = rig.do(Received(MANAGER, m.Place(key=KeyId(3), spec=SPEC, chains=((KEEPER,), (ME, AFTER)))))
    assert [one.peer for one in said if isinstance(one, Send) and isinstance(one.message, m.Beat)] == [
        MANAGER, KEEPER, AFTER,
    ]  # fmt: skip


def test_a_word_to_settle_that_is_late_stops_nobody():
    rig = Rig()
    nodes = tuple(rig.state.nodes.values())
    moves = (m.Move(key=KEY, shard=1, chain=(ME,), is_settled=True),)
    rig.do(Received(MANAGER, m.Membership(term=1, number=2, nodes=nodes, reason="test", moves=moves)))
    late = m.Settle(key=KEY, shard=1, term=1, number=1)
    assert _sent(rig.do(Received(MANAGER, late)), m.Settled) == []
    assert [peer for peer, _ in _sent(rig.push(1), m.Staged)] == [KEEPER]  # it goes on
    now = m.Settle(key=KEY, shard=1, term=1, number=2)
    rig.do(Received(KEEPER, m.Close(key=KEY, shard=1, round=1, members=(WORKER,))))
    assert [peer for peer, _ in _sent(rig.do(Received(MANAGER, now)), m.Settled)] == [MANAGER]
