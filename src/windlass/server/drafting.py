"""Drafts: what a shard has reduced of a round that is not closed yet.

Before a round is closed, every shard of the key has a *draft* of it: the pieces of its members, reduced. The draft
goes down the chain as an entry, and everybody there keeps it, beside the value. Only when all of the chain have it does
the head report to the keeper; only when all shards have one of the same members is the round closed. What then goes
down the chain is one word: apply it. So a round that is closed is applied whole, even if a worker and the head that
alone had its pieces die together.

Where nobody comes after the head a draft is of the pieces themselves, and they are reduced when the round is closed. A
learner is shown nothing while a draft waits: it would not have it.
"""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Log
from windlass.consistency.rounds import Contribution, Rounds, StagedPiece
from windlass.server.content import Content
from windlass.server.host import Host, Routes
from windlass.server.log import COPIED_BYTES, Whole
from windlass.server.shard import Shard
from windlass.server.units import ROUND, Draft, Drafted, Echo, Keep, LetGo, Mark, Reduce, Unit, count_staged
from windlass.server.updating import named
from windlass.types import Incarnation, Lease

DRAFT = m.Kind.DRAFT


class DraftingShard(Shard):
    __slots__ = ("_draft", "rounds")

    def __init__(self, place: m.Place, number: int, slots: dict[int, Content], routes: Routes, host: Host) -> None:
        super().__init__(place, number, slots, routes, host)
        self.rounds = Rounds()
        self._draft: Draft | None = None  # of the next round

    # --- what a round is made of --------------------------------------------------------------------------------------

    def compose(self, round: int, members: tuple[Incarnation, ...]) -> Draft:
        """A round of these members, in the order of their ranks, of what they have made; nothing is reduced yet."""
        ranked = members if len(members) == 1 else tuple(sorted(members, key=self.members.rank))
        made = self.rounds.of(round, ranked)
        counted, leases = self._lease(made)
        hyper = next(iter(counted.values())).hyper if counted else None
        error = self._errors.get((ROUND, round), "")
        if not error and len(counted) > 1 and any(one.hyper != hyper for one in counted.values()):
            told = ", ".join(f"{self.members.name(who)} {one.hyper}" for who, one in counted.items())
            error = f"the hyper-parameters of round {round} of '{self.spec.name}' differ: {told}"
        elements = dict.fromkeys(ranked, 0)
        pieces: list[StagedPiece] = []
        if not error:
            for who, one in made.items():  # work that was done before is accounted for, too
                elements[who] = count_staged(one.pieces) if self.decoder is None else one.elements
            pieces = [piece for one in counted.values() for piece in one.pieces]
        entry = m.LogEntry(
            kind=m.Kind.ROUND, clock=round, members=ranked, hyper=hyper, elements=tuple(elements.values()),
            leases=leases, now=self.time.now(),
        )  # fmt: skip
        divisor = max(1, len(ranked) - (len(made) - len(counted)))
        return Draft(entry=entry, divisor=divisor, pieces=pieces, error=error)

    def _lease(
        self, made: dict[Incarnation, Contribution]
    ) -> tuple[dict[Incarnation, Contribution], tuple[Lease, ...]]:
        """Those whose work counts, and what they complete: of two who did the same work, the lower rank's; nobody's, if
        it has been counted. All shards of a key have the same rounds, and come to the same."""
        if all(one.lease is None for one in made.values()):
            return made, ()
        counted: dict[Incarnation, Contribution] = {}
        leases: list[Lease] = []
        for who, one in made.items():
            if one.lease is not None:
                taken = {number for lease in leases if lease.workload == one.lease.workload for number in lease.numbers}
                is_free = self.batches.is_free(one.lease.workload, one.lease.numbers)
                if not is_free or not taken.isdisjoint(one.lease.numbers):
                    continue
                leases.append(one.lease)
            counted[who] = one
        return counted, tuple(leases)

    # --- the head makes it --------------------------------------------------------------------------------------------

    def make_draft(self, round: int, members: tuple[Incarnation, ...], number: int) -> list[Effect]:
        """Draft the next round, of the contributions of these, in place of any draft before. It is reported when the
        chain has it."""
        effects = self.forget_draft()
        draft = self._draft = self.compose(round, members)
        draft.number = number
        if self.log.downstream is None:
            draft.is_made = self.awaits = True
            return effects + self.report_draft(draft)
        given, draft.pieces, draft.is_reduced = draft.pieces, [], True
        by_slot: dict[int, list[StagedPiece]] = {}
        for piece in given:
            by_slot.setdefault(piece[0], []).append(piece)
        units: list[Unit] = [Reduce(slot, pieces, draft) for slot, pieces in by_slot.items()]
        return effects + self.queue([*units, Drafted(draft)])

    def _reduce_slot(self, unit: Reduce) -> list[Effect]:
        draft = unit.draft
        if draft is not self._draft or draft.error:
            return []
        try:
            reduced, blocks = self.reduce(self.slots[unit.slot], unit.pieces, draft.divisor)
        except (Exception, SystemExit) as error:  # a user's code may call sys.exit()
            draft.error = self.failure(error)
            return [Log("error", draft.error)]
        draft.pins += [self._pins.pin(self.me, block) for block in blocks if block.array.nbytes > COPIED_BYTES]
        draft.pieces += reduced
        return self.log.part(named(reduced), blocks)

    def _drafted(self, unit: Drafted) -> list[Effect]:
        draft = unit.draft
        if draft is not self._draft:
            return []
        draft.is_made = self.awaits = True
        entry = msgspec.structs.replace(draft.entry, kind=DRAFT, draft=draft.number, error=draft.error)
        return self.log.seal(entry) + self.report_draft(draft)

    @abstractmethod
    def report_draft(self, draft: Draft) -> list[Effect]:
        """Tell the keeper, once the chain has it."""

    # --- the others keep it -------------------------------------------------------------------------------------------

    def follow(self, whole: Whole) -> list[Effect]:
        entry = whole.entry
        if entry.kind is m.Kind.ROUND and entry.draft:
            return self._follow_drafted(whole)
        if entry.kind is not DRAFT:
            return super().follow(whole)
        self.time.hear(entry.now)
        effects = self.forget_draft()
        self.log.keep(whole)
        pieces = [(*piece, data) for part in whole.parts for piece, data in zip(part.pieces, part.data, strict=True)]
        self._draft = Draft(
            entry=msgspec.structs.replace(entry, kind=m.Kind.ROUND, draft=0, error=""), pieces=pieces, whole=whole,
            number=entry.draft, error=entry.error, is_made=True, is_reduced=True,
        )  # fmt: skip
        return effects + self.queue([Keep(whole)])

    def _keep(self, unit: Keep) -> list[Effect]:
        self.awaits = True
        return self.log.mark(unit.whole, is_kept=True)

    def _follow_drafted(self, whole: Whole) -> list[Effect]:
        """The round of the draft that is kept here is closed."""
        entry, draft = whole.entry, self._draft
        assert draft is not None, "a round came without its draft"
        assert draft.number == entry.draft, "a round came with another's draft"
        self._draft = None
        self.time.hear(entry.now)
        pieces = [piece for piece in draft.pieces if piece[0] not in entry.skipped]
        echoes = [Echo(whole.index, one.slot, one) for one in self._reduced(entry, pieces)]
        return self.queue([*echoes, *self.follow_push(entry), Mark(whole), LetGo(draft)])

    # --- its end ------------------------------------------------------------------------------------------------------

    def forget_draft(self) -> list[Effect]:
        draft, self._draft = self._draft, None
        return [] if draft is None else self._free(draft)

    def _let_go(self, unit: LetGo) -> list[Effect]:
        """Its round is applied, and in the log: now a learner can be shown what is here; unless the next draft is made
        already, and one of pieces, which is in no entry."""
        self.awaits = self._draft is not None and not self._draft.is_reduced
        effects = self._free(unit.draft)
        if not self.awaits and self.is_lesson_due and self.log.learner is not None:
            effects += self.teach(self.log.learner)
        return effects

    def _free(self, draft: Draft) -> list[Effect]:
        for pin in draft.pins:
            self._pins.release(pin)
        draft.pins.clear()
        return [] if draft.whole is None else self.log.unkeep(draft.whole)

    def begin_lesson(self, show: m.Show) -> list[Effect]:
        return self.forget_draft() + super().begin_lesson(show)

    def _drop(self, unit: Unit) -> list[Effect]:
        if isinstance(unit, Keep):
            return self.log.drop(unit.whole, is_kept=True)
        return self._free(unit.draft) if isinstance(unit, LetGo) else super()._drop(unit)

    def leave(self) -> list[Effect]:
        return self.forget_draft() + super().leave()

    def dissolve(self) -> list[Effect]:
        return self.forget_draft() + super().dissolve()
