"""One key as one server holds it: its slots, its clocks, and who waits for what.

What is common to every consistency stands here; `sequential.py` and `arrival.py` say when a push is applied. Work on
data is cut by slot: the first unit is done at once when nothing is queued before it, the rest comes back as Later, so
that one `handle` touches one chunk. A key's units are done in the order they were queued; that order is what makes
"between two rounds" mean the same moment on every slot and every server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Later, Log, Recycle, Send
from windlass.consistency import Admission, Clocks, Verdict, may_pull
from windlass.consistency.rounds import StagedPiece
from windlass.server.pins import Pins
from windlass.store.dense import Contribution as SlotPiece
from windlass.store.dense import DenseSlot
from windlass.types import Block, Bytes, Generation, Incarnation, KeyId, KeySpec

COPIED_BYTES = 16 * 1024
"""A reply up to this size is copied into its frame; a larger one is pinned and sent from where it lies."""


MAX_REFUSED = 64

ROUND = Incarnation(0)
"""In a unit of work: the push is nobody's own, it is a round."""


@dataclass(slots=True)
class Members:
    """The workers of the current generation, and the rank of everyone seen so far (the departed included)."""

    generation: Generation = field(default_factory=lambda: Generation(0, 0))
    live: dict[Incarnation, str] = field(default_factory=dict)
    ranks: dict[Incarnation, int] = field(default_factory=dict)

    def rank(self, who: Incarnation) -> int:
        return self.ranks.get(who, 1 << 30)

    def name(self, who: Incarnation) -> str:
        return self.live.get(who) or f"a departed worker (rank {self.ranks.get(who, '?')})"


@dataclass(slots=True)
class Waiting:
    """A pull of one piece that cannot be answered yet. `rides` tells that it came with the push it follows."""

    peer: Incarnation
    pull: int
    clock: int
    lo: int
    hi: int
    rides: bool


@dataclass(slots=True)
class HeldSlot:
    number: int
    dense: DenseSlot
    missing: int  # elements that have no first value yet
    rounds: int = 0
    waiting: list[Waiting] = field(default_factory=list)


@dataclass(slots=True)
class Apply:
    """Unit of work: reduce these pieces and update one slot, once. `push` is whose (0: a round) and which."""

    slot: int
    pieces: list[StagedPiece]
    divisor: int
    hyper: dict[str, float] | None
    push: tuple[Incarnation, int]


@dataclass(slots=True)
class End:
    """Unit of work: the round, or the push of `push[0]`, is applied to every slot here. Only now does it count as
    applied for its `members`: an acknowledgement gives the pusher its memory back. `acks` are those who want one."""

    push: tuple[Incarnation, int]
    members: tuple[Incarnation, ...]
    acks: tuple[Incarnation, ...]


@dataclass(slots=True)
class Put:
    """Unit of work: set elements lo to hi of a slot, as the driver wants them."""

    slot: int
    lo: int
    hi: int
    data: Bytes


Order = m.Read | m.Commit
Unit = Apply | End | Put | m.Read | m.Commit


class HeldKey(ABC):
    """Every method that can answer somebody returns effects."""

    def __init__(
        self, place: m.Place, me: Incarnation, slots: dict[int, DenseSlot], members: Members, pins: Pins
    ) -> None:
        self.id: KeyId = place.key
        self.spec: KeySpec = place.spec
        self.me = me
        self.servers = tuple(dict.fromkeys(place.slots))
        self.keeper: Incarnation = place.slots[0]
        self.itemsize = place.spec.itemsize
        self.sizes = {number: dense.size for number, dense in slots.items()}
        self.slots = {number: HeldSlot(number, dense, missing=dense.size) for number, dense in slots.items()}
        # What most pushes bring, on a key with one slot here: known at a glance to be in order.
        self.whole = tuple((number, 0, size) for number, size in self.sizes.items())
        self.whole_bytes = sum(self.sizes.values()) * self.itemsize
        self.clocks = Clocks()
        self.version = 0
        self.members = members
        self._pins = pins
        self._backlog = 0  # units handed out as Later and not done
        self._errors: dict[tuple[Incarnation, int], str] = {}  # of pushes or rounds that have not ended
        self._refused: dict[tuple[Incarnation, int], str] = {}  # of the latest that ended so, to be told again
        self._ends: dict[tuple[Incarnation, int], End] = {}  # queued, not done
        self._attaching: list[tuple[Incarnation, int]] = []
        self._writes: dict[Incarnation, tuple[int, dict[m.Piece, Bytes]]] = {}  # the latest of each driver
        self._written: dict[Incarnation, int] = {}  # the number of each driver's last write that was committed
        for who in members.live:
            self.clocks.start(who, 0)

    # --- the first value --------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return not any(slot.missing for slot in self.slots.values())

    def init(self, pieces: tuple[m.Piece, ...], data: tuple[Bytes, ...]) -> list[Effect]:
        """Take the first value; pieces of a slot that has one already are passed over."""
        effects: list[Effect] = [Recycle(data)]
        for (number, lo, hi), part in zip(pieces, data, strict=True):
            slot = self.slots[number]
            if slot.missing:
                slot.dense.write(lo, hi, part, is_pinned=False)
                slot.missing -= hi - lo
                effects += self.answer_waiting(slot)
        return effects + self.answer_attaching()

    def attach(self, peer: Incarnation, request: int, clock: int) -> list[Effect]:
        if clock >= 0:  # the keeper has named it
            self.clocks.start(peer, clock)
            return [Send(peer, m.Done(request=request, detail=clock))]
        self._attaching.append((peer, request))
        return self.answer_attaching()

    def answer_attaching(self) -> list[Effect]:
        if not self.is_ready:
            return self._ask_for_first_value()
        waiting, self._attaching = self._attaching, []
        effects: list[Effect] = []
        for peer, request in waiting:
            if peer in self.members.live:
                self.clocks.start(peer, self.first_clock())
            effects.append(Send(peer, m.Done(request=request, detail=self.clocks.received.get(peer, 0))))
        return effects

    def _ask_for_first_value(self) -> list[Effect]:
        """The lowest rank gives the first value before it attaches. If it waits here, whose task that was has died:
        a clock of -1 tells it that the task is now its own."""
        lowest = min(self.members.live, key=self.members.rank, default=None)
        for waiting in self._attaching:
            if waiting[0] == lowest:
                self._attaching.remove(waiting)
                return [Send(lowest, m.Done(request=waiting[1], detail=-1))]
        return []

    @abstractmethod
    def first_clock(self) -> int:
        """Where a worker starts that joined after the key was made."""

    # --- pushes -----------------------------------------------------------------------------------------------------

    def push(self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...]) -> list[Effect]:
        self.clocks.start(peer, push.since)
        admission = self.admit(peer, push)
        if admission is Admission.NEXT:
            if push.pull:
                self._wait_for(peer, push.pull, push.clock, push.pieces, rides=True)
            staged = [(number, lo, hi, part) for (number, lo, hi), part in zip(push.pieces, data, strict=True)]
            return self.accept(peer, push, staged)
        effects: list[Effect] = [Recycle(data)]
        if admission is Admission.DUPLICATE:
            effects += self._answer_again(peer, push)
        return effects

    @abstractmethod
    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        """Only the next push of an incarnation counts, and each of its parts once."""

    @abstractmethod
    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        """Count one part of a push that was admitted."""

    def _answer_again(self, peer: Incarnation, push: m.Push) -> list[Effect]:
        error = self._refused.get((peer, push.clock)) or self._refused.get((ROUND, push.clock), "")
        if push.pull and error:
            return [Send(peer, self._refusal(push.pull, push.clock, push.pieces, error))]
        if push.pull:
            return self.pull(peer, m.Pull(pull=push.pull, key=self.id, clock=push.clock, pieces=push.pieces))
        if push.clock <= self.clocks.applied[peer]:
            return [Send(peer, m.Ack(key=self.id, clock=push.clock, error=error))]
        return []  # here but not applied yet: its ack comes with the others

    def on_members(self) -> list[Effect]:
        """The generation changed."""
        return self.answer_attaching()

    # --- pulls ------------------------------------------------------------------------------------------------------

    def pull(self, peer: Incarnation, pull: m.Pull) -> list[Effect]:
        self._wait_for(peer, pull.pull, pull.clock, pull.pieces, rides=False)
        effects: list[Effect] = []
        for number in dict.fromkeys(piece[0] for piece in pull.pieces):
            effects += self.answer_waiting(self.slots[number])
        return effects

    def _wait_for(self, peer: Incarnation, pull: int, clock: int, pieces: tuple[m.Piece, ...], *, rides: bool) -> None:
        for number, lo, hi in pieces:
            self.slots[number].waiting.append(Waiting(peer, pull, clock, lo, hi, rides))

    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int) -> Verdict:
        if slot.missing:
            return Verdict(False, "rank 0 has not given its first value")
        return may_pull(
            self.spec.consistency, peer, clock, rounds=slot.rounds, clocks=self.clocks, live=self.members.live
        )

    def answer_waiting(self, slot: HeldSlot) -> list[Effect]:
        """Answer every pull on this slot that may be answered now."""
        if not slot.waiting:
            return []
        still: list[Waiting] = []
        effects: list[Effect] = []
        copies: dict[tuple[int, int], Block] = {}  # readers of the same small piece share one copy of it
        for waiting in slot.waiting:
            if self.verdict(slot, waiting.peer, waiting.clock).admit:
                effects.append(self._answer(slot, waiting, copies))
            else:
                still.append(waiting)
        slot.waiting = still
        return effects

    def _answer(self, slot: HeldSlot, waiting: Waiting, copies: dict[tuple[int, int], Block]) -> Send:
        lo, hi = waiting.lo, waiting.hi
        pins: tuple[int, ...] = ()
        itemsize = self.itemsize
        block = slot.dense.block
        if (hi - lo) * itemsize <= COPIED_BYTES:
            found = copies.get((lo, hi))
            if found is None:
                found = copies[(lo, hi)] = Block(block.array[lo * itemsize : hi * itemsize].copy())
            data = found
        else:
            pins = (self._pins.pin(waiting.peer, block),)
            data = Block(block.array[lo * itemsize : hi * itemsize], block.segment, block.offset + lo * itemsize)
        pulled = m.Pulled(
            pull=waiting.pull,
            key=self.id,
            clock=waiting.clock,
            version=self.slot_version(slot),
            pieces=((slot.number, lo, hi),),
            pins=pins,
        )
        return Send(waiting.peer, pulled, (data,), pins, self.spec.priority)

    @abstractmethod
    def slot_version(self, slot: HeldSlot) -> int:
        """How many updates the key has taken, as far as this slot shows."""

    def drop_reader(self, peer: Incarnation) -> None:
        """The link to this peer is gone; it asks again when it is back."""
        for slot in self.slots.values():
            slot.waiting = [waiting for waiting in slot.waiting if waiting.peer != peer]
        self._attaching = [one for one in self._attaching if one[0] != peer]

    def dissolve(self) -> list[Effect]:
        """The key is deleted: give its memory back and tell those who wait."""
        effects: list[Effect] = []
        gone = f"'{self.spec.name}' was deleted"
        for slot in self.slots.values():
            for one in slot.waiting:
                piece = (slot.number, one.lo, one.hi)
                effects.append(Send(one.peer, self._refusal(one.pull, one.clock, (piece,), gone)))
            self._pins.retire(slot.dense.block)
        for end in self._ends.values():
            effects += [Send(who, m.Ack(key=self.id, clock=end.push[1], error=gone)) for who in end.acks]
        effects += [Send(peer, m.Refused(request=ask, is_usage=True, reason=gone)) for peer, ask in self._attaching]
        return effects

    def _refusal(self, pull: int, clock: int, pieces: tuple[m.Piece, ...], error: str) -> m.Pulled:
        return m.Pulled(pull=pull, key=self.id, clock=clock, version=self.version, pieces=pieces, error=error)

    # --- what the keeper orders -------------------------------------------------------------------------------------

    def stage_write(self, peer: Incarnation, write: m.Write, data: tuple[Bytes, ...]) -> None:
        number, staged = self._writes.get(peer, (-1, {}))
        if number != write.write:
            number, staged = self._writes[peer] = (write.write, {})
        for piece, part in zip(write.pieces, data, strict=True):
            staged[piece] = part.copy()  # the sender's memory is its own again once this is answered

    def order(self, order: Order, sender: Incarnation) -> list[Effect]:
        """Put a read or a write between two rounds; the keeper passes it on, so that all servers choose the same."""
        effects: list[Effect] = []
        if self.keeper == self.me and sender not in self.servers:
            order = msgspec.structs.replace(order, round=self.current_round())
            effects += [Send(server, order) for server in self.servers if server != self.me]
        return effects + self.schedule(order)

    @abstractmethod
    def current_round(self) -> int:
        """After which round the keeper puts an order; -1 where there are no rounds."""

    def schedule(self, order: Order) -> list[Effect]:
        """Queue an order: its moment has come."""
        if isinstance(order, m.Commit):
            number, staged = self._writes.get(order.writer, (-1, {}))
            if number == order.write:
                del self._writes[order.writer]
                self._written[order.writer] = number
                return self.queue([*(Put(*piece, part) for piece, part in staged.items()), order])
            if self._written.get(order.writer) != order.write:
                reason = f"what was to be assigned to '{self.spec.name}' is not here any more; assign it again"
                return [Send(order.writer, m.Refused(request=order.request, is_usage=False, reason=reason))]
        return self.queue([order])

    def _put(self, put: Put) -> None:
        slot = self.slots[put.slot]
        is_pinned = self._pins.is_pinned(slot.dense.block)
        self._pins.retire(slot.dense.write(put.lo, put.hi, put.data, is_pinned=is_pinned))

    def _carry_out(self, order: Order) -> list[Effect]:
        if isinstance(order, m.Commit):
            return [Send(order.writer, m.Done(request=order.request))]
        effects: list[Effect] = []
        for number, lo, hi in order.pieces:
            if number in self.slots:
                reader = Waiting(order.reader, order.pull, -1, lo, hi, False)
                effects.append(self._answer(self.slots[number], reader, {}))
        return effects

    # --- work on data -----------------------------------------------------------------------------------------------

    def queue(self, units: Sequence[Unit]) -> list[Effect]:
        """Do the first unit that touches data and all that cost nothing; the rest comes back as Later."""
        effects: list[Effect] = []
        may_touch = True
        for unit in units:
            is_free = isinstance(unit, End)
            if self._backlog or not (may_touch or is_free):
                self._backlog += 1
                effects.append(Later((self.id, unit)))
                if isinstance(unit, End):
                    self._ends[unit.push] = unit
            else:
                may_touch = may_touch and is_free
                effects += self._do(unit)
        return effects

    def work(self, unit: Unit) -> list[Effect]:
        """Do one unit that came back."""
        self._backlog -= 1
        return self._do(unit)

    def _do(self, unit: Unit) -> list[Effect]:
        if isinstance(unit, Apply):
            return self._apply(unit)
        if isinstance(unit, End):
            self._ends.pop(unit.push, None)
            return self.end(unit)
        if isinstance(unit, Put):
            self._put(unit)
            return []
        return self._carry_out(unit)

    def _apply(self, unit: Apply) -> list[Effect]:
        slot = self.slots[unit.slot]
        effects: list[Effect] = []
        if unit.pieces:
            pieces = [SlotPiece(lo, hi, data) for _, lo, hi, data in unit.pieces]
            try:
                old = slot.dense.apply(
                    pieces,
                    divisor=unit.divisor,
                    hyper=unit.hyper,
                    is_pinned=self._pins.is_pinned(slot.dense.block),
                )
                self._pins.retire(old)
            except Exception as error:  # a user's reducer or updater failed: its pushers hear of it, the server lives
                self._errors[unit.push] = f"the update of '{self.spec.name}' failed: {type(error).__name__}: {error}"
                effects.append(Log("error", self._errors[unit.push]))
            effects.append(Recycle(tuple(data for _, _, _, data in unit.pieces)))
        self.applied(slot, unit)
        if slot.waiting:
            effects += self._refuse_riders(slot, unit.push) if self._errors else self.answer_waiting(slot)
        return effects

    @abstractmethod
    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        """This slot has taken the unit."""

    def end(self, end: End) -> list[Effect]:
        """Everything of a push or round is applied here: count it, and tell those who asked."""
        clock = end.push[1]
        for who in end.members:
            if who in self.clocks.applied:  # it may have left meanwhile
                self.clocks.applied[who] = clock
        self.ended(clock)
        effects: list[Effect] = []
        for slot in self.slots.values():
            if slot.waiting:
                effects += self._refuse_riders(slot, end.push) if self._errors else self.answer_waiting(slot)
        error = self._errors.pop(end.push, "")
        if error:
            self._refused[end.push] = error
            if len(self._refused) > MAX_REFUSED:
                del self._refused[next(iter(self._refused))]
        return effects + [Send(who, m.Ack(key=self.id, clock=clock, error=error)) for who in end.acks]

    @abstractmethod
    def ended(self, clock: int) -> None:
        """A push or round has ended: the version moves."""

    def _refuse_riders(self, slot: HeldSlot, push: tuple[Incarnation, int]) -> list[Effect]:
        """Tell the pulls that ride on a refused push why; answer the others."""
        error = self._errors.get(push)
        if error is None:
            return self.answer_waiting(slot)
        who, clock = push
        effects: list[Effect] = []
        still: list[Waiting] = []
        for one in slot.waiting:
            if one.rides and one.clock == clock and who in (0, one.peer):
                piece = (slot.number, one.lo, one.hi)
                effects.append(Send(one.peer, self._refusal(one.pull, clock, (piece,), error)))
            else:
                still.append(one)
        slot.waiting = still
        return effects + self.answer_waiting(slot)
