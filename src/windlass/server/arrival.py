"""A shard of a bounded or eventual key: each push is an update of its own, applied on arrival."""

from __future__ import annotations

from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Recycle
from windlass.consistency import Admission
from windlass.consistency.clocks import NEXT
from windlass.consistency.rounds import StagedPiece
from windlass.server.content import Content
from windlass.server.host import Host, Routes
from windlass.server.shard import Shard
from windlass.server.units import Apply, ApplyRows, End, HeldSlot, count_given, count_staged
from windlass.types import Bounded, Incarnation

PUSH = m.Kind.PUSH


class ArrivalShard(Shard):
    __slots__ = (
        "_ended", "_given", "_seen", "_staged",
    )  # fmt: skip

    answers_by_slot = False  # a pull speaks of whole pushes, so it waits for End

    def __init__(self, place: m.Place, number: int, slots: dict[int, Content], routes: Routes, host: Host) -> None:
        super().__init__(place, number, slots, routes, host)
        self._staged: dict[Incarnation, list[StagedPiece]] = {}  # of next pushes that complete work, and are not whole
        self._given: dict[Incarnation, int] = {}  # how many elements those were made of
        self._seen: dict[Incarnation, set[int]] = {}  # parts that are here of each worker's next push
        self._ended: dict[Incarnation, set[int]] = {}  # those of them that are applied, and in an entry

    def first_clock(self) -> int:
        return self.clocks.lowest(self.crew)[0]

    def last_clock(self) -> int:
        return max((clock for who, clock in self.clocks.received.items() if who in self.live), default=0)

    def slot_version(self, slot: HeldSlot) -> int:
        return self.version + self.base

    def current_count(self) -> int:
        return self.version + self.base

    def moment(self, count: int | None) -> int | None:
        return None if count is None else -1

    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = self.clocks.admit(peer, push.clock)
        if admission is NEXT and push.part in self._seen.get(peer, ()):
            return Admission.DUPLICATE
        return admission

    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        if push.completes is not None or self.may_refuse:
            return self._accept_whole(peer, push, staged)
        divisor = max(1, len(self.crew))
        which = (peer, push.clock)
        entry = m.LogEntry(
            kind=PUSH,
            who=peer,
            clock=push.clock,
            part=push.part,
            parts=push.parts,
            hyper=push.hyper,
            elements=(count_staged(staged) if self.decoder is None else count_given(push),),
            now=self.time.now(),
        )
        is_whole = self._count(entry)
        end = End(which, (peer,) if is_whole else (), (peer,) if is_whole and not push.pull else (), entry)
        if self.is_table and self.log.downstream is None:
            runs = [
                ApplyRows(run, divisor, push.hyper, which, entry.now, is_slow) for run, is_slow in self._runs(staged)
            ]
            return self.queue([*runs, end])
        applies = [Apply(piece[0], [piece], divisor, push.hyper, which, entry.now) for piece in staged]
        return self.queue([*applies, end])

    def _runs(self, staged: list[StagedPiece]) -> list[tuple[list[StagedPiece], bool]]:
        """Pieces of different slots, as many together as may be done at once. One whose slot grows is alone, and may
        be slow."""
        runs: list[tuple[list[StagedPiece], bool]] = []
        size, slots = self._at_once_bytes, set[int]()
        for piece in staged:
            is_slow = self.slots[piece[0]].content.is_growing
            if is_slow or size >= self._at_once_bytes or piece[0] in slots:
                runs.append(([], is_slow))
                size, slots = 0, set()
            runs[-1][0].append(piece)
            size += self._at_once_bytes if is_slow else piece[3].nbytes
            slots.add(piece[0])
        return runs

    def _accept_whole(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        """What completes work, or may be refused, counts here as a whole or not at all, so its parts are kept until all
        are here."""
        pieces = self._staged.setdefault(peer, [])
        pieces += staged
        self._given[peer] = self._given.get(peer, 0) + count_given(push)
        seen = self._seen.setdefault(peer, set())
        seen.add(push.part)
        if len(seen) < push.parts:
            return []
        del self._seen[peer], self._staged[peer]
        given = self._given.pop(peer)
        self.clocks.received[peer] = push.clock
        which, lease = (peer, push.clock), push.completes
        is_free = lease is None or self.batches.is_free(lease.workload, lease.numbers)
        if is_free and lease is not None:
            self.batches.take(lease.workload, lease.numbers)
        # Work that was done before is accounted for, too.
        given = count_staged(pieces) if self.decoder is None else given
        entry = m.LogEntry(
            kind=PUSH,
            who=peer,
            clock=push.clock,
            hyper=push.hyper,
            elements=(given,),
            leases=(lease,) if is_free and lease is not None else (),
            now=self.time.now(),
        )
        end = End(which, (peer,), () if push.pull else (peer,), entry)
        divisor = max(1, len(self.crew))
        applies = [Apply(piece[0], [piece], divisor, push.hyper, which, entry.now) for piece in pieces]
        if is_free:
            return self.queue([*self.checks(pieces, which), *applies, end])
        return [Recycle(tuple(piece[3] for piece in pieces)), *self.queue([end])]

    def _count(self, entry: m.LogEntry) -> bool:
        """One part more of somebody's next push is here. Whether it was the last."""
        seen = self._seen.setdefault(entry.who, set())
        seen.add(entry.part)
        if len(seen) < entry.parts:
            return False
        del self._seen[entry.who]
        self.clocks.received[entry.who] = entry.clock
        return True

    def counts(self) -> dict[str, Any]:
        return super().counts() | {"seen": {who: sorted(parts) for who, parts in self._ended.items()}}

    def learn_counts(self, counts: dict[str, Any]) -> None:
        super().learn_counts(counts)
        self._seen = {Incarnation(who): set(parts) for who, parts in counts["seen"].items()}
        self._ended = {who: set(parts) for who, parts in self._seen.items()}

    def follow_push(self, entry: m.LogEntry) -> list[End]:
        self.clocks.start(entry.who, entry.clock - 1)
        is_whole = self._count(entry)
        return [End((entry.who, entry.clock), (entry.who,) if is_whole else (), (), entry, is_followed=True)]

    def demote(self) -> None:
        super().demote()
        self._staged.clear()
        self._given.clear()
        self._seen = {who: set(parts) for who, parts in self._ended.items()}

    def end(self, end: End) -> list[Effect]:
        if end.members:
            self._ended.pop(end.push[0], None)
            if self._aside:
                self.free_room(lambda who, clock: who == end.push[0] and 0 < clock <= end.push[1])
        else:
            self._ended.setdefault(end.push[0], set()).add(end.entry.part)
        return super().end(end)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        pass

    def ended(self, clock: int) -> None:
        self.version += 1

    def current_round(self) -> int:
        return -1

    def on_fewer(self) -> list[Effect]:
        return [effect for slot in self.slots.values() if slot.waiting for effect in self.answer_waiting(slot)]

    def on_members(self) -> list[Effect]:
        live, seen = self.members.live, self.members.ranks
        for who in [who for who in self.clocks.applied if who not in live and who in seen]:  # others are yet to come
            self.clocks.leave(who)
            self._seen.pop(who, None)
            self._staged.pop(who, None)
            self._given.pop(who, None)
            self._ended.pop(who, None)
        return super().on_members() + self.on_fewer()

    def explain(self, peer: Incarnation) -> str:
        """What a wait on this key waits for, in words."""
        if not self.is_ready:
            return f"'{self.spec.name}' waits for its first value from rank 0"
        own = self.clocks.applied.get(peer, 0)
        lowest, slowest = self.clocks.lowest(self.crew)
        if isinstance(self.spec.consistency, Bounded) and slowest is not None and lowest < own:
            delay = self.spec.consistency.delay
            return f"'{self.spec.name}' waits for {self.members.name(slowest)}, {own - lowest} behind (delay {delay})"
        return f"'{self.spec.name}': {own} own pushes are in"

    @property
    def staged_bytes(self) -> int:
        return sum(data.nbytes for pieces in self._staged.values() for *_, data in pieces)
