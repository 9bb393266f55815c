"""Sequential rounds: staging on every shard, closing by the keeper.

A *contribution* is what one worker pushed for one round on one shard; it may come in several parts. A contribution is
*whole* when all its parts are here. A shard whose live workers have all made whole contributions reduces them to a
*draft*, and when all of its chain have that, reports so to the keeper. The keeper closes a round once every shard of
the key has a draft of the same workers; if some have others, it proposes those that are whole on all. So a worker that
died in the middle of a push, or whose push died with a server, counts everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from windlass.types import Bytes, Generation, Incarnation, Lease

StagedPiece = tuple[int, int, int, Bytes]
"""(slot, lo, hi, data)"""


class Contribution(msgspec.Struct):
    parts: int
    hyper: dict[str, float] | None = None
    lease: Lease | None = None
    seen: set[int] = msgspec.field(default_factory=set)
    pieces: list[StagedPiece] = msgspec.field(default_factory=list)
    elements: int = 0  # that it was made of, before filters
    wants_ack: bool = False
    is_whole: bool = False

    def add(self, part: int, pieces: list[StagedPiece], elements: int) -> None:
        """Take one part; the caller has seen to it that it is new."""
        self.seen.add(part)
        self.pieces += pieces
        self.elements += elements
        self.is_whole = len(self.seen) == self.parts


class Rounds:
    """What is staged of one shard. `closed` rounds are decided; the next open one is closed + 1."""

    def __init__(self, closed: int = 0) -> None:
        self.closed = closed
        self._staged: dict[int, dict[Incarnation, Contribution]] = {}
        self.members: dict[int, tuple[Incarnation, ...]] = {}
        self.refusals: dict[int, str] = {}  # why a round is not applied, on any shard

    def contribution(self, who: Incarnation, round: int, parts: int) -> Contribution:
        """The contribution to add a part to; made on first sight."""
        staged = self._staged.setdefault(round, {})
        found = staged.get(who)
        if found is None:
            found = staged[who] = Contribution(parts)
        return found

    def find(self, who: Incarnation, round: int) -> Contribution | None:
        return self._staged.get(round, {}).get(who)

    def of(self, round: int, members: Iterable[Incarnation]) -> dict[Incarnation, Contribution]:
        """The contributions of these, as far as they are here."""
        staged = self._staged.get(round, {})
        return {who: staged[who] for who in members if who in staged}

    def whole(self, round: int) -> tuple[Incarnation, ...]:
        return tuple([who for who, made in self._staged.get(round, {}).items() if made.is_whole])

    def has(self, round: int, members: Iterable[Incarnation]) -> bool:
        """Whether the contributions of all of these are whole here."""
        staged = self._staged.get(round, {})
        return all(who in staged and staged[who].is_whole for who in members)

    def is_ready(self, crew: Collection[Incarnation], received: Mapping[Incarnation, int]) -> bool:
        """Whether everybody's contribution to the next round is whole here. Who is deemed to have made its push
        already, because it joined later, owes none."""
        round = self.closed + 1
        staged = self._staged.get(round, {})
        for who in crew:
            made = staged.get(who)
            if made is None:
                if received.get(who, 0) < round:
                    return False
            elif not made.is_whole:
                return False
        return bool(crew)

    def close(self, members: tuple[Incarnation, ...], refusal: str = "") -> dict[Incarnation, Contribution]:
        """Close the next round with exactly these members; gives their contributions, as far as they are here. The
        rest is dropped."""
        self.closed += 1
        self.refusals = {self.closed - 1: self.refusals.get(self.closed - 1, ""), self.closed: refusal}
        self.members = {self.closed - 1: self.members.get(self.closed - 1, ()), self.closed: members}
        staged = self._staged.pop(self.closed, {})
        return {who: staged[who] for who in members if who in staged}

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


class Report(NamedTuple):
    """What the head of a shard has said of its next round."""

    generation: Generation
    round: int
    draft: int
    drafted: frozenset[Incarnation]
    members: frozenset[Incarnation]


class Keeper:
    """Collects the reports of one key's shards and decides when its next round closes, and with whom."""

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards
        self._reports: dict[int, Report] = {}

    def report(self, shard: int, report: Report) -> None:
        """What came late, on its way around a cut, takes nothing back: within a generation rounds, drafts and members
        only become more."""
        last = self._reports.get(shard)
        if last is not None and last[:3] >= report[:3]:
            if last[:3] != report[:3]:
                return
            report = report._replace(members=report.members | last.members)
        self._reports[shard] = report

    def verdict(
        self, round: int, generation: Generation, live: Collection[Incarnation]
    ) -> frozenset[Incarnation] | None:
        """The members of this round, if every shard has reported it in this generation; else None. The round may be
        closed with them once every shard's draft is of just these: `others` says whose are not.

        A report of an older generation does not count: a worker that has left since may have been half staged
        elsewhere, and only a report made after its departure is final about it. Nor does one without a live worker that
        another has: it came to the key meanwhile, and its pieces are on their way.
        """
        reports = [self._reports.get(shard) for shard in range(self._num_shards)]
        members: frozenset[Incarnation] | None = None
        anywhere: set[Incarnation] = set()
        for report in reports:
            if report is None or report.round != round or report.generation != generation:
                return None
            anywhere |= report.members
            members = report.members if members is None else members & report.members
        needed = {who for who in anywhere if who in live}
        drafted = {report.drafted for report in reports if report is not None}
        if len(drafted) == 1 and needed <= (all_have := drafted.pop()):
            return all_have
        return members if members is not None and needed <= members else None

    def others(self, members: frozenset[Incarnation]) -> list[tuple[int, int]]:
        """Shards whose draft is of others than these, and which draft that is."""
        return [(shard, report.draft) for shard, report in self._reports.items() if report.drafted != members]
