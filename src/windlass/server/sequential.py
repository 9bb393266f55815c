"""A shard of a sequential key: pushes are staged until the keeper closes their round, then applied once, members in
rank order."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Later, Recycle, Send
from windlass.consistency import YES, Admission, Keeper, Rounds, Verdict
from windlass.consistency.clocks import NEXT
from windlass.consistency.rounds import Report, StagedPiece
from windlass.consistency.verdict import who_lacks
from windlass.server.content import Content
from windlass.server.drafting import DraftingShard
from windlass.server.host import Host, Routes
from windlass.server.units import ROUND, Apply, Draft, End, Freezing, HeldSlot, LetGo, Order, Unit, count_given
from windlass.types import Generation, Incarnation


class Advance:
    """Work without data: look again whether the next round is complete."""

    def __repr__(self) -> str:
        return "Advance()"


class SequentialShard(DraftingShard):
    __slots__ = (
        "_ahead", "_gone", "_judged", "_objections", "_reports",
    )  # fmt: skip

    answers_by_slot = True

    keeper_kind: type[Keeper] = Keeper

    def __init__(self, place: m.Place, number: int, slots: dict[int, Content], routes: Routes, host: Host) -> None:
        super().__init__(place, number, slots, routes, host)
        self._reports = self.keeper_kind(self.num_shards)  # used by the keeper alone
        self._gone: list[Incarnation] = []  # departed workers whose last push is in a round that is being applied
        self._judged: tuple[int, tuple[Incarnation, ...], str] = (0, (), "")  # round, whose, why it cannot be taken
        self._objections: dict[int, tuple[int, str]] = {}  # keeper: by shard, of the last round it reported
        self._ahead: list[Order | Freezing] = []  # the keeper's orders for rounds that are not closed here yet

    @property
    def is_keeper(self) -> bool:
        return self.number == 0

    def first_clock(self) -> int:
        return self.rounds.closed

    def last_clock(self) -> int:
        pushed = (clock for who, clock in self.clocks.received.items() if who in self.live)
        return max(self.rounds.closed, *pushed, 0)

    def slot_version(self, slot: HeldSlot) -> int:
        return slot.rounds + self.base

    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = self.clocks.admit(peer, push.clock)
        if admission is NEXT:
            made = self.rounds.find(peer, push.clock)
            if made is not None and push.part in made.seen:
                return Admission.DUPLICATE
        return admission

    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        made = self.rounds.contribution(peer, push.clock, push.parts)
        made.add(push.part, staged, count_given(push))
        made.hyper, made.lease = push.hyper, push.completes
        made.wants_ack = not push.pull
        if not made.is_whole:
            return []
        self.clocks.received[peer] = push.clock
        return self.advance()

    def on_members(self) -> list[Effect]:
        """A keeper tells the heads that there are now how the last round ended: it may have told one that is gone."""
        again = range(1, self.num_shards) if self.is_keeper and self.log.is_head else ()
        told = [close for shard in again for close in self._close_again(shard)]
        return super().on_members() + told + self.advance()

    def current_round(self) -> int:
        return self.rounds.closed

    def current_count(self) -> int:
        return self.rounds.closed + self.base

    def moment(self, count: int | None) -> int | None:
        return None if count is None else count - self.base

    def schedule(self, order: Order | Freezing) -> list[Effect]:
        """An order for a round that is still to be closed here waits for it; one for a round gone by has missed its
        moment, and whoever gave it will give it again."""
        if order.round > self.rounds.closed:
            self._ahead.append(order)
            return []
        return super().schedule(order) if order.round == self.rounds.closed else []

    # --- closing rounds ---------------------------------------------------------------------------------------------

    def on_head(self) -> list[Effect]:
        return self.advance()

    def on_server_back(self, server: Incarnation) -> list[Effect]:
        """A keeper is at most one round ahead of the others."""
        if server == self.routes.keeper:
            return self.advance()
        if not self.is_keeper:
            return []
        mine = range(1, self.num_shards)
        again = [close for shard in mine if self.routes.head(shard) == server for close in self._close_again(shard)]
        return again + self._decide()

    def _close_again(self, shard: int, head: Incarnation | None = None) -> list[Effect]:
        """Tell this server, or the head of the shard, how the last round ended."""
        closed, head = self.rounds.closed, head or self.routes.head(shard)
        members = self.rounds.members.get(closed)
        if members is None or head is None or (closed != self.version and not self.log.is_last):
            return []  # in the last case it is told when our chain knows of it
        refusal = self.rounds.refusals.get(closed, "")
        return [Send(head, m.Close(key=self.id, shard=shard, round=closed, members=members, error=refusal))]

    def is_round_ready(self) -> bool:
        return self.speaks and self.rounds.is_ready(self.crew, self.clocks.received)

    @property
    def speaks(self) -> bool:
        """A pause begins between two rounds: while the keeper may count on a draft, nobody else takes over."""
        return self.log.is_head and (not self.is_pausing or self._draft is not None)

    def settle(self) -> list[Effect]:
        return [] if self.speaks else super().settle()

    def advance(self) -> list[Effect]:
        """Close the next round, or draft it and report to its keeper, if everything for it is here. Only the first that
        our chain does not have: the keeper says again how the last round ended, and who comes after us must not need
        another."""
        if not self.is_round_ready():
            return []
        round = self.rounds.closed + 1
        if self.num_shards == 1:
            return self.close(round, self.rounds.whole(round))
        if self.version < self.rounds.closed:
            return []  # the one before is still to be applied; what is said then is held back until it is safe
        if self._draft is None:
            return self.make_draft(round, self.rounds.whole(round), 1)
        return self.report_draft(self._draft) if self._draft.is_made else []

    def report_draft(self, draft: Draft) -> list[Effect]:
        round, drafted = draft.entry.clock, draft.entry.members
        if self.may_refuse and self._judged[:2] != (round, drafted):
            problem = self.refusal(draft.pieces, (ROUND, round))
            self._judged = (round, drafted, self.nothing_taken(problem) if problem else "")
        term, number = self.members.generation
        report = m.Staged(
            key=self.id, shard=self.number, round=round, term=term, number=number, members=self.rounds.whole(round),
            error=self._judged[2], draft=draft.number, drafted=drafted,
        )  # fmt: skip
        if self.is_keeper and self.log.is_last:
            return self.staged(report, self.me)
        keeper = self.routes.keeper
        return [] if keeper is None else [Send(keeper, report)]

    def propose(self, asked: m.Propose) -> list[Effect]:
        """The keeper wants a draft of other members, in place of the one that we reported. It has not closed the round
        with that one, nor will it: of an earlier keeper's word we could not know that."""
        draft = self._draft
        if draft is None or not draft.is_made or (draft.entry.clock, draft.number) != (asked.round, asked.draft):
            return []
        is_now = Generation(asked.term, asked.number) == self.members.generation
        if not is_now or not self.rounds.has(asked.round, asked.members):
            return []
        return self.make_draft(asked.round, asked.members, draft.number + 1)

    def staged(self, report: m.Staged, who: Incarnation) -> list[Effect]:
        """Keeper: a shard has everything of a round, says this server. A round closed already is told again, and to it:
        the word was lost, or went to a head before it, of a generation that we may still be in."""
        if report.round <= self.rounds.closed:
            is_last = report.round == self.rounds.closed and report.shard != self.number
            return self._close_again(report.shard, who) if is_last else []
        generation, drafted = Generation(report.term, report.number), frozenset(report.drafted)
        said = Report(generation, report.round, report.draft, drafted, frozenset(report.members))
        self._reports.report(report.shard, said)
        self._objections[report.shard] = (report.round, report.error)
        return self._decide()

    def _decide(self) -> list[Effect]:
        """Keeper: close the next round, if all shards have drafted it of the same members; or have them do so."""
        round = self.rounds.closed + 1
        if not self.rounds.is_ready(self.crew, self.clocks.received):
            return []  # somebody has come since we reported ourselves
        agreed = self._reports.verdict(round, self.members.generation, self.members.live)
        if agreed is None:
            return []
        members = tuple(agreed)
        others = self._reports.others(agreed)
        if others:
            return self._propose(round, members, others)
        # A round is closed once the keeper's chain knows of it: then no other end of it can be decided. Where nobody
        # comes after the keeper, that is now.
        objections = (error for judged, error in self._objections.values() if judged == round and error)
        refusal = next(objections, "")
        told = self._tell_closed(round, members, refusal) if self.log.is_last else []
        return told + self.close(round, members, refusal)

    def _propose(self, round: int, members: tuple[Incarnation, ...], others: list[tuple[int, int]]) -> list[Effect]:
        term, number = self.members.generation
        return [
            Send(
                head,
                m.Propose(
                    key=self.id, shard=shard, round=round, term=term, number=number, draft=draft, members=members
                ),
            )
            for shard, draft in others if (head := self.routes.head(shard)) is not None
        ]  # fmt: skip

    def _tell_closed(self, round: int, members: tuple[Incarnation, ...], refusal: str) -> list[Effect]:
        return [
            Send(head, m.Close(key=self.id, shard=shard, round=round, members=members, error=refusal))
            for shard in range(1, self.num_shards) if (head := self.routes.head(shard)) is not None
        ]  # fmt: skip

    def close(self, round: int, members: tuple[Incarnation, ...], refusal: str = "") -> list[Effect]:
        """The round is decided: queue its update for every slot here, or that it is refused, on every shard. Safe to
        repeat. Who became the head after the old one had reported does not have everybody's pieces yet: it reports when
        it has, and is told again."""
        live = self.members.live
        if round != self.rounds.closed + 1 or not self.rounds.has(round, [who for who in members if who in live]):
            return []
        draft = self._draft
        if self.num_shards == 1:
            draft = self.compose(round, members)
        elif draft is None or not draft.is_made or set(draft.entry.members) != set(members):
            return []  # of an earlier head: we report what we have
        self._draft, ranked = None, draft.entry.members
        made = self.rounds.close(ranked, refusal)
        self._gone += [who for who in ranked if who not in live]  # their last word
        push = (ROUND, round)
        entry = draft.entry
        if draft.is_reduced:
            entry = msgspec.structs.replace(entry, now=self.time.now(), draft=draft.number)
        if refusal or draft.error:
            self._errors[push] = refusal or draft.error
            entry = msgspec.structs.replace(entry, is_refused=bool(refusal), elements=(0,) * len(ranked))
        for lease in entry.leases:
            self.batches.take(lease.workload, lease.numbers)
        acks = tuple([who for who, one in made.items() if one.wants_ack])
        units = [*self._updates(draft, entry, push), End(push, ranked, acks, entry)]
        effects = self.queue([*units, LetGo(draft)] if self.num_shards > 1 else units)
        if draft.is_reduced:
            effects.append(Recycle(tuple([piece[3] for one in made.values() for piece in one.pieces])))
        if self._ahead:
            ahead, self._ahead = self._ahead, []
            for order in ahead:
                effects += self.schedule(order)
        if self.num_shards == 1 and self.is_round_ready():  # else that is looked at when this one has ended
            effects.append(Later((self, Advance())))
        return effects

    def _updates(self, draft: Draft, entry: m.LogEntry, push: tuple[Incarnation, int]) -> list[Unit]:
        by_slot: dict[int, list[StagedPiece]] = {number: [] for number in self.slots}
        for piece in draft.pieces:
            by_slot[piece[0]].append(piece)
        is_reduced = draft.is_reduced
        return [
            *self.checks(draft.pieces, push),
            *(
                Apply(number, pieces, draft.divisor, entry.hyper, push, entry.now, is_reduced, is_reduced)
                for number, pieces in by_slot.items()
            ),
        ]

    def end(self, end: End) -> list[Effect]:
        effects = super().end(end)
        if self.is_keeper and self.num_shards > 1 and not end.is_followed and not self.log.is_last:
            effects += self._tell_closed(end.push[1], end.members, self.rounds.refusals.get(end.push[1], ""))
        if self.num_shards > 1 and self.log.is_head:
            effects.append(Later((self, Advance())))  # the next round may be whole already
        return effects

    def demote(self) -> None:
        super().demote()
        if self._draft is not None and self._draft.whole is None:
            self.forget_draft()
        self.awaits = self._draft is not None
        members, refusals, closed = self.rounds.members, self.rounds.refusals, self.rounds.closed
        self.rounds = Rounds(closed)
        self.rounds.members, self.rounds.refusals = members, refusals
        self._judged = (0, (), "")
        self._ahead.clear()

    def on_fewer(self) -> list[Effect]:
        return self.advance()  # who joins late, too, owes the open rounds of a shard that lags none

    def counts(self) -> dict[str, Any]:
        refusal = self.rounds.refusals.get(self.version, "")
        return super().counts() | {"members": list(self.rounds.members.get(self.version, ())), "refusal": refusal}

    def learn_counts(self, counts: dict[str, Any]) -> None:
        super().learn_counts(counts)
        self.rounds = Rounds(self.version)
        self.rounds.members = {self.version: tuple(Incarnation(who) for who in counts["members"])}
        self.rounds.refusals = {self.version: counts["refusal"]}

    def follow_push(self, entry: m.LogEntry) -> list[End]:
        for who in entry.members:
            self.clocks.start(who, entry.clock - 1)
            self.clocks.received[who] = entry.clock
            if who not in self.members.live and who in self.members.ranks:  # else we are yet to hear of it
                self._gone.append(who)
        self.rounds.close(entry.members, entry.error if entry.is_refused else "")
        return [End((ROUND, entry.clock), entry.members, (), entry, is_followed=True)]

    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int, ahead: int = 0) -> Verdict:
        return YES if slot.rounds >= clock and not slot.missing else super().verdict(slot, peer, clock, ahead)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        slot.rounds = unit.push[1]

    def ended(self, clock: int) -> None:
        self.version = clock
        while self._gone:
            self.clocks.leave(self._gone.pop())

    def dissolve(self) -> list[Effect]:
        gone = f"'{self.spec.name}' was deleted"
        return super().dissolve() + [Send(who, self._ack(clock, gone)) for who, clock in self.rounds.waiting_acks()]

    # --- looking ----------------------------------------------------------------------------------------------------

    def explain(self, peer: Incarnation) -> str:
        """What a wait on this key waits for, in words."""
        if not self.is_ready:
            return f"'{self.spec.name}' waits for its first value from rank 0"
        round = self.rounds.closed + 1
        missing = who_lacks(self.crew, self.rounds.whole(round))
        if missing:
            return f"round {round} of '{self.spec.name}' waits for {', '.join(missing)}"
        return f"round {round} of '{self.spec.name}' is staged here and waits for another shard of the key"

    @property
    def staged_bytes(self) -> int:
        return self.rounds.staged_bytes
