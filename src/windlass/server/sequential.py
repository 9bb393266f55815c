"""A sequential key: pushes are staged until the keeper closes their round, then applied once, members in rank order."""

from __future__ import annotations

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Later, Send
from windlass.consistency import YES, Admission, Keeper, Rounds, Verdict
from windlass.consistency.rounds import StagedPiece
from windlass.consistency.verdict import who_lacks
from windlass.server.key import ROUND, Apply, End, HeldKey, HeldSlot, Members, Order
from windlass.server.pins import Pins
from windlass.store.dense import DenseSlot
from windlass.types import Generation, Incarnation


class Advance:
    """Work without data: look again whether the next round is complete."""


class SequentialKey(HeldKey):
    def __init__(
        self, place: m.Place, me: Incarnation, slots: dict[int, DenseSlot], members: Members, pins: Pins
    ) -> None:
        super().__init__(place, me, slots, members, pins)
        self.rounds = Rounds()
        self.reports = Keeper(self.servers) if self.keeper == me else None
        self._gone: list[Incarnation] = []  # departed workers whose last push is in a round that is being applied
        self._ahead: list[Order] = []  # the keeper's orders for rounds that are not closed here yet

    def first_clock(self) -> int:
        return self.rounds.closed

    def slot_version(self, slot: HeldSlot) -> int:
        return slot.rounds

    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = self.clocks.admit(peer, push.clock)
        if admission is Admission.NEXT:
            made = self.rounds.find(peer, push.clock)
            if made is not None and push.part in made.seen:
                return Admission.DUPLICATE
        return admission

    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        made = self.rounds.contribution(peer, push.clock, push.parts)
        made.add(push.part, staged)
        made.hyper = push.hyper
        made.wants_ack = not push.pull
        if not made.is_whole:
            return []
        self.clocks.received[peer] = push.clock
        return self.advance()

    def on_members(self) -> list[Effect]:
        return super().on_members() + self.advance()

    def current_round(self) -> int:
        return self.rounds.closed

    def schedule(self, order: Order) -> list[Effect]:
        """An order for a round that is still to be closed here waits for it; one for a round gone by has missed its
        moment, and whoever gave it will give it again."""
        if order.round > self.rounds.closed:
            self._ahead.append(order)
            return []
        return super().schedule(order) if order.round == self.rounds.closed else []

    # --- closing rounds ---------------------------------------------------------------------------------------------

    def on_server_back(self, server: Incarnation) -> list[Effect]:
        """The link to another server is open again: say again what it may have missed. A keeper is at most one round
        ahead of the others."""
        if server == self.keeper:
            return self.advance()
        closed = self.rounds.closed
        if self.reports is None or server not in self.servers or closed not in self.rounds.members:
            return []
        return [Send(server, m.Close(key=self.id, round=closed, members=self.rounds.members[closed]))]

    def is_round_ready(self) -> bool:
        return self.rounds.is_ready(self.members.live)

    def advance(self) -> list[Effect]:
        """Close the next round, or report to its keeper, if everything for it is here."""
        if not self.is_round_ready():
            return []
        round = self.rounds.closed + 1
        whole = self.rounds.whole(round)
        if len(self.servers) == 1:
            return self.close(round, whole)
        generation = self.members.generation
        report = m.Staged(key=self.id, round=round, term=generation.term, number=generation.number, members=whole)
        return [Send(self.keeper, report)] if self.reports is None else self.staged(self.me, report)

    def staged(self, server: Incarnation, report: m.Staged) -> list[Effect]:
        """Keeper: a server has everything of a round. A round closed already is told again: the word was lost."""
        if self.reports is None:
            return []
        if report.round <= self.rounds.closed:
            members = self.rounds.members.get(report.round)
            if members is None or server == self.me:
                return []
            return [Send(server, m.Close(key=self.id, round=report.round, members=members))]
        self.reports.report(server, report.round, Generation(report.term, report.number), report.members)
        if report.round != self.rounds.closed + 1:
            return []
        agreed = self.reports.verdict(report.round, self.members.generation)
        if agreed is None:
            return []
        close = m.Close(key=self.id, round=report.round, members=tuple(agreed))
        effects: list[Effect] = [Send(other, close) for other in self.servers if other != self.me]
        return effects + self.close(report.round, close.members)

    def close(self, round: int, members: tuple[Incarnation, ...]) -> list[Effect]:
        """The round is decided: queue its update for every slot here. Safe to repeat."""
        if round != self.rounds.closed + 1:
            return []
        made = self.rounds.close(tuple(sorted(members, key=self.members.rank)))
        for who in made:
            if who not in self.members.live:  # its last word
                self._gone.append(who)
        push = (ROUND, round)
        hyper = next((one.hyper for one in made.values()), None)
        if any(one.hyper != hyper for one in made.values()):
            told = ", ".join(f"{self.members.name(who)} {one.hyper}" for who, one in made.items())
            self._errors[push] = f"the hyper-parameters of round {round} of '{self.spec.name}' differ: {told}"
        by_slot: dict[int, list[StagedPiece]] = {number: [] for number in self.slots}
        if push not in self._errors:
            for one in made.values():
                for piece in one.pieces:
                    by_slot[piece[0]].append(piece)
        effects = self.queue(
            [
                *(Apply(number, pieces, len(made), hyper, push) for number, pieces in by_slot.items()),
                End(push, tuple(made), tuple(who for who, one in made.items() if one.wants_ack)),
            ]
        )
        if self._ahead:
            ahead, self._ahead = self._ahead, []
            for order in ahead:
                effects += self.schedule(order)
        if self.is_round_ready():
            effects.append(Later((self.id, Advance())))
        return effects

    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int) -> Verdict:
        return YES if slot.rounds >= clock and not slot.missing else super().verdict(slot, peer, clock)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        slot.rounds = unit.push[1]

    def ended(self, clock: int) -> None:
        self.version = clock
        while self._gone:
            self.clocks.leave(self._gone.pop())

    def dissolve(self) -> list[Effect]:
        gone = f"'{self.spec.name}' was deleted"
        return super().dissolve() + [
            Send(who, m.Ack(key=self.id, clock=clock, error=gone)) for who, clock in self.rounds.waiting_acks()
        ]

    # --- looking ----------------------------------------------------------------------------------------------------

    def explain(self, peer: Incarnation) -> str:
        """What a wait on this key waits for, in words."""
        if not self.is_ready:
            return f"'{self.spec.name}' waits for its first value from rank 0"
        round = self.rounds.closed + 1
        missing = who_lacks(self.members.live, self.rounds.whole(round))
        if missing:
            return f"round {round} of '{self.spec.name}' waits for {', '.join(missing)}"
        return f"round {round} of '{self.spec.name}' is staged here and waits for another server of the key"

    @property
    def staged_bytes(self) -> int:
        return self.rounds.staged_bytes
