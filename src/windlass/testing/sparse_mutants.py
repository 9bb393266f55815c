"""Servers with one mistake each that shows on tables, or where keys have filters; and a filter with one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import structs

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Recycle, Send
from windlass.consistency.rounds import StagedPiece
from windlass.filters import IdCache, NeedIds, Parcel, RandomSkip
from windlass.server.arrival import ArrivalShard
from windlass.server.content import Content, Frozen
from windlass.server.decoding import Decoder
from windlass.server.freezing import Freezer
from windlass.server.rows import TableContent
from windlass.server.sequential import SequentialShard
from windlass.server.shard import Shard
from windlass.server.state import ServerState
from windlass.server.units import Apply, Learn
from windlass.testing.limits import CALM
from windlass.testing.mutants import Mutant
from windlass.types import Bytes, Eventual, Incarnation, Sequential

# --- rows that go -----------------------------------------------------------------------------------------------------


def _by_own_clock(shard: Shard, applies: list[Apply]) -> list[Apply]:
    return [structs.replace(one, now=shard.time._clock.now) for one in applies]


class _AgesByItselfInRound(SequentialShard):
    def _reduced(self, entry: m.LogEntry, pieces: list[StagedPiece]) -> list[Apply]:
        return _by_own_clock(self, super()._reduced(entry, pieces))


class _AgesByItselfOnArrival(ArrivalShard):
    def _reduced(self, entry: m.LogEntry, pieces: list[StagedPiece]) -> list[Apply]:
        return _by_own_clock(self, super()._reduced(entry, pieces))


class AgesByItself(ServerState):
    """Its replicas let rows go by their own clocks, not by the time that the head tells: they keep other rows."""

    sequential_shard = _AgesByItselfInRound
    arrival_shard = _AgesByItselfOnArrival


# --- lists of ids that are not here -----------------------------------------------------------------------------------


class _CountsNamed(ArrivalShard):
    def _push_filtered(
        self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...], decoder: Decoder
    ) -> list[Effect]:
        found = decoder.decode(push, data)
        if not isinstance(found, NeedIds):
            return super()._push_filtered(peer, push, data, decoder)
        need = m.NeedIds(key=self.id, shard=self.number, clock=push.clock, part=push.part, digest=found.digest)
        return [Recycle(data), Send(peer, need), *self.accept(peer, push, [])]


class CountsNamed(ServerState):
    """Counts a push when it comes, though it asks for the list of ids that it names: what comes with the list is taken
    for a push that was sent again."""

    arrival_shard = _CountsNamed


# --- rows that are pushed while a learner is shown others -------------------------------------------------------------


class _MissesEntry(ArrivalShard):
    def _learn(self, unit: Learn) -> list[Effect]:
        effects = super()._learn(unit)
        self.slots[unit.shown.slot].base += 1
        return effects


class MissesEntry(ServerState):
    """Its learners take the first push that comes while they are shown a slot for one that is in it."""

    arrival_shard = _MissesEntry


# --- snapshots of rows ------------------------------------------------------------------------------------------------


class _SharesRows(Freezer):
    def keep(self, content: Content) -> Frozen:
        kept = super().keep(content)
        if isinstance(content, TableContent):
            content._ice = None
        return kept


class SavesChangedRows(ServerState):
    """Saves the rows of a table as they are when they are read, not as they were at the moment of the snapshot."""

    freezer_kind = _SharesRows


# --- a filter that forgets --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(RandomSkip):
    """Says that it keeps what it leaves out, and does not."""

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        chosen = super().encode_keeping(parcel)
        parcel.values[:] = 0
        return chosen


_TABLES = replace(CALM, large=0.0, tables=1.0)
_CHAINED = replace(_TABLES, servers=(2, 3), replicas=(1, 1))

SPARSE_MUTANTS = {
    mutant.server.__name__: mutant
    for mutant in (
        Mutant(AgesByItself, frozenset({"replica"}), replace(_CHAINED, ageing=1.0, clock=(4, 8), breaks=4), False),
        Mutant(
            CountsNamed,
            frozenset({"acknowledged", "own pushes", "order"}),
            replace(_TABLES, clock=(4, 6), filters=1.0, chains=((IdCache(),),), consistencies=(Eventual(),)),
            False,
        ),
        Mutant(
            MissesEntry,
            frozenset({"replica", "acknowledged", "own pushes", "monotonic", "order"}),
            replace(_CHAINED, additions=2, clock=(6, 8), hurry=(0.05,), consistencies=(Eventual(),)),
            False,
        ),
        Mutant(
            SavesChangedRows,
            frozenset({"sequential", "order", "once", "never made"}),
            replace(_TABLES, clock=(4, 8), keys=(1, 1), savers=1, consistencies=(Sequential(),)),
            False,
        ),
    )
}
