"""Which servers cannot reach each other, though the manager reaches both: as they say themselves.

A server names in its beats whom it has not been able to reach for a lease. One such word is not enough: whoever is
stopped, or busy, answers nobody, and that is not the link's fault. A cut is *certain* when the one has said so again,
while the other was heard of in between. Chains do not go over it from then on. What was long under way proves nothing:
a beat counts only if its sender has lately heard from this manager. So whoever has died is not taken for cut off, and
never chosen over somebody who lives.

A link that comes and goes must not make chains come and go with it. After a cut that has cost a member its place the
link is not trusted until it has been whole for a while, and for twice as long each time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from windlass._wire.messages import Beat
from windlass.types import Chain, Incarnation

Pair = tuple[Incarnation, Incarnation]

CONFIRMATIONS = 2
"""How many more times somebody must be named, each after it was heard of itself, before that is believed."""
FRESH_LEASES = 0.5
"""How long ago the sender of a beat may have heard from the manager."""
FIRST_PAUSE_LEASES = 2.0
LONGEST_PAUSE_LEASES = 64.0
FORGOTTEN_LEASES = 2 * LONGEST_PAUSE_LEASES
"""For how long a link must have been whole until nothing is held against it any more."""


def pair(one: Incarnation, other: Incarnation) -> Pair:
    return (one, other) if one < other else (other, one)


def joined(chain: Chain, cuts: Collection[Pair]) -> Chain:
    """The chain without those whom the one before them cannot reach."""
    kept: Chain = chain[:1]
    for server in chain[1:]:
        if pair(kept[-1], server) not in cuts:
            kept = (*kept, server)
    return kept


def broken(chain: Chain, cuts: Collection[Pair]) -> set[Pair]:
    """Which of these cuts the chain goes over."""
    return {link for link in map(pair, chain, chain[1:]) if link in cuts}


@dataclass(slots=True)
class _Word:
    """One server has named another: how often that was confirmed, and how many beats of the other there were then."""

    confirmed: int
    heard: int


@dataclass(slots=True)
class _Scar:
    """A link that was cut, and cost somebody a place. `whole_at` is since when nobody has named it. It is remembered
    for longer than it is not trusted."""

    pause_seconds: float
    whole_at: float | None = None
    is_trusted: bool = False


class Cuts:
    """Pure. Knows of servers only what they say."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._words: dict[Incarnation, dict[Incarnation, _Word]] = {}
        self._beats: dict[Incarnation, int] = {}
        self._scars: dict[Pair, _Scar] = {}

    def hear(self, peer: Incarnation, beat: Beat, now: float) -> bool:
        """A server's beat. Whether anything is other than before."""
        is_fresh = 0.0 <= now - beat.echo <= FRESH_LEASES * self._lease_seconds
        self._beats[peer] = self._beats.get(peer, 0) + is_fresh
        words = self._words.get(peer, {})
        if not beat.unreachable and not words and not self._scars:
            return False
        before = self.certain, self.doubted
        self._words[peer] = {
            who: self._weigh(words.get(who), who, is_fresh) for who in beat.unreachable if who != peer
        }
        if not self._words[peer]:
            del self._words[peer]
        self._heal(now)
        return before != (self.certain, self.doubted)

    def _weigh(self, word: _Word | None, who: Incarnation, is_fresh: bool) -> _Word:
        heard = self._beats.get(who, 0)
        if word is None:
            return _Word(0, heard)
        return _Word(word.confirmed + 1, heard) if is_fresh and heard > word.heard else word

    def lose(self, server: Incarnation) -> None:
        """It is gone, and so is what it said and what was said of it."""
        self._beats.pop(server, None)
        self._words.pop(server, None)
        for peer in list(self._words):
            self._words[peer].pop(server, None)
            if not self._words[peer]:
                del self._words[peer]
        self._scars = {which: scar for which, scar in self._scars.items() if server not in which}

    def _heal(self, now: float) -> None:
        named = self._named()
        for which, scar in list(self._scars.items()):
            if which in named:
                scar.whole_at = None
            elif scar.whole_at is None:
                scar.whole_at = now
            elif now - scar.whole_at >= FORGOTTEN_LEASES * self._lease_seconds:
                del self._scars[which]
            elif now - scar.whole_at >= scar.pause_seconds:
                scar.is_trusted = True

    def _named(self) -> set[Pair]:
        return {pair(peer, who) for peer, words in self._words.items() for who in words}

    @property
    def certain(self) -> set[Pair]:
        """Links over which no chain may go."""
        if not self._words:
            return set()
        return {
            pair(peer, who)
            for peer, words in self._words.items() for who, word in words.items() if word.confirmed >= CONFIRMATIONS
        }  # fmt: skip

    @property
    def doubted(self) -> set[Pair]:
        """Links over which no chain should begin to go: those that somebody has named, or that are not trusted yet."""
        if not self._words and not self._scars:
            return set()
        return self._named() | {which for which, scar in self._scars.items() if not scar.is_trusted}

    def scar(self, pairs: Iterable[Pair]) -> None:
        """These cuts have cost somebody a place in a chain."""
        longest = LONGEST_PAUSE_LEASES * self._lease_seconds
        for which in pairs:
            old = self._scars.get(which)
            if old is None:
                self._scars[which] = _Scar(FIRST_PAUSE_LEASES * self._lease_seconds)
            elif old.is_trusted:
                self._scars[which] = _Scar(min(2 * old.pause_seconds, longest))
