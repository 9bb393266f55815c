"""Servers with one mistake each. A checker that lets one of them pass proves nothing about the real server.

They are module-level classes, so that `wl.Cluster(..., _server_state=CountsResends)` can plant them in real processes
by their import path. `MUTANTS` says what each breaks and where it can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.consistency import Admission, Keeper, Verdict, may_pull
from windlass.consistency.rounds import StagedPiece
from windlass.server.arrival import ArrivalKey
from windlass.server.key import HeldSlot, Members
from windlass.server.pins import Pins
from windlass.server.sequential import SequentialKey
from windlass.server.state import ServerState
from windlass.store.dense import DenseSlot
from windlass.testing.explorer import Limits
from windlass.types import Bounded, Eventual, Generation, Incarnation, Sequential

# --- a resend counts twice --------------------------------------------------------------------------------------------


class _ResendCountsInRound(SequentialKey):
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = super().admit(peer, push)
        is_open = self.rounds.find(peer, push.clock) is not None
        return Admission.NEXT if admission is Admission.DUPLICATE and is_open else admission


class _ResendCountsOnArrival(ArrivalKey):
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = super().admit(peer, push)
        is_last = push.clock == self.clocks.received[peer]
        return Admission.NEXT if admission is Admission.DUPLICATE and is_last else admission


class CountsResends(ServerState):
    """Takes a push that was sent again for a new one."""

    sequential_key = _ResendCountsInRound
    arrival_key = _ResendCountsOnArrival


# --- a round without one of its members -------------------------------------------------------------------------------


class _RoundLacksOne(SequentialKey):
    def close(self, round: int, members: tuple[Incarnation, ...]) -> list[Effect]:
        made = self.rounds.find(max(members), round) if len(members) > 1 else None
        if made is not None and round == self.rounds.closed + 1 and round % 2 == 0:
            made.pieces.clear()
        return super().close(round, members)


class DropsMember(ServerState):
    """Closes every second round without what one member gave to it, and acknowledges that all the same."""

    sequential_key = _RoundLacksOne


# --- a pull that does not wait ----------------------------------------------------------------------------------------


class _PullsEarlyInRound(SequentialKey):
    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int) -> Verdict:
        return super().verdict(slot, peer, max(0, clock - 1))


class _PullsEarlyOnArrival(ArrivalKey):
    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int) -> Verdict:
        policy = self.spec.consistency
        if slot.missing or not isinstance(policy, Bounded):
            return super().verdict(slot, peer, clock)
        lax = Bounded(policy.delay + 1)
        return may_pull(lax, peer, clock, rounds=slot.rounds, clocks=self.clocks, live=self.members.live)


class AnswersEarly(ServerState):
    """Answers a sequential pull one round too early."""

    sequential_key = _PullsEarlyInRound


class AllowsMoreDelay(ServerState):
    """Lets a bounded pull lead by one push more than its delay."""

    arrival_key = _PullsEarlyOnArrival


# --- an acknowledgement of what is not done ---------------------------------------------------------------------------


class _AcksStagedRound(SequentialKey):
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        ack = [] if push.pull else [Send(peer, m.Ack(key=self.id, clock=push.clock))]
        return [*ack, *super().accept(peer, push, staged)]


class _AcksOnArrival(ArrivalKey):
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        ack = [] if push.pull else [Send(peer, m.Ack(key=self.id, clock=push.clock))]
        return [*ack, *super().accept(peer, push, staged)]


class AcksEarly(ServerState):
    """Acknowledges a push when it is here, not when it is applied."""

    sequential_key = _AcksStagedRound
    arrival_key = _AcksOnArrival


class _AcksClosedRound(SequentialKey):
    def close(self, round: int, members: tuple[Incarnation, ...]) -> list[Effect]:
        is_next = round == self.rounds.closed + 1
        effects = super().close(round, members)
        for who in members if is_next else ():
            self.clocks.applied[who] = max(self.clocks.applied.get(who, 0), round)
        return effects


class AcksResendsEarly(ServerState):
    """Acknowledges a resent push when its round is closed, though some slots have yet to read it: an old mistake of
    ours, seen where memory is shared, because the worker then reuses what the server still needs."""

    sequential_key = _AcksClosedRound


# --- decisions made alone ---------------------------------------------------------------------------------------------


class _DecidesAlone(SequentialKey):
    def close(self, round: int, members: tuple[Incarnation, ...]) -> list[Effect]:
        return super().close(round, self.rounds.whole(round) if round == self.rounds.closed + 1 else members)


class DecidesAlone(ServerState):
    """Closes a round with whomever it has itself: a worker that died half-way counts on some servers only."""

    sequential_key = _DecidesAlone


class _CountsOldReports(Keeper):
    def report(self, server: Incarnation, round: int, generation: Generation, members: Iterable[Incarnation]) -> None:
        super().report(server, round, Generation(0, 0), members)

    def verdict(self, round: int, generation: Generation) -> frozenset[Incarnation] | None:
        return super().verdict(round, Generation(0, 0))


class _TrustsOldReports(SequentialKey):
    def __init__(
        self, place: m.Place, me: Incarnation, slots: dict[int, DenseSlot], members: Members, pins: Pins
    ) -> None:
        super().__init__(place, me, slots, members, pins)
        self.reports = _CountsOldReports(self.servers) if self.keeper == me else None


class IgnoresGeneration(ServerState):
    """Its keeper counts reports that were made under an older membership."""

    sequential_key = _TrustsOldReports


# --- the list ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rules` are the promises it breaks; `limits` let the explorer look where it shows. `is_visible_outside`: it shows
    in real processes too, within a few seconds; the others need a death or a delivery at one very moment."""

    server: type[ServerState]
    rules: frozenset[str]
    limits: Limits
    is_visible_outside: bool


_CALM = Limits(breaks=0, departures=0, zombies=0, joins=0, large=0.0)
_BROKEN = Limits(breaks=6, departures=0, zombies=0, joins=0, large=0.0)
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
            Limits(breaks=0, departures=2, zombies=0, joins=0, consistencies=(Sequential(), Eventual())),
            False,
        ),
        Mutant(
            AcksResendsEarly,
            frozenset({"once", "never made"}),
            Limits(
                servers=(1, 1), workers=(3, 5), clock=(3, 5), breaks=30, departures=0, zombies=0, joins=0, large=0.0,
                consistencies=_ROUNDS,
            ),
            False,
        ),
        Mutant(
            DecidesAlone,
            frozenset({"departed", "order"}),
            Limits(servers=(2, 3), departures=2, zombies=1, joins=0, consistencies=_ROUNDS),
            False,
        ),
        Mutant(
            IgnoresGeneration,
            frozenset({"sequential", "own pushes"}),
            Limits(servers=(2, 3), joins=3, departures=0, zombies=0, consistencies=_ROUNDS),
            False,
        ),
    )
}
