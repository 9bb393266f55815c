"""Whom a shard counts on: the workers that attach to it, rest, and come back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.consistency import CountedBatches
from windlass.server.answers import Answers
from windlass.server.units import THE_SHARDS, Rest, Start, Unit
from windlass.types import Generation, Incarnation

NAMED, LEVEL = -1, -2
"""In place of the clock of an Attach: we name it; we only say where whoever has made most pushes is."""


class Crew(Answers):
    """The part of a shard that knows who takes part in it; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    batches: CountedBatches
    resting: set[Incarnation]
    asked: dict[Incarnation, int]  # under which number each asked to begin or to rest, last
    _crew: tuple[Generation, dict[Incarnation, str]] | None

    @property
    def live(self) -> Mapping[Incarnation, str]:
        """The workers of the key's namespace."""
        return self.members.of(self.spec.namespace)

    @property
    def crew(self) -> Mapping[Incarnation, str]:
        """Those of them whose pushes are waited for: not who rests, nor who came late and has not begun here."""
        known = self._crew
        if known is None or known[0] is not self.members.generation:
            late, begun, resting = self.members.late, self.clocks.received, self.resting
            crew = {
                who: name for who, name in self.live.items()
                if who not in resting and (who not in late or who in begun)
            }  # fmt: skip
            known = self._crew = (self.members.generation, crew)
        return known[1]

    def attach(self, peer: Incarnation, attach: m.Attach) -> list[Effect]:
        if attach.clock >= 0:  # the keeper has named it
            return self.queue([Start(peer, attach.clock, attach.request)])
        self._attaching.append((peer, attach))
        return self.answer_attaching()

    def answer_attaching(self) -> list[Effect]:
        if not self._attaching or not self.log.is_head:
            return []
        if not self.is_ready:
            return self._ask_for_first_value()
        waiting, self._attaching = self._attaching, []
        effects: list[Effect] = []
        for peer, attach in waiting:
            request = attach.request
            if self.members.generation < (attach.term, attach.number):
                # We may still count on somebody who is gone, and the keeper of the next key not any more: who took its
                # place by both our words would be ahead on one key alone, and the others would wait for it in a circle.
                self._attaching.append((peer, attach))
            elif attach.clock == LEVEL:
                highest = max(self.clocks.received.get(peer, 0), self.last_clock())
                effects.append(Send(peer, m.Done(request=request, detail=highest)))
            elif peer in self.members.live:
                effects += self.queue([Start(peer, NAMED, request)])
            else:
                effects.append(Send(peer, m.Done(request=request, detail=0)))
        return effects

    def _clock_for(self, peer: Incarnation) -> int:
        """Where a worker begins here: where it stopped; or, if it comes anew or has rested, where the others are."""
        received = self.clocks.received.get(peer)
        if received is not None and peer not in self.resting:
            return received
        return max(self.first_clock(), received or 0)

    def _is_late(self, unit: Start | Rest) -> bool:
        """Whether it was asked for before what its worker asked for last, which is done. The head of then has heard of
        it, under the same number; this copy was on a slow link, or was kept here for whoever would be the head. To
        begin or to rest now would undo what was asked for since."""
        return not unit.is_followed and unit.request < self.asked.get(unit.who, 0)

    def _start(self, unit: Start) -> list[Effect]:
        if self._is_late(unit):
            return [Send(unit.who, m.Done(request=unit.request, detail=self.clocks.received.get(unit.who, 0)))]
        clock = self._clock_for(unit.who) if unit.clock == NAMED else unit.clock  # now: rounds were closed meanwhile
        is_new = unit.who in self.resting or self.clocks.received.get(unit.who, -1) < clock
        if is_new:
            self.resting.discard(unit.who)
            self.asked[unit.who] = unit.request
            self.clocks.restart(unit.who, clock)
            self._crew = None
        self.begin_deposits(unit.who, self.clocks.received[unit.who])  # who was counted on before it came, too
        if unit.is_followed:
            return []
        effects: list[Effect] = []
        if is_new:
            entry = m.LogEntry(kind=m.Kind.START, who=unit.who, clock=clock, request=unit.request)
            effects += self.log.seal(entry)
        done = Send(unit.who, m.Done(request=unit.request, detail=clock))
        return [*effects, *self.residual_of(unit.who), done, *self.on_fewer()]

    @abstractmethod
    def begin_deposits(self, who: Incarnation, clock: int) -> None:
        """It pushes from this clock on: what it has given to savers of a later round does not count."""

    @abstractmethod
    def residual_of(self, who: Incarnation) -> list[Effect]:
        """What its filters had kept back when a checkpoint was saved that was loaded here."""

    def rest(self, peer: Incarnation, request: int) -> list[Effect]:
        """This worker has nothing to push for a while."""
        return self.queue([Rest(peer, request)])

    def _rest(self, unit: Rest) -> list[Effect]:
        if self._is_late(unit):
            return [Send(unit.who, m.Done(request=unit.request))]
        is_new = unit.who not in self.resting
        if is_new:
            self.resting.add(unit.who)
            self.asked[unit.who] = unit.request
            self._crew = None
        if unit.is_followed:
            return []
        effects: list[Effect] = []
        if is_new:
            effects += self.log.seal(m.LogEntry(kind=m.Kind.REST, who=unit.who, request=unit.request))
        return [*effects, Send(unit.who, m.Done(request=unit.request)), *self.on_fewer()]

    def forget_departed(self) -> None:
        """Who has left the generation neither begins nor rests any more: a late word of it is refused. Whom we have
        not seen yet is still to come."""
        live, seen = self.members.live, self.members.ranks
        gone = [who for who in self.asked if who not in live and who in seen]  # who rests has asked to
        for who in gone:
            del self.asked[who]
        self.resting.difference_update(gone)

    def tally(self, tally: m.Tally) -> m.Tallied:
        """What is counted here of a workload's batches; a floor of -1, if that is not ours to say."""
        counted = self.batches.workloads.get(tally.workload)
        floor, above = (counted.floor, tuple(sorted(counted.above))) if counted is not None else (0, ())
        if not self.log.is_head:
            floor, above = -1, ()
        return m.Tallied(
            ask=tally.ask, key=self.id, shard=self.number, num_shards=self.num_shards, floor=floor, above=above
        )

    def _ask_for_first_value(self) -> list[Effect]:
        """The lowest rank gives the first value before it attaches. If it waits here, whose task that was has died:
        a clock of -1 tells it that the task is now its own."""
        lowest = min(self.live, key=self.members.rank, default=None)
        for waiting in self._attaching:
            if waiting[0] == lowest:
                self._attaching.remove(waiting)
                return [Send(lowest, m.Done(request=waiting[1].request, detail=-1))]
        return []

    number: int
    num_shards: int

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the first value is here."""

    @abstractmethod
    def queue(self, units: Sequence[Unit]) -> list[Effect]:
        """Do these, in order with what is queued."""

    @abstractmethod
    def first_clock(self) -> int:
        """Where a worker starts that joined after the key was made."""

    @abstractmethod
    def last_clock(self) -> int:
        """Where whoever has made most pushes is."""

    @abstractmethod
    def on_fewer(self) -> list[Effect]:
        """Somebody is not waited for any more."""
