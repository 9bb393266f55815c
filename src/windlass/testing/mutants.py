"""Servers with one mistake each. A checker that lets one of them pass proves nothing about the real server.

They are module-level classes, so that `wl.Cluster(..., _server_state=CountsResends)` can plant them in real processes
by their import path. `MUTANTS` says what each breaks and where it can be seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.consistency import Admission, CountedBatches, Keeper, Verdict, may_pull
from windlass.consistency.rounds import Report, StagedPiece
from windlass.server.arrival import ArrivalShard
from windlass.server.content import Content, Frozen, FrozenDense
from windlass.server.freezing import Freezer
from windlass.server.log import Log
from windlass.server.sequential import SequentialShard
from windlass.server.state import ServerState
from windlass.server.units import Draft, End, HeldSlot
from windlass.testing.explorer import Limits
from windlass.testing.limits import CALM
from windlass.types import Bounded, Eventual, Generation, Incarnation, Sequential

# --- a resend counts twice --------------------------------------------------------------------------------------------


class _ResendCountsInRound(SequentialShard):
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = super().admit(peer, push)
        is_open = self.rounds.find(peer, push.clock) is not None
        return Admission.NEXT if admission is Admission.DUPLICATE and is_open else admission


class _ResendCountsOnArrival(ArrivalShard):
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = super().admit(peer, push)
        is_last = push.clock == self.clocks.received[peer]
        return Admission.NEXT if admission is Admission.DUPLICATE and is_last else admission


class CountsResends(ServerState):
    """Takes a push that was sent again for a new one."""

    sequential_shard = _ResendCountsInRound
    arrival_shard = _ResendCountsOnArrival


# --- a round without one of its members -------------------------------------------------------------------------------


class _RoundLacksOne(SequentialShard):
    def compose(self, round: int, members: tuple[Incarnation, ...]) -> Draft:
        made = self.rounds.find(max(members), round) if len(members) > 1 else None
        if made is not None and round % 2 == 0:
            made.pieces.clear()
        return super().compose(round, members)


class DropsMember(ServerState):
    """Closes every second round without what one member gave to it, and acknowledges that all the same."""

    sequential_shard = _RoundLacksOne


# --- a pull that does not wait ----------------------------------------------------------------------------------------


class _PullsEarlyInRound(SequentialShard):
    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int, ahead: int = 0) -> Verdict:
        return super().verdict(slot, peer, max(0, clock - 1), ahead)


class _PullsEarlyOnArrival(ArrivalShard):
    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int, ahead: int = 0) -> Verdict:
        policy = self.spec.consistency
        if slot.missing or not isinstance(policy, Bounded):
            return super().verdict(slot, peer, clock, ahead)
        lax = Bounded(policy.delay + 1)
        return may_pull(lax, peer, clock, rounds=slot.rounds, clocks=self.clocks, live=self.crew, ahead=ahead)


class AnswersEarly(ServerState):
    """Answers a sequential pull one round too early."""

    sequential_shard = _PullsEarlyInRound


class AllowsMoreDelay(ServerState):
    """Lets a bounded pull lead by one push more than its delay."""

    arrival_shard = _PullsEarlyOnArrival


# --- an acknowledgement of what is not done ---------------------------------------------------------------------------


class _AcksStagedRound(SequentialShard):
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        ack = [] if push.pull else [Send(peer, self._ack(push.clock))]
        return [*ack, *super().accept(peer, push, staged)]


class _AcksOnArrival(ArrivalShard):
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        ack = [] if push.pull else [Send(peer, self._ack(push.clock))]
        return [*ack, *super().accept(peer, push, staged)]


class AcksEarly(ServerState):
    """Acknowledges a push when it is here, not when it is applied."""

    sequential_shard = _AcksStagedRound
    arrival_shard = _AcksOnArrival


class _AcksClosedRound(SequentialShard):
    def close(self, round: int, members: tuple[Incarnation, ...], refusal: str = "") -> list[Effect]:
        is_next = round == self.rounds.closed + 1
        effects = super().close(round, members, refusal)
        for who in members if is_next else ():
            self.clocks.applied[who] = max(self.clocks.applied.get(who, 0), round)
        return effects


class AcksResendsEarly(ServerState):
    """Acknowledges a resent push when its round is closed, though some slots have yet to read it: an old mistake of
    ours, seen where memory is shared, because the worker then reuses what the server still needs."""

    sequential_shard = _AcksClosedRound


# --- decisions made alone ---------------------------------------------------------------------------------------------


class _DecidesAlone(SequentialShard):
    def close(self, round: int, members: tuple[Incarnation, ...], refusal: str = "") -> list[Effect]:
        whole = self.rounds.whole(round) if round == self.rounds.closed + 1 else members
        return super().close(round, whole, refusal)


class DecidesAlone(ServerState):
    """Closes a round with whomever it has itself: a worker that died half-way counts on some servers only."""

    sequential_shard = _DecidesAlone


class _CountsOldReports(Keeper):
    def report(self, shard: int, report: Report) -> None:
        super().report(shard, report._replace(generation=Generation(0, 0)))

    def verdict(
        self, round: int, generation: Generation, live: Collection[Incarnation]
    ) -> frozenset[Incarnation] | None:
        return super().verdict(round, Generation(0, 0), ())


class _TrustsOldReports(SequentialShard):
    keeper_kind = _CountsOldReports


class IgnoresGeneration(ServerState):
    """Its keeper counts reports that were made under an older membership."""

    sequential_shard = _TrustsOldReports


# --- a round with half a push -----------------------------------------------------------------------------------------


class _ClosesHalf(SequentialShard):
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        made = self.rounds.contribution(peer, push.clock, push.parts)
        made.parts = 1
        return super().accept(peer, push, staged)


class ClosesHalf(ServerState):
    """Takes a push for whole when one part of it is here."""

    sequential_shard = _ClosesHalf


# --- replicas ---------------------------------------------------------------------------------------------------------


class _TellsAtOnce(Log):
    def hold_back(self, effects: list[Effect], may_answer: bool) -> list[Effect]:
        return list(effects)


class _TellsAtOnceInRound(SequentialShard):
    log_kind = _TellsAtOnce


class _TellsAtOnceOnArrival(ArrivalShard):
    log_kind = _TellsAtOnce


class AcksUnreplicated(ServerState):
    """Acknowledges, and answers, before its chain has what it tells of."""

    sequential_shard = _TellsAtOnceInRound
    arrival_shard = _TellsAtOnceOnArrival


class _ReportsAtOnce(Log):
    def hold_back(self, effects: list[Effect], may_answer: bool) -> list[Effect]:
        reports = [one for one in effects if isinstance(one, Send) and isinstance(one.message, m.Staged)]
        return reports + super().hold_back([one for one in effects if one not in reports], may_answer)


class _ReportsAtOnceInRound(SequentialShard):
    log_kind = _ReportsAtOnce


class ReportsUnsafeDrafts(ServerState):
    """Tells the keeper of a draft that its chain does not have: an old mistake of ours. The round may be closed with a
    worker that then dies together with the head, which alone had its pieces."""

    sequential_shard = _ReportsAtOnceInRound


class _HeedsDeposed(Log):
    def is_from_predecessor(self, peer: Incarnation) -> bool:
        self._heeded = getattr(self, "_heeded", None) or self.predecessor
        return peer == self._heeded or super().is_from_predecessor(peer)


class _HeedsDeposedInRound(SequentialShard):
    log_kind = _HeedsDeposed


class _HeedsDeposedOnArrival(ArrivalShard):
    log_kind = _HeedsDeposed


class HeedsDeposed(ServerState):
    """Takes entries from a head that is no longer its predecessor: it ignores the generation."""

    sequential_shard = _HeedsDeposedInRound
    arrival_shard = _HeedsDeposedOnArrival


class InheritsEarly(ServerState):
    """Speaks for a shard at once, though its old head may be alive and does not know yet."""

    def may_inherit(self, shard: SequentialShard | ArrivalShard) -> bool:
        return True


class GoesOnAlone(ServerState):
    """Leaves out a successor that it cannot reach, before the generation does: what it then acknowledges, that one does
    not have, and may still inherit."""

    def _look_around(self) -> list[Effect]:
        effects = super()._look_around()
        for shard in self._shards():
            if shard.log.is_head and shard.log.successor in self._pulse.detours:
                effects += shard.log.rechain((self.me,), None)
        return effects


class _StartsWithoutCounts(ArrivalShard):
    def learn_counts(self, counts: dict[str, Any]) -> None:
        super().learn_counts(counts | {"applied": dict.fromkeys(counts["applied"], 0)})


class ForgetsClocks(ServerState):
    """Its learners are shown values, but not whose pushes are in them."""

    arrival_shard = _StartsWithoutCounts


# --- snapshots --------------------------------------------------------------------------------------------------------


class _WritesInPlace(Freezer):
    def keep(self, content: Content) -> Frozen:
        kept = super().keep(content)
        if isinstance(kept, FrozenDense):
            self._pins.release(kept.pin)
        return kept


class SavesWhatChanges(ServerState):
    """Goes on writing where a saver reads: it does not copy on write."""

    freezer_kind = _WritesInPlace


class _FreezesNow(SequentialShard):
    def freeze(self, peer: Incarnation, wanted: m.Freeze) -> list[Effect]:
        if wanted.round is None:
            return super().freeze(peer, wanted)
        now = msgspec.structs.replace(wanted, round=self.current_count())
        return [
            Send(one.peer, msgspec.structs.replace(one.message, count=wanted.round))
            if isinstance(one, Send) and isinstance(one.message, m.Frozen) else one
            for one in super().freeze(peer, now)
        ]  # fmt: skip


class FreezesNow(ServerState):
    """Freezes a shard when it is asked, not after the round that it is asked for."""

    sequential_shard = _FreezesNow


# --- the list ---------------------------------------------------------------------------------------------------------


# --- leased work counts twice ---------------------------------------------------------------------------------------


class _AlwaysFree(CountedBatches):
    def is_free(self, workload: str, numbers: Iterable[int]) -> bool:
        return True


class _CountsAgainInRound(SequentialShard):
    batches_kind = _AlwaysFree


class _CountsAgainOnArrival(ArrivalShard):
    batches_kind = _AlwaysFree


class CountsLeasesAgain(ServerState):
    """Does not look whether work that a push completes has been counted."""

    sequential_shard = _CountsAgainInRound
    arrival_shard = _CountsAgainOnArrival


class _ForgetsInRound(SequentialShard):
    def follow_push(self, entry: m.LogEntry) -> list[End]:
        return [structs.replace(end, entry=structs.replace(end.entry, leases=())) for end in super().follow_push(entry)]


class _ForgetsOnArrival(ArrivalShard):
    def follow_push(self, entry: m.LogEntry) -> list[End]:
        return [structs.replace(end, entry=structs.replace(end.entry, leases=())) for end in super().follow_push(entry)]


class ForgetsLeases(ServerState):
    """Its replicas do not know which work has been counted: after a failover it counts again."""

    sequential_shard = _ForgetsInRound
    arrival_shard = _ForgetsOnArrival


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rules` are the promises it breaks ("stuck": that nobody waits for ever); `limits` let the explorer look where it
    shows. `is_visible_outside`: it shows in real processes too, within a few seconds; the others need a death or a
    delivery at one very moment."""

    server: type[ServerState]
    rules: frozenset[str]
    limits: Limits
    is_visible_outside: bool


_CALM = replace(CALM, large=0.0)
_BROKEN = replace(_CALM, breaks=6)
_CHAINED = replace(_CALM, servers=(2, 3), replicas=(1, 1), crashes=1)
_HEADLESS = replace(_CHAINED, crashes=0, aims=2, kinds=("Push",), whats=("crash",))  # where pushes are, heads are
_PARTED = replace(_CHAINED, crashes=0, aims=3, kinds=("Push",), whats=("part",))
_ROUNDS = (Sequential(),)

MUTANTS = {
    mutant.server.__name__: mutant
    for mutant in (
        Mutant(CountsResends, frozenset({"once"}), _BROKEN, True),
        Mutant(DropsMember, frozenset({"sequential", "own pushes", "acknowledged", "order"}), _CALM, True),
        Mutant(AnswersEarly, frozenset({"sequential", "own pushes"}), _CALM, True),
        Mutant(AllowsMoreDelay, frozenset({"bounded"}), _CALM, True),
        Mutant(
            AcksEarly,
            frozenset({"once", "never made", "acknowledged", "departed"}),
            replace(_CALM, departures=2, large=0.05, consistencies=(Sequential(), Eventual())),
            False,
        ),
        Mutant(
            AcksResendsEarly,
            frozenset({"once", "never made"}),
            replace(
                _CALM, servers=(1, 1), workers=(3, 5), clock=(3, 5), breaks=5, copies=40, kinds=("Push",), hurry=(0.2,),
                replicas=(0, 0), consistencies=_ROUNDS,
            ),
            False,
        ),
        Mutant(
            DecidesAlone,
            frozenset({"departed", "order"}),
            replace(_CALM, servers=(2, 3), breaks=4, departures=2, zombies=1, large=0.05, consistencies=_ROUNDS),
            False,
        ),
        Mutant(
            IgnoresGeneration,
            frozenset({"sequential", "own pushes"}),
            replace(
                _CALM, servers=(2, 3), workers=(2, 2), replicas=(0, 0), keys=(1, 1), clock=(6, 8), joins=4,
                hurry=(0.02,), consistencies=_ROUNDS,
            ),
            False,
        ),
        Mutant(
            ClosesHalf,
            frozenset({"sequential", "own pushes", "acknowledged"}),
            replace(_CALM, servers=(1, 1), consistencies=_ROUNDS),
            False,
        ),
        Mutant(
            ReportsUnsafeDrafts,
            frozenset({"departed", "stuck"}),
            replace(
                _CHAINED, departures=2, aims=2, kinds=("Staged", "Close", "Replicate"), whats=("crash",), hurry=(0.03,),
                consistencies=_ROUNDS,
            ),
            False,
        ),
        Mutant(AcksUnreplicated, frozenset({"acknowledged", "own pushes", "monotonic"}), _HEADLESS, False),
        Mutant(
            HeedsDeposed,
            frozenset({"once", "acknowledged", "sequential", "own pushes", "monotonic", "order"}),
            replace(
                _PARTED, servers=(3, 3), workers=(3, 4), keys=(1, 1), clock=(6, 8),
                consistencies=(Eventual(), Bounded(2)),
            ),
            False,
        ),
        Mutant(
            InheritsEarly,
            frozenset({"acknowledged", "bounded", "monotonic"}),
            replace(
                _PARTED, servers=(2, 2), workers=(3, 4), keys=(1, 1), clock=(6, 8), additions=2,
                consistencies=(Eventual(),),
            ),
            False,
        ),
        Mutant(
            GoesOnAlone,
            frozenset({"acknowledged", "own pushes", "monotonic"}),
            replace(
                _CHAINED, servers=(2, 2), workers=(3, 4), keys=(1, 1), clock=(6, 8), cuts=2, crashes=2, hurry=(0.01,),
                consistencies=(Eventual(),),
            ),
            False,
        ),
        Mutant(
            SavesWhatChanges,
            frozenset({"sequential", "order", "acknowledged", "once", "never made"}),
            replace(_CALM, clock=(4, 8), keys=(1, 1), savers=1, consistencies=_ROUNDS),
            False,
        ),
        Mutant(
            FreezesNow,
            frozenset({"sequential", "departed"}),
            replace(_CALM, servers=(2, 3), clock=(4, 8), savers=1, consistencies=_ROUNDS),
            False,
        ),
        Mutant(
            ForgetsClocks,
            frozenset({"once", "stuck"}),
            replace(
                _CHAINED, servers=(3, 4), crashes=2, breaks=2, additions=1, hurry=(0.03,),
                consistencies=(Eventual(), Bounded(2)),
            ),
            False,
        ),
    )
}
