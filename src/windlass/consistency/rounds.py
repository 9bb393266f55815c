"""Sequential rounds: staging on every server, closing by the keeper.

A *contribution* is what one worker pushed for one round on one server; it may come in several parts. A contribution is
*whole* when all its parts are here. A server whose live workers have all made whole contributions reports so to the
keeper; the keeper closes a round once every server of the key has reported, with the workers that are whole on all of
them. So a worker that died in the middle of a push counts everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from windlass.types import Bytes, Generation, Incarnation

StagedPiece = tuple[int, int, int, Bytes]
"""(slot, lo, hi, data)"""


@dataclass(slots=True)
class Contribution:
    parts: int
    hyper: dict[str, float] | None = None
    seen: set[int] = field(default_factory=set)
    pieces: list[StagedPiece] = field(default_factory=list)
    wants_ack: bool = False
    is_whole: bool = False

    def add(self, part: int, pieces: list[StagedPiece]) -> None:
        """Take one part; the caller has seen to it that it is new."""
        self.seen.add(part)
        self.pieces += pieces
        self.is_whole = len(self.seen) == self.parts


class Rounds:
    """What one server has staged of one key. `closed` rounds are decided; the next open one is closed + 1."""

    def __init__(self, closed: int = 0) -> None:
        self.closed = closed
        self._staged: dict[int, dict[Incarnation, Contribution]] = {}
        self.members: dict[int, tuple[Incarnation, ...]] = {}

    def contribution(self, who: Incarnation, round: int, parts: int) -> Contribution:
        """The contribution to add a part to; made on first sight."""
        staged = self._staged.setdefault(round, {})
        found = staged.get(who)
        if found is None:
            found = staged[who] = Contribution(parts)
        return found

    def find(self, who: Incarnation, round: int) -> Contribution | None:
        return self._staged.get(round, {}).get(who)

    def whole(self, round: int) -> tuple[Incarnation, ...]:
        return tuple(who for who, made in self._staged.get(round, {}).items() if made.is_whole)

    def is_ready(self, live: Collection[Incarnation]) -> bool:
        """Whether every live worker's contribution to the next round is whole here."""
        staged = self._staged.get(self.closed + 1)
        if not staged or len(staged) < len(live):
            return False
        for who in live:
            made = staged.get(who)
            if made is None or not made.is_whole:
                return False
        return True

    def close(self, members: tuple[Incarnation, ...]) -> dict[Incarnation, Contribution]:
        """Close the next round with exactly these members; gives their contributions. The rest is dropped."""
        self.closed += 1
        self.members = {self.closed: members}
        staged = self._staged.pop(self.closed, {})
        return {who: staged[who] for who in members}

    def waiting_acks(self) -> list[tuple[Incarnation, int]]:
        """Who waits for the acknowledgement of which open round."""
        return [
            (who, round) for round, staged in self._staged.items() for who, made in staged.items() if made.wants_ack
        ]

    @property
    def staged_bytes(self) -> int:
        return sum(
            data.nbytes for staged in self._staged.values() for made in staged.values() for *_, data in made.pieces
        )


class Keeper:
    """Collects the servers' reports on one key and decides when its next round closes."""

    def __init__(self, servers: Iterable[Incarnation]) -> None:
        self.servers = frozenset(servers)
        self._reports: dict[Incarnation, tuple[int, Generation, frozenset[Incarnation]]] = {}

    def report(self, server: Incarnation, round: int, generation: Generation, members: Iterable[Incarnation]) -> None:
        self._reports[server] = (round, generation, frozenset(members))

    def verdict(self, round: int, generation: Generation) -> frozenset[Incarnation] | None:
        """The members of this round, if every server has reported it in this generation; else None.

        A report of an older generation does not count: a worker that has left since may have been half staged
        elsewhere, and only a report made after its departure is final about it.
        """
        members: frozenset[Incarnation] | None = None
        for server in self.servers:
            report = self._reports.get(server)
            if report is None or report[0] != round or report[1] != generation:
                return None
            members = report[2] if members is None else members & report[2]
        return members
