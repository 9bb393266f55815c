"""Who answers this server, whom it has answered, and who is out of its reach.

A head asks its successor again and again (Beat) whether it still follows, and speaks only within half a lease of the
last answer; an heir speaks a whole lease after its own last answer to those before it. Whoever is not reached for a
lease, though it is a member, is *out of reach*: the manager is told, and rounds of keys go around the cut, through the
manager.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Log, Send
from windlass.types import MANAGER, SERVER, Generation, Incarnation, Node

BEATS_PER_LEASE = 8
MIN_MISSES = 3
"""In how many looks in a row somebody must be missed. A server that slept blames nobody for the time it slept."""


class Pulse:
    """Decides nothing about shards. Times are of this server's clock."""

    def __init__(self, lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self.detours: set[Incarnation] = set()  # servers that are spoken to through the manager
        self._confirmed: dict[Incarnation, float] = {}  # our clock at the last beat that each server has answered
        self._answered: dict[Incarnation, float] = {}  # when we last answered a beat of each server
        self._knows: dict[Incarnation, Generation] = {}  # which generation it knew of then
        self._beaten_at = 0.0
        self._echo = -1.0  # the manager's clock when it last answered
        self._asked: set[Incarnation] = set()  # who has not answered since we asked
        self._missed: dict[Incarnation, tuple[float, int]] = {}  # since when, and in how many looks in a row
        self._out: set[Incarnation] = set()
        self._relinked: set[Incarnation] = set()  # those of them to whom there is a link, of which nothing is known yet
        self._reached_by_detour: set[Incarnation] = set()  # who speaks to us through the manager
        self._makers: tuple[Incarnation, ...] = ()  # who compiles, perhaps, and is silent meanwhile
        self._makers_told_at = 0.0

    # --- leases -----------------------------------------------------------------------------------------------------

    def may_answer(self, successor: Incarnation | None, now: float) -> bool:
        """Whether a head with this successor may speak."""
        if successor is None:
            return True
        confirmed = self._confirmed.get(successor)
        return confirmed is not None and now - confirmed <= self.lease_seconds / 2

    def answer(self, peer: Incarnation, beat: m.Beat, now: float) -> Send:
        self._answered[peer] = now
        self._knows[peer] = Generation(beat.term, beat.number)
        return Send(peer, m.Beat(sent=beat.sent, is_answer=True))

    def is_over(self, server: Incarnation, generation: Generation, now: float) -> bool:
        """Whether a server that came before us answers nobody any more for a shard that was given to others in this
        generation: we have not confirmed it for a lease, or it knows."""
        lease = self.lease_seconds
        return now - self._answered.get(server, -lease) >= lease or self._knows[server] >= generation

    # --- beats ------------------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        return now - self._beaten_at >= self.lease_seconds / BEATS_PER_LEASE

    def beat(self, now: float, generation: Generation) -> m.Beat:
        term, number = generation
        return m.Beat(sent=now, term=term, number=number)

    def beat_all(self, now: float, generation: Generation, asked: Collection[Incarnation]) -> list[Effect]:
        """To the manager, with what it should know, and to those whose word is needed: they should have answered by
        the next look."""
        self._beaten_at = now
        self._asked = set(asked)
        beat = self.beat(now, generation)
        term, number = generation
        told = m.Beat(sent=now, term=term, number=number, unreachable=tuple(sorted(self._out)), echo=self._echo)
        return [Send(MANAGER, told), *[Send(server, beat) for server in sorted(asked)]]

    def confirm(self, peer: Incarnation, answer: m.Beat) -> bool:
        """It has answered what was sent then. Whether it was out of reach before."""
        if peer == MANAGER:
            self._echo = answer.echo
            self._makers, self._makers_told_at = answer.makers, answer.sent
            return False
        self._confirmed[peer] = max(answer.sent, self._confirmed.get(peer, 0.0))
        self._asked.discard(peer)
        return peer in self._missed and self._reach(peer)

    # --- who is out of reach ----------------------------------------------------------------------------------------

    def _reach(self, peer: Incarnation) -> bool:
        was_out = peer in self._out
        self._missed.pop(peer, None)
        self._out.discard(peer)
        self._count_detours()
        return was_out

    def hear_of(self, peer: Incarnation) -> None:
        """It has taken what was sent down a chain: an answer to a beat is behind that, and may be late."""
        if peer in self._missed and peer not in self._out:
            del self._missed[peer]

    def link_up(self, peer: Incarnation) -> None:
        """There is a link again. Whether anything gets through it is seen when a beat is answered."""
        self._reached_by_detour.discard(peer)
        self._relinked.add(peer)
        self._count_detours()

    def hear_directly(self, peer: Incarnation) -> None:
        """It has told us of a round, on the link: so it can be told there."""
        if peer in self._reached_by_detour:
            self._reached_by_detour.discard(peer)
            self._count_detours()

    def hear_by_detour(self, peer: Incarnation) -> None:
        self._reached_by_detour.add(peer)
        self._count_detours()

    def look(self, now: float, nodes: Mapping[Incarnation, Node], linked: Collection[Incarnation]) -> list[Effect]:
        """Whether another server has been missed for a lease: there is no link to it, or it has not answered what it
        was asked before. Warns, once. Who makes room for a key, as the manager has said lately, is not missed: it may
        have to compile, answers nobody meanwhile, and tells of it itself."""
        others = {who for who, node in nodes.items() if node.role is SERVER}
        effects: list[Effect] = []
        for who in [who for who in self._missed if who not in others]:
            self._reach(who)
        self._reached_by_detour &= others
        self._relinked.clear()
        makers = self._makers if now - self._makers_told_at < self.lease_seconds else ()
        for who in sorted(others):
            if who in makers and who not in self._out:
                self._missed.pop(who, None)
                continue
            if who in linked and who not in self._asked:
                self._reach(who)
                continue
            since, misses = self._missed.get(who, (now, 0))
            self._missed[who] = (since, misses + 1)
            if misses + 1 >= MIN_MISSES and now - since >= self.lease_seconds and who not in self._out:
                self._out.add(who)
                effects.append(Log("warning", _complaint(nodes[who].name, now - since)))
        self._count_detours()
        return effects

    @property
    def missed(self) -> set[Incarnation]:
        """Who has not answered when it should have; for a moment only, perhaps."""
        return set(self._missed)

    def _count_detours(self) -> None:
        self.detours = (self._out - self._relinked) | self._reached_by_detour

    def explain(self, nodes: Mapping[Incarnation, Node], now: float) -> str:
        """Whom we miss, for somebody who waits; empty if nobody."""
        missed = [
            f"{nodes[who].name} for {now - since:.1f} s"
            for who, (since, misses) in sorted(self._missed.items()) if misses >= MIN_MISSES and who in nodes
        ]  # fmt: skip
        return f"has not reached {', '.join(missed)}" if missed else ""


def _complaint(name: str, seconds: float) -> str:
    return (
        f"has not reached {name} for {seconds:.1f} s, though both are members: the manager is told, and ends of rounds "
        "go through it until they reach each other again"
    )


def go_around(effects: list[Effect], detours: Collection[Incarnation]) -> list[Effect]:
    """What is said of rounds to those out of reach goes through the manager. No data does."""
    return [
        Send(MANAGER, m.PassOn(peer=one.peer, message=one.message))
        if type(one) is Send
        and one.peer in detours
        and isinstance(one.message, m.Staged | m.Propose | m.Close | m.Read | m.Commit)
        else one
        for one in effects
    ]
