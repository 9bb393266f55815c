"""One shard of a key as one server holds it: its slots, its clocks, and who waits for what.

What is common to every consistency stands here; `sequential.py` and `arrival.py` say when a push is applied. Work on
data is cut by slot: the first unit is done at once when nothing is queued before it, the rest comes back as Later, so
that one `handle` touches one chunk. A shard's units are done in the order they were queued; that order is what makes
"between two rounds" mean the same moment on every slot and every server, and what the entries of its log follow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Later, Log, Received, Recycle, Send
from windlass.consistency import Admission, Clocks, CountedBatches
from windlass.consistency.clocks import NEXT
from windlass.consistency.rounds import StagedPiece
from windlass.errors import PeerError
from windlass.filters import NeedIds
from windlass.server.content import Content
from windlass.server.crew import Crew
from windlass.server.decoding import Decoder
from windlass.server.following import followed
from windlass.server.freezing import Freezes
from windlass.server.host import Host, Routes
from windlass.server.lessons import Lessons
from windlass.server.log import COPIED_BYTES, Whole
from windlass.server.log import Log as ShardLog
from windlass.server.rows import ids_of
from windlass.server.shard_time import ShardTime
from windlass.server.units import (
    FREE,
    ROUND,
    Apply,
    ApplyRows,
    Check,
    Drafted,
    Echo,
    End,
    First,
    Freezing,
    HeldSlot,
    Keep,
    Learn,
    LetGo,
    Mark,
    Order,
    Put,
    Reduce,
    Rest,
    Restored,
    SetAside,
    Start,
    Teach,
    Unit,
    Waiting,
    count_elements,
    unit_bytes,
)
from windlass.server.updating import Updates
from windlass.server.writing import Writes
from windlass.store.parts import cut_arrays
from windlass.types import MANAGER, Array, Block, Bytes, Generation, Incarnation, KeyId, KeySpec, Sequential

MAX_REFUSED = 64
PUSHES = (m.Kind.PUSH, m.Kind.ROUND)
DOING: dict[type[Unit], str] = {
    Apply: "_apply", ApplyRows: "_apply_rows", End: "_end", Echo: "_echo", Mark: "_mark", Check: "_check",
    SetAside: "_set_aside", Put: "_put", First: "_first", Start: "_start", Rest: "_rest",
    Restored: "_restore", Teach: "_teach", Learn: "_learn", Freezing: "carry_out",
    m.Read: "_carry_out", m.Commit: "_carry_out",
    Reduce: "_reduce_slot", Drafted: "_drafted", Keep: "_keep", LetGo: "_let_go",
}  # fmt: skip
"""Which method of a shard does a unit: found at once, where asking for one kind after the other took longer than most
of them take."""


class Shard(Crew, Freezes, Lessons, Updates, Writes):
    """Every method that can answer somebody returns effects; what they tell must pass `log.hold_back`."""

    # With more than 30 attributes in a dictionary, each instance has keys of its own, and is three times as slow.
    __slots__ = (
        "_aside", "_at_once_bytes", "_attaching", "_backlog", "_crew", "_ends", "_errors", "_memory", "_pins",
        "_put_at", "_refused", "_residuals", "_skipped", "_void", "_writes", "_written", "ancestors", "asked", "awaits",
        "base", "batches", "being_shown", "chained_in", "clocks", "counted", "decoder", "early", "freezer",
        "has_settled", "id", "is_lesson_due", "is_pausing", "is_table", "itemsize", "lesson", "log", "may_refuse", "me",
        "members", "num_shards", "number", "ready_learner", "ready_since", "residuals", "resting", "restored",
        "routes", "slots", "spec", "taught_since", "time", "traffic", "version", "whole", "whole_bytes",
    )  # fmt: skip

    log_kind: type[ShardLog] = ShardLog
    batches_kind: type[CountedBatches] = CountedBatches

    def __init__(self, place: m.Place, number: int, slots: dict[int, Content], routes: Routes, host: Host) -> None:
        self.id: KeyId = place.key
        self.number = number
        self.spec: KeySpec = place.spec
        self.me = host.me
        self.routes = routes
        self.num_shards = len(place.chains)
        self.itemsize = place.spec.itemsize
        self.is_table = place.spec.table is not None
        self.slots = {slot: HeldSlot(slot, content, missing=content.missing) for slot, content in slots.items()}
        # What most pushes bring, on a shard with one slot of a dense key: known at a glance to be in order.
        self.whole = () if self.is_table else tuple((slot, 0, held.missing) for slot, held in self.slots.items())
        self.may_refuse = any(content.may_refuse for content in slots.values())
        self.whole_bytes = sum(content.missing for content in slots.values()) * self.itemsize
        held = place.spec.shard_slots(number, len(place.chains))
        self.decoder = Decoder.of(place.spec, held, host.lists, host.local)
        self.traffic: list[int] = []  # bytes before the first filter, and after each
        self.residuals: dict[Incarnation, float] = {}  # the norm of what each worker has kept back, as it said last
        self.clocks = Clocks()
        self.batches = self.batches_kind()
        self.resting, self.asked = set(), {}
        self._crew = None
        self.restored = {}
        self.counted: dict[Incarnation, int] = {}  # elements that are in the value, by who gave them; the departed, too
        self.version = 0
        self.base = 0  # updates that the key had taken before, in the cluster that it was saved in
        self.members = host.members
        self.freezer = host.freezer
        self.log = self.log_kind(place.key, number, host.me, host.pins, host.memory)
        self.chained_in = Generation(0, 0)  # the generation that gave it the chain that it has
        self.ancestors: set[Incarnation] = set()  # who was before us in the chain and may not know that it is out
        self.lesson = 0
        self.ready_learner: Incarnation | None = None  # who last said that it is ready to be shown the shard
        self.ready_since = Generation(0, 0)  # as of which generation
        self.taught_since = Generation(0, 0)  # the one that gave us the learner that we have
        self.being_shown = {}
        self.awaits = self.is_lesson_due = False
        self.time = ShardTime(host.clock)
        self.has_settled = False  # and was told that this is so
        self.is_pausing = False  # the manager wants another chain to go on: nothing new is begun
        self.early: list[Received] = []  # what came for the head before we knew that we are it
        self._pins = host.pins
        self._memory = host.memory
        self._at_once_bytes = host.at_once_bytes
        self._backlog = 0  # units handed out as Later and not done
        self._void = 0  # how many of those, the first, are not to be done any more
        self._residuals: dict[int, tuple[dict[str, Array], dict[str, Any]]] = {}  # by rank: out of a checkpoint
        self._errors: dict[tuple[Incarnation, int], str] = {}  # of pushes or rounds that have not ended
        self._refused: dict[tuple[Incarnation, int], str] = {}  # of the latest that ended so, to be told again
        self._ends: dict[tuple[Incarnation, int], End] = {}  # queued, not done
        self._attaching: list[tuple[Incarnation, m.Attach]] = []
        self._writes, self._written, self._put_at, self._aside = {}, {}, 0.0, {}
        self._skipped = []
        for who in self.live:
            self.clocks.start(who, 0)

    # --- the chain --------------------------------------------------------------------------------------------------

    def follow(self, whole: Whole) -> list[Effect]:
        """An entry came from the predecessor: do here what the head did."""
        entry = whole.entry
        pieces = [(*piece, data) for part in whole.parts for piece, data in zip(part.pieces, part.data, strict=True)]
        self.time.hear(entry.now)
        if entry.kind is m.Kind.RESTORE:
            self.restored[entry.who] = entry.request
        if entry.kind not in PUSHES:
            return self.queue([*followed(whole, pieces), Mark(whole)])
        echoes = [Echo(whole.index, one.slot, one) for one in self._reduced(entry, pieces)]
        return self.queue([*echoes, *self.follow_push(entry), Mark(whole)])

    def _reduced(self, entry: m.LogEntry, pieces: list[StagedPiece]) -> list[Apply]:
        push = (entry.who, entry.clock)
        by_slot: dict[int, list[StagedPiece]] = {slot: [] for slot in self.slots} if entry.who == ROUND else {}
        for piece in pieces:
            by_slot.setdefault(piece[0], []).append(piece)
        return [Apply(slot, part, 1, entry.hyper, push, entry.now, is_reduced=True) for slot, part in by_slot.items()]

    @abstractmethod
    def follow_push(self, entry: m.LogEntry) -> list[End]:
        """Count what an entry that came from the predecessor contains."""

    @property
    def is_busy(self) -> bool:
        """Whether something is queued."""
        return self._backlog > 0

    @property
    def speaks(self) -> bool:
        """Whether this server takes and answers what comes for the shard."""
        return self.log.is_head and not self.is_pausing

    def settle(self) -> list[Effect]:
        """Tell the manager, once, if the pause that it asked for is complete."""
        if not self.is_pausing or self.has_settled or self._backlog or not self.log.is_head or not self.log.is_settled:
            return []
        self.has_settled = True
        term, number = self.members.generation
        return [Send(MANAGER, m.Settled(key=self.id, shard=self.number, term=term, number=number))]

    def report_recruit(self) -> list[Effect]:
        """Tell the manager of a learner that has everything. Safe to repeat."""
        if not self.log.has_recruit() or self.log.learner is None:
            return []
        term, number = self.members.generation
        recruited = m.Recruited(key=self.id, shard=self.number, learner=self.log.learner, term=term, number=number)
        return [Send(MANAGER, recruited)]

    def send_away(self) -> list[Effect]:
        """Tell those whose messages were kept for a head that we are not it."""
        early, self.early = self.early, []
        misplaced = m.Misplaced(key=self.id, shard=self.number)
        effects: list[Effect] = [Recycle(event.data) for event in early]
        asked = [event.peer for event in early if not isinstance(event.message, m.Staged)]  # a report is made again
        return effects + [Send(peer, misplaced) for peer in dict.fromkeys(asked)]

    def demote(self) -> None:
        """Somebody else is the head now: what is here and in no entry is sent to it again."""
        self.freezer.drop_shard(self.id, self.number)
        self._attaching.clear()
        self._writes.clear()
        self._aside.clear()  # the next head judges what comes as it comes
        self.batches.give_up()
        self.clocks.received = dict(self.clocks.applied)
        for slot in self.slots.values():
            slot.waiting.clear()

    def on_head(self) -> list[Effect]:
        """This server speaks for the shard from now on."""
        return []

    def on_server_back(self, server: Incarnation) -> list[Effect]:
        """The link to another server is open again: say again what it may have missed."""
        return []

    # --- the first value --------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return not any(slot.missing for slot in self.slots.values())

    def init(
        self, peer: Incarnation, request: int, pieces: tuple[m.Piece, ...], data: tuple[Bytes, ...]
    ) -> list[Effect]:
        """Take pieces of the first value."""
        return self.queue([First(pieces, data, (peer, request))])

    def _first(self, unit: First) -> list[Effect]:
        effects: list[Effect] = []
        is_logged = unit.request is not None
        for (number, lo, hi), part in zip(unit.pieces, unit.data, strict=True):
            slot = self.slots[number]
            if slot.missing:
                slot.content.write(lo, hi, part, now=0.0)
                slot.missing -= hi - lo
                if is_logged:
                    effects += self._log_part(((number, lo, hi),), [part])
                effects += self.answer_waiting(slot)
        if unit.request is not None:
            peer, request = unit.request
            effects += [Recycle(unit.data), *self.log.seal(m.LogEntry(kind=m.Kind.FIRST))]
            effects.append(Send(peer, m.Done(request=request)))
        return effects + self.answer_attaching()

    def _log_part(self, pieces: tuple[m.Piece, ...], data: Sequence[Bytes]) -> list[Effect]:
        """Put data as it is into the entry that is being made."""
        if self.log.downstream is None:
            return []
        return self.log.part(pieces, tuple(self._copied(one) for one in data))

    def _copied(self, data: Bytes) -> Block:
        block = self._room(data.nbytes)
        block.array[:] = data
        return block

    def _room(self, nbytes: int) -> Block:
        return self._memory.allocate(nbytes) if nbytes > COPIED_BYTES else Block(np.empty(nbytes, np.uint8))

    def restore(self, unit: Restored) -> list[Effect]:
        return self.queue([unit])

    def is_restored(self, peer: Incarnation, request: int) -> bool:
        """Whether what this peer asks for has been done, or something that it asked for later: this copy comes late,
        from a link or from what was kept for the head. What was pushed since would be gone."""
        return request <= self.restored.get(peer, 0)

    def _restore(self, unit: Restored) -> list[Effect]:
        if unit.request is not None and self.is_restored(*unit.request):
            return [Send(unit.request[0], m.Done(request=unit.request[1]))]
        slot, meta = self.slots[unit.slot], dict(unit.meta)
        self.batches.restore(unit.slot, meta.pop("leases", {}))
        slot.content.restore(unit.arrays, meta)
        self.time.hear(slot.content.latest)  # what ages goes on from there
        slot.missing = 0
        if unit.count >= 0:
            self.base = unit.count - self.version
        effects: list[Effect] = []
        if unit.request is not None:
            parts = list(cut_arrays(unit.arrays))
            for _, array in parts:
                effects += self._log_part(((unit.slot, 0, 0),), [array.view(np.uint8)])
            names, dtypes = tuple(name for name, _ in parts), tuple(str(array.dtype) for _, array in parts)
            peer, request = unit.request
            self.restored[peer] = request
            entry = m.LogEntry(
                kind=m.Kind.RESTORE, clock=unit.slot, names=names, dtypes=dtypes, meta=unit.meta, count=unit.count,
                who=peer, request=request,
            )  # fmt: skip
            effects += self.log.seal(entry)
            effects.append(Send(peer, m.Done(request=request)))
        return effects + self.answer_waiting(slot) + self.answer_attaching()

    def hand_out(self, residuals: dict[int, tuple[dict[str, Array], dict[str, Any]]]) -> list[Effect]:
        """A checkpoint was loaded: every worker gets back what its rank had kept back, now or when it comes."""
        self._residuals = residuals
        return [effect for who in self.live for effect in self.residual_of(who)]

    def begin_deposits(self, who: Incarnation, clock: int) -> None:
        self.freezer.deposits.begin(who, clock, lambda which: (which.key, which.shard) == (self.id, self.number))

    def residual_of(self, who: Incarnation) -> list[Effect]:
        """What this worker is still to get back."""
        if not self._residuals:
            return []
        arrays, meta = self._residuals.pop(self.members.rank(who), ({}, {}))
        parts = list(cut_arrays(arrays))
        return [
            Send(
                who,
                m.Residual(key=self.id, name=name, dtype=str(array.dtype), meta=meta, part=number, parts=len(parts)),
                (Block(array.view(np.uint8)),),
            )
            for number, (name, array) in enumerate(parts)
        ]

    # --- pushes -----------------------------------------------------------------------------------------------------

    def push(self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...]) -> list[Effect]:
        if peer not in self.clocks.received:
            self.clocks.start(peer, push.since)
            self._crew = None
        admission = self.admit(peer, push)
        if admission is NEXT:
            if self.decoder is not None and push.filtered:
                return self._push_filtered(peer, push, data, self.decoder)
            if push.pull:
                self._wait_with(peer, push, data)
            staged = [(number, lo, hi, part) for (number, lo, hi), part in zip(push.pieces, data, strict=True)]
            return self.accept(peer, push, staged)
        again = self._answer_again(peer, push, data) if admission is Admission.DUPLICATE else []
        return [*again, Recycle(data)]

    def is_whole(self, push: m.Push, data: tuple[Bytes, ...]) -> bool:
        """Whether it is seen at a glance to be in order."""
        has_all = push.pieces == self.whole and len(data) == 1 and data[0].nbytes == self.whole_bytes
        return has_all and self.decoder is None and not push.filtered

    def _wait_with(self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...]) -> None:
        """A pull rides on this push."""
        if self.is_table:
            self._wait_for_rows(peer, self._ridden(push), ids_of(push.pieces, data), rides=True)
        else:
            self._wait_for(peer, push.pull, push.clock, push.pieces, rides=True)

    def _ridden(self, push: m.Push) -> m.Pull:
        return m.Pull(pull=push.pull, key=self.id, shard=self.number, clock=push.clock, pieces=push.pieces)

    def _push_filtered(
        self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...], decoder: Decoder
    ) -> list[Effect]:
        """Read what filters made of it. What cannot be read is refused like an update that fails: it changes nothing
        here, and its worker's next push is the next."""
        told: list[Effect] = [Recycle(data)]
        found: list[StagedPiece] | NeedIds
        try:
            found = decoder.decode(push, data)
        except PeerError as error:
            who = ROUND if isinstance(self.spec.consistency, Sequential) else peer
            self._errors.setdefault((who, push.clock), f"a push of {self.members.name(peer)} is refused: {error}")
            told.append(Log("error", self._errors[who, push.clock]))
            found = []
        if isinstance(found, NeedIds):
            asked = m.NeedIds(key=self.id, shard=self.number, clock=push.clock, part=push.part, digest=found.digest)
            return [Recycle(data), Send(peer, asked)]
        if push.pull:
            self._wait_for(peer, push.pull, push.clock, push.pieces, rides=True)
        known = self.traffic or [0] * len(push.traffic)
        self.traffic = [one + more for one, more in zip(known, push.traffic, strict=False)]
        self.residuals[peer] = push.residual
        return [*told, *self.accept(peer, push, found)]

    @abstractmethod
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        """Only the next push of an incarnation counts, and each of its parts once."""

    @abstractmethod
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        """Count one part of a push that was admitted."""

    def _answer_again(self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...]) -> list[Effect]:
        error = self._refused.get((peer, push.clock)) or self._refused.get((ROUND, push.clock), "")
        if push.pull and error:
            return [Send(peer, self._refusal(push.pull, push.clock, push.pieces, error))]
        if push.pull:
            return self.pull(peer, self._ridden(push), ids_of(push.pieces, data) if self.is_table else ())
        if push.clock <= self.clocks.applied[peer]:
            return [Send(peer, self._ack(push.clock, error))]
        return []  # here but not applied yet: its ack comes with the others

    def _ack(self, clock: int, error: str = "") -> m.Ack:
        return m.Ack(key=self.id, shard=self.number, clock=clock, error=error)

    def on_members(self) -> list[Effect]:
        """The generation changed."""
        self.forget_departed()
        return self.answer_attaching()

    def dissolve(self) -> list[Effect]:
        """The key is deleted: give its memory back and tell those who wait."""
        self.freezer.drop_shard(self.id, self.number)
        effects: list[Effect] = []
        gone = f"'{self.spec.name}' was deleted"
        for slot in self.slots.values():
            for one in slot.waiting:
                effects.append(Send(one.peer, self._refusal(one.pull, one.clock, one.pieces(slot.number), gone)))
            slot.content.release()
        for end in self._ends.values():
            effects += [Send(who, self._ack(end.push[1], gone)) for who in end.acks]
        for peer, attach in self._attaching:
            effects.append(Send(peer, m.Refused(request=attach.request, is_usage=True, reason=gone)))
        return effects + self.log.dissolve()

    def leave(self) -> list[Effect]:
        """The shard is not held here any more: give its memory back. Who waits has heard of it, and asks elsewhere."""
        self.freezer.drop_shard(self.id, self.number)
        for slot in self.slots.values():
            slot.content.release()
        return [*self.log.dissolve(), *self.send_away()]

    # --- what the keeper orders -------------------------------------------------------------------------------------

    def order(self, order: Order) -> list[Effect]:
        """Keeper: put a read or a write between two rounds, and pass it on, so that all shards choose the same."""
        order = msgspec.structs.replace(order, round=self.current_round(), is_passed_on=True)
        return [Send(head, order) for head in self.routes.heads()]

    @abstractmethod
    def current_round(self) -> int:
        """After which round the keeper puts an order; -1 where there are no rounds."""

    def schedule(self, order: Order | Freezing) -> list[Effect]:
        """Queue an order: its moment has come."""
        if isinstance(order, m.Commit):
            return self._commit(order)
        return self.queue([order])

    def _carry_out(self, order: Order) -> list[Effect]:
        if isinstance(order, m.Commit):
            return self._end_write(order)
        effects: list[Effect] = []
        if self.is_table:
            both = zip(order.pieces, order.ids, strict=True)
            rows = [(piece, np.frombuffer(ids, np.uint8)) for piece, ids in both if piece[0] in self.slots]
            return self._answer_all(order.reader, order.pull, -1, rows)
        for number, lo, hi in order.pieces:
            if number in self.slots:
                reader = Waiting(order.reader, order.pull, -1, lo, hi, False)
                effects.append(self._answer(self.slots[number], reader, {}))
        return effects

    # --- work on data -----------------------------------------------------------------------------------------------

    def queue(self, units: Sequence[Unit]) -> list[Effect]:
        """Do the first unit that touches data, those after it that touch little, and all that cost nothing; the rest
        comes back as Later."""
        effects: list[Effect] = []
        last: Unit | None = None  # that touched data
        touched = 0  # bytes, by all but the last
        for unit in units:
            is_free = type(unit) in FREE
            if last is not None and not is_free and not self._backlog:
                touched += unit_bytes(last)
            if self._backlog or not (is_free or last is None or touched < self._at_once_bytes):
                self._backlog += 1
                effects.append(Later((self, unit)))
                if isinstance(unit, End):
                    self._ends[unit.push] = unit
            else:
                if not is_free:
                    last = unit
                effects += self._do(unit)
        return effects

    def work(self, unit: Unit) -> list[Effect]:
        """Do one unit that came back."""
        self._backlog -= 1
        if self._void:
            self._void -= 1
            return self._drop(unit)
        return self._do(unit)

    def begin_lesson(self, show: m.Show) -> list[Effect]:
        """Become a learner from the beginning. What is queued belongs to what was here before, and is void: it would be
        counted once more, or put an old slot in the place of what is shown now."""
        self.lesson, self._void = show.lesson, self._backlog
        self.log.seed(show.index)
        self.learn_counts(show.counts)
        self.being_shown.clear()
        self.awaits = False
        return []

    def _drop(self, unit: Unit) -> list[Effect]:
        """Only give back the memory that it keeps."""
        if isinstance(unit, Mark):
            return self.log.drop(unit.whole)
        if isinstance(unit, End):
            self._ends.pop(unit.push, None)
        if isinstance(unit, ApplyRows) or (isinstance(unit, Apply) and not unit.is_reduced):
            return [Recycle(tuple([data for _, _, _, data in unit.pieces]))]
        return []

    def _do(self, unit: Unit) -> list[Effect]:
        done: list[Effect] = getattr(self, DOING[type(unit)])(unit)
        return done

    def _end(self, unit: End) -> list[Effect]:
        if self._ends:
            self._ends.pop(unit.push, None)
        return self.end(unit)

    def _echo(self, unit: Echo) -> list[Effect]:
        return self._do(unit.unit) if unit.index > self.slots[unit.slot].base else []

    def _mark(self, unit: Mark) -> list[Effect]:
        return self.log.mark(unit.whole)

    def end(self, end: End) -> list[Effect]:
        """Everything of a push or round is applied here: count it, and tell those who asked."""
        clock = end.push[1]
        for who in end.members:
            if who in self.clocks.applied:  # it may have left meanwhile
                self.clocks.applied[who] = clock
        is_whole = bool(end.members) or end.push[0] == ROUND
        count_elements(self.counted, end.entry)
        if is_whole:
            self.ended(clock)
        error = self._errors.get(end.push, "") or end.entry.error
        for lease in end.entry.leases:
            if error:
                self.batches.give_up(lease.workload, lease.numbers)
            else:
                self.batches.count(lease.workload, lease.numbers)
        effects = self._log_end(end, error)
        for slot in self.slots.values():
            if slot.waiting:
                effects += self._refuse_riders(slot, end.push) if self._errors else self.answer_waiting(slot)
        if is_whole:
            self._errors.pop(end.push, None)
        if error and is_whole:
            self._refused[end.push] = error
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
        if end.acks:
            ack = self._ack(clock, error)
            effects += [Send(who, ack) for who in end.acks]
        return effects

    def _log_end(self, end: End, error: str) -> list[Effect]:
        if end.is_followed:
            return []
        entry = end.entry
        if error:
            entry = msgspec.structs.replace(entry, error=error, leases=(), skipped=tuple(self._skipped))
            self._skipped.clear()
        return self.log.seal(entry)

    @abstractmethod
    def ended(self, clock: int) -> None:
        """A push or round has ended: the version moves."""
