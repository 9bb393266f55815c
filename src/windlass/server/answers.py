"""Who waits to read a shard, and what they are answered, when their key's consistency allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Received, Send
from windlass.consistency import Clocks, Verdict, may_pull
from windlass.server.host import Members
from windlass.server.log import COPIED_BYTES, Log
from windlass.server.pins import Pins
from windlass.server.units import HeldSlot, Waiting
from windlass.types import Block, Incarnation, KeyId, KeySpec


class Answers(ABC):
    """The reading half of a shard; what it holds is the shard's."""

    id: KeyId
    spec: KeySpec
    itemsize: int
    version: int
    slots: dict[int, HeldSlot]
    clocks: Clocks
    members: Members
    log: Log
    early: list[Received]
    _pins: Pins
    _attaching: list[tuple[Incarnation, int, bool]]
    _errors: dict[tuple[Incarnation, int], str]

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
            self.spec.consistency, peer, clock, rounds=slot.rounds, clocks=self.clocks, live=self.crew
        )

    @property
    @abstractmethod
    def crew(self) -> Mapping[Incarnation, str]:
        """Whose pushes are waited for."""

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
        self.early = [event for event in self.early if event.peer != peer]
        self.log.drop_reader(peer)

    def _refusal(self, pull: int, clock: int, pieces: tuple[m.Piece, ...], error: str) -> m.Pulled:
        return m.Pulled(pull=pull, key=self.id, clock=clock, version=self.version, pieces=pieces, error=error)

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
