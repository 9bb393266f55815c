"""A follower's state machine by itself: what it hands on, shows, and remembers when its chain changes."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from windlass._wire import messages as m
from windlass._wire.effects import Later, LinkUp, Received, Send
from windlass.manager.records import Image, NewKey, Published, Term
from windlass.manager.state import ManagerConfig, ManagerState
from windlass.server.state import ServerConfig, ServerState
from windlass.types import (
    MANAGER,
    Consistency,
    Eventual,
    Heap,
    Incarnation,
    KeyId,
    KeySpec,
    Node,
    Role,
    Rule,
    Sequential,
)

HEAD, ME, NEXT, LEARNER = Incarnation(1), Incarnation(2), Incarnation(3), Incarnation(4)
W0, LATE, DRIVER = Incarnation(10), Incarnation(11), Incarnation(99)
KEY = KeyId(1)
JOIN = m.Join(role=Role.SERVER, pid=0, addresses=())


def spec(consistency: Consistency) -> KeySpec:
    return KeySpec(
        name="w", shape=(8,), dtype="int64", reduce=Rule("sum"), update=Rule("add"), consistency=consistency,
        chunk_bytes=32,
    )  # fmt: skip


def _is_sent(order: tuple[int, ...]) -> bool:
    """Whether the three parts come in this order, with copies of what came before."""
    return list(dict.fromkeys(order)) == [0, 1, 2] and order[-1] == 2


def node(who: Incarnation) -> Node:
    role = Role.WORKER if who >= W0 else Role.SERVER
    return Node(name=f"{role}-{who}", role=role, incarnation=who, rank=who, pid=who, addresses=(str(who),))


class Follower:
    """A server in the middle of a chain; put-off work is done at once, unless it is kept for `catch_up`."""

    keeps_work = False

    def __init__(self, consistency: Consistency, chain: tuple[Incarnation, ...]) -> None:
        self.state = ServerState(ME, Heap(), ServerConfig(join=JOIN, manager=()))
        self.number = 0
        self._kept: list[Later] = []
        self.generation((HEAD, ME, NEXT, LEARNER, W0))
        for server in (HEAD, NEXT, LEARNER):
            self.state.handle(LinkUp(server), 0)
        self.hear(MANAGER, m.Place(key=KEY, spec=spec(consistency), chains=(chain,)))

    def hear(self, peer: Incarnation, message: m.AnyMessage, *values: Any) -> list[tuple[Incarnation, m.AnyMessage]]:
        data = tuple(np.asarray(value, np.int64).view(np.uint8) for value in values)
        effects = list(self.state.handle(Received(peer, message, data), 0))
        said = []
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, Later) and self.keeps_work:
                self._kept.append(effect)
            elif isinstance(effect, Later):
                effects += self.state.handle(effect, 0)
            elif isinstance(effect, Send):
                said.append((effect.peer, effect.message))
        return said

    def catch_up(self) -> None:
        while self._kept:
            self._kept += [one for one in self.state.handle(self._kept.pop(0), 0) if isinstance(one, Later)]

    def generation(self, nodes: tuple[Incarnation, ...], *moves: m.Move) -> list[tuple[Incarnation, m.AnyMessage]]:
        self.number += 1
        named = tuple(node(who) for who in nodes)
        told = m.Membership(term=1, number=self.number, nodes=named, reason="test", moves=moves, dead=(NEXT,))
        return self.hear(MANAGER, told)

    def entry(self, index: int, part: int, slot: int, entry: m.LogEntry | None) -> list[tuple[Incarnation, Any]]:
        piece = (slot, 0, 4)
        message = m.Replicate(key=KEY, shard=0, index=index, part=part, pieces=(piece,), entry=entry)
        return self.hear(HEAD, message, [1, 1, 1, 1])


FIRST = m.LogEntry(kind=m.Kind.FIRST)


def test_an_entry_that_was_half_handed_on_when_the_successor_died_goes_to_the_learner_whole() -> None:
    me = Follower(Eventual(), (HEAD, ME, NEXT))
    me.entry(1, 0, 0, None)
    me.entry(1, 1, 1, FIRST)
    push = m.LogEntry(kind=m.Kind.PUSH, who=W0, clock=1)
    assert [peer for peer, _ in me.entry(2, 0, 0, None)] == [NEXT]
    me.generation((HEAD, ME, LEARNER, W0), m.Move(KEY, 0, (HEAD, ME), LEARNER))
    shown = me.hear(LEARNER, m.Ready(key=KEY, shard=0, term=1, number=me.number))
    slots = [message.index for _, message in shown if isinstance(message, m.ShowSlot)]
    assert slots == [1, 1]  # what the learner is shown does not contain the second entry
    handed = [message for peer, message in me.entry(2, 1, 1, push) if isinstance(message, m.Replicate)]
    assert [(part.index, part.part, part.pieces) for part in handed] == [(2, 0, ((0, 0, 4),)), (2, 1, ((1, 0, 4),))]


def test_a_follower_keeps_the_clock_of_a_worker_that_it_is_yet_to_hear_of() -> None:
    me = Follower(Sequential(), (HEAD, ME))
    me.entry(1, 0, 0, None)
    me.entry(1, 1, 1, FIRST)
    me.entry(2, 0, 0, None)
    me.entry(2, 1, 1, m.LogEntry(kind=m.Kind.ROUND, clock=1, members=(W0, LATE), elements=(8, 8)))
    me.generation((ME, W0, LATE), m.Move(KEY, 0, (ME,), is_settled=True))
    for who in (W0, LATE):
        pieces = ((0, 0, 4), (1, 0, 4))
        push = m.Push(key=KEY, shard=0, clock=2, since=0, part=0, parts=1, pieces=pieces)
        said = me.hear(who, push, [1, 1, 1, 1], [1, 1, 1, 1])
    assert {peer for peer, message in said if isinstance(message, m.Ack)} == {W0, LATE}


def parts(attempt: int, value: int) -> list[tuple[m.Replicate, list[list[int]]]]:
    """The first entry, a slot in each part, all elements of this value; its last part is without data."""
    named = [(((slot, 0, 4),), [[value] * 4], None) for slot in (0, 1)]
    return [
        (m.Replicate(key=KEY, shard=0, index=1, part=part, pieces=pieces, entry=entry, attempt=attempt), data)
        for part, (pieces, data, entry) in enumerate([*named, ((), [], FIRST)])
    ]


def elements(me: Follower) -> list[int]:
    slots = me.state.keys[KEY].shards[0].slots.values()
    return [element for slot in slots for element in slot.content.dense.block.array.view(np.int64).tolist()]


@pytest.mark.parametrize("chain", [(HEAD, ME), (HEAD, ME, NEXT)])
@pytest.mark.parametrize("order", [order for order in product(range(3), repeat=5) if _is_sent(order)])
def test_an_entry_bears_copies_of_its_parts_wherever_they_come(order: tuple[int, ...], chain: tuple[Any, ...]) -> None:
    me = Follower(Sequential(), chain)
    sent = parts(7, 5)
    handed = [said for at in order for said in me.hear(HEAD, sent[at][0], *sent[at][1])]
    assert me.state.keys[KEY].shards[0].log.index == 1
    assert elements(me) == [5] * 8
    assert [message.part for peer, message in handed if peer == NEXT] == ([0, 1, 2] if NEXT in chain else [])


def test_parts_of_two_entries_that_were_begun_are_never_taken_for_one() -> None:
    """The one before us had begun to hand on an entry when it got another in its place."""
    me = Follower(Sequential(), (HEAD, ME))
    old, new = parts(7, 5), parts(8, 6)
    for part, data in (old[0], old[1], new[0], old[0], old[1], old[2], new[1], old[2], new[2]):
        me.hear(HEAD, part, *data)
    assert elements(me) == [6] * 8


def test_what_is_sent_again_is_another_attempt() -> None:
    me = Follower(Sequential(), (HEAD, ME, NEXT))
    before = [message.attempt for part, data in parts(7, 5)[:2] for _, message in me.hear(HEAD, part, *data)]
    again = me.hear(NEXT, m.Replicated(key=KEY, shard=0, index=0, resumes=True))
    (part, data) = parts(7, 5)[2]
    after = [message for peer, message in [*again, *me.hear(HEAD, part, *data)] if peer == NEXT]
    assert len(set(before)) == 1
    assert [(message.part, message.attempt > before[0]) for message in after] == [(0, True), (1, True), (2, True)]
    assert len({message.attempt for message in after}) == 1


def follow_two(*changes: m.LogEntry, kept: m.AnyMessage) -> Follower:
    """It has kept this of LATE for the head when it takes these changes; then it becomes the head."""
    me = Follower(Sequential(), (HEAD, ME))
    me.generation((HEAD, ME, W0, LATE))
    me.entry(1, 0, 0, None)
    me.entry(1, 1, 1, FIRST)
    assert me.hear(LATE, kept) == []
    for index, entry in enumerate(changes, 2):
        me.hear(HEAD, m.Replicate(key=KEY, shard=0, index=index, part=0, pieces=(), entry=entry))
    said = me.generation((ME, W0, LATE), m.Move(KEY, 0, (ME,), is_settled=True))
    assert [message.request for peer, message in said if peer == LATE] == [kept.request]
    return me


def acked(me: Follower, who: Incarnation) -> set[Incarnation]:
    """Who has an acknowledgement, once this worker has made its first push."""
    push = m.Push(key=KEY, shard=0, clock=1, since=0, part=0, parts=1, pieces=((0, 0, 4), (1, 0, 4)))
    said = me.hear(who, push, [1, 1, 1, 1], [1, 1, 1, 1])
    return {peer for peer, message in said if isinstance(message, m.Ack)}


def test_who_rests_is_not_waited_for_because_of_what_it_asked_for_before() -> None:
    """It asked to begin here when this was the head, or so it thought; then elsewhere, and there it went on to rest."""
    rest = m.LogEntry(kind=m.Kind.REST, who=LATE, request=2)
    me = follow_two(rest, kept=m.Attach(request=1, key=KEY, shard=0))
    assert acked(me, W0) == {W0}


def test_who_has_begun_again_is_waited_for_whatever_it_asked_for_before() -> None:
    rest = m.LogEntry(kind=m.Kind.REST, who=LATE, request=2)
    start = m.LogEntry(kind=m.Kind.START, who=LATE, clock=0, request=4)
    me = follow_two(rest, start, kept=m.Detach(request=2, key=KEY, shard=0))
    assert acked(me, W0) == set()
    assert acked(me, LATE) == {W0, LATE}


CONTENT = {"size": 4, "dtype": "int64", "spans": [[0, 4, 0]]}


def test_a_slot_that_was_restored_and_pushed_to_is_not_restored_again_by_a_word_that_comes_late() -> None:
    """Whoever loads a checkpoint asked here first, then the head; it was done there, and pushes went on."""
    me = Follower(Eventual(), (HEAD, ME))
    me.entry(1, 0, 0, None)
    me.entry(1, 1, 1, FIRST)
    restore = m.Restore(request=3, key=KEY, slot=0, name="value", dtype="int64", meta=CONTENT, is_last=True)
    assert me.hear(DRIVER, restore, [7, 7, 7, 7]) == []
    entry = m.LogEntry(
        kind=m.Kind.RESTORE, clock=0, names=("value",), dtypes=("int64",), meta=CONTENT, who=DRIVER, request=3
    )
    me.hear(HEAD, m.Replicate(key=KEY, shard=0, index=2, part=0, pieces=((0, 0, 0),), entry=entry), [7, 7, 7, 7])
    me.entry(3, 0, 0, m.LogEntry(kind=m.Kind.PUSH, who=W0, clock=1))
    said = me.generation((ME, W0), m.Move(KEY, 0, (ME,), is_settled=True))
    assert (DRIVER, m.Done(request=3)) in said
    assert elements(me) == [8, 8, 8, 8, 1, 1, 1, 1]
    me.hear(DRIVER, msgspec.structs.replace(restore, request=4), [7, 7, 7, 7])
    assert elements(me) == [7, 7, 7, 7, 1, 1, 1, 1]
    assert me.state.keys[KEY].shards[0].counts()["restored"] == {DRIVER: 4}


def test_a_learner_is_shown_who_asked_for_what_last() -> None:
    me = Follower(Sequential(), (HEAD, NEXT))
    me.generation((HEAD, ME, W0, LATE), m.Move(KEY, 0, (HEAD,), ME))
    counts = {"applied": {W0: 0, LATE: 0}, "version": 0, "members": [], "refusal": ""}
    show, slots = lesson(1, 1, **counts, resting=[LATE], asked={LATE: 2}, restored={LATE: 1})
    me.hear(HEAD, show)
    for slot in slots:
        me.hear(HEAD, slot, [0, 0, 0, 0])
    me.generation((ME, W0, LATE), m.Move(KEY, 0, (ME,), is_settled=True))
    me.hear(LATE, m.Attach(request=1, key=KEY, shard=0))
    assert acked(me, W0) == {W0}
    shown = me.state.keys[KEY].shards[0].counts()
    assert (shown["asked"], shown["restored"]) == ({LATE: 2}, {LATE: 1})


def lesson(number: int, index: int, **counts: Any) -> tuple[m.Show, list[m.ShowSlot]]:
    """How a shard is shown whose last entry is this."""
    begun: dict[str, Any] = {what: {} for what in ("leases", "repeats", "counted", "asked", "restored", "seen")}
    begun |= {"base": 0, "resting": [], "refused": []}
    show = m.Show(key=KEY, shard=0, lesson=number, index=index, counts={**begun, **counts})
    meta = {"content": CONTENT, "rounds": 0, "missing": 0, "time": 0.0}
    slots = [
        m.ShowSlot(
            key=KEY, shard=0, lesson=number, slot=slot, index=index, name="value", dtype="int64", is_last=True,
            meta=meta,
        )
        for slot in (0, 1)
    ]  # fmt: skip
    return show, slots


def test_a_slot_that_is_shown_twice_keeps_what_came_in_between() -> None:
    me = Follower(Eventual(), (HEAD, NEXT))
    me.generation((HEAD, ME, NEXT, W0), m.Move(KEY, 0, (HEAD,), ME))
    show, slots = lesson(1, 1, applied={W0: 0}, version=0)
    me.hear(HEAD, show)
    for slot in slots:
        me.hear(HEAD, slot, [0, 0, 0, 0])
    me.entry(2, 0, 0, m.LogEntry(kind=m.Kind.PUSH, who=W0, clock=1))
    me.hear(HEAD, slots[0], [0, 0, 0, 0])
    me.hear(HEAD, show)
    held = me.state.keys[KEY].shards[0]
    assert held.log.index == 2
    assert held.slots[0].content.dense.block.array.view(np.int64).tolist() == [1, 1, 1, 1]


def test_what_waits_of_an_entry_is_void_when_the_lesson_begins_anew_with_the_entry_in_it() -> None:
    me = Follower(Eventual(), (HEAD, NEXT))
    me.generation((HEAD, ME, NEXT, W0), m.Move(KEY, 0, (HEAD,), ME))
    show, slots = lesson(1, 1, applied={W0: 0}, version=0)
    me.hear(HEAD, show)
    me.hear(HEAD, slots[0], [0, 0, 0, 0])
    me.keeps_work = True
    me.entry(2, 0, 0, None)
    me.entry(2, 1, 1, m.LogEntry(kind=m.Kind.PUSH, who=W0, clock=1, elements=(8,)))
    me.hear(HEAD, slots[1], [0, 0, 0, 0])  # it waits, too: as it was before the entry
    again, shown = lesson(2, 2, applied={W0: 1}, version=1, counted={W0: 8})
    me.hear(HEAD, again)
    for slot in shown:
        me.hear(HEAD, slot, [1, 1, 1, 1])
    me.catch_up()
    held = me.state.keys[KEY].shards[0]
    assert (held.version, held.counted, held.clocks.applied, held.log.applied) == (1, {W0: 8}, {W0: 1}, 2)
    for slot in (0, 1):
        assert held.slots[slot].content.dense.block.array.view(np.int64).tolist() == [1, 1, 1, 1]


def test_a_manager_that_is_back_tells_who_is_here_before_it_tells_of_keys() -> None:
    members = (HEAD, W0)
    records = [
        Term(term=1),
        Published(number=1, joined=tuple(node(who) for who in members)),
        NewKey(key=KEY, spec=spec(Sequential()), chains=((HEAD,),)),
    ]
    manager = ManagerState(ManagerConfig(num_servers=1, num_workers=1, term=2), Image(records))
    said: list[str] = []
    for who in members:
        role = Role.WORKER if who == W0 else Role.SERVER
        effects = manager.handle(Received(who, m.Join(role=role, pid=who, addresses=())), 0.0)
        said += [type(one.message).__name__ for one in effects if isinstance(one, Send) and one.peer == HEAD]
    assert said.index("Membership") < said.index("Place")


def test_a_head_reports_a_round_once_its_chain_has_the_one_before() -> None:
    """Else the keeper could be two rounds ahead of who becomes the head, and only says again how the last one ended."""
    keeper, next_ = HEAD, NEXT
    me = Follower(Sequential(), (keeper,))
    me.hear(MANAGER, m.Forget(request=0, name="w", key=KEY))
    me.hear(MANAGER, m.Place(key=KEY, spec=spec(Sequential()), chains=((keeper,), (ME, next_))))

    def reported(said: list[tuple[Incarnation, m.AnyMessage]]) -> list[int]:
        return [message.round for peer, message in said if peer == keeper and isinstance(message, m.Staged)]

    def push(clock: int) -> list[tuple[Incarnation, m.AnyMessage]]:
        message = m.Push(key=KEY, shard=1, clock=clock, since=0, part=0, parts=1, pieces=((1, 0, 4),))
        return me.hear(W0, message, [1] * 4)

    me.hear(next_, m.Beat(sent=0.0, is_answer=True))
    me.hear(W0, m.Init(request=1, key=KEY, shard=1, pieces=((1, 0, 4),)), [0] * 4)
    me.hear(next_, m.Replicated(key=KEY, shard=1, index=1))
    assert reported(push(1)) == []
    assert reported(me.hear(next_, m.Replicated(key=KEY, shard=1, index=2))) == [1]  # all of the chain have the draft
    assert reported(push(2)) == [1]  # which is not closed yet
    assert reported(me.hear(keeper, m.Close(key=KEY, shard=1, round=1, members=(W0,)))) == []
    assert reported(me.hear(next_, m.Replicated(key=KEY, shard=1, index=4))) == [2]


def test_a_keeper_that_takes_over_tells_the_head_that_the_same_generation_names() -> None:
    """A report came before the generation; it is answered when the keeper's shard gets its new chain, and that of the
    shard which reported comes later in the same message."""
    me = Follower(Sequential(), (HEAD,))
    me.hear(MANAGER, m.Forget(request=0, name="w", key=KEY))
    me.hear(MANAGER, m.Place(key=KEY, spec=spec(Sequential()), chains=((HEAD, ME), (HEAD, NEXT))))
    me.entry(1, 0, 0, FIRST)
    me.entry(2, 0, 0, m.LogEntry(kind=m.Kind.DRAFT, clock=1, members=(W0,), elements=(4,), draft=1))
    closed = m.LogEntry(kind=m.Kind.ROUND, clock=1, members=(W0,), elements=(4,), draft=1)
    me.hear(HEAD, m.Replicate(key=KEY, shard=0, index=3, part=0, pieces=(), entry=closed))
    report = m.Staged(key=KEY, shard=1, round=1, term=1, number=2, members=(W0,), draft=1, drafted=(W0,))
    assert me.hear(NEXT, report) == []
    moves = (m.Move(KEY, 0, (ME,), is_settled=True), m.Move(KEY, 1, (NEXT,), is_settled=True))
    said = me.generation((ME, NEXT, W0), *moves)
    assert {peer for peer, message in said if isinstance(message, m.Close)} == {NEXT}
