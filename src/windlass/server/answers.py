"""Who waits to read a shard, and what they are answered, when their key's consistency allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Received, Send
from windlass.consistency import Clocks, Verdict, may_pull
from windlass.filters import NeedIds
from windlass.server.content import DenseContent
from windlass.server.decoding import Decoder
from windlass.server.host import Members
from windlass.server.log import COPIED_BYTES, Log
from windlass.server.pins import Pins
from windlass.server.rows import TableContent, read_rows
from windlass.server.units import THE_SHARDS, HeldSlot, Rows, Waiting
from windlass.store.batch import bytes_address
from windlass.types import Block, Bytes, Incarnation, KeyId, KeySpec

ANSWER_BYTES = 8 << 20
"""How many bytes of a table's rows one message carries, if there are more than one piece of them."""


class Answers(ABC):
    """The reading half of a shard; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    id: KeyId
    number: int
    spec: KeySpec
    itemsize: int
    is_table: bool
    decoder: Decoder | None
    version: int
    slots: dict[int, HeldSlot]
    clocks: Clocks
    members: Members
    log: Log
    early: list[Received]
    _pins: Pins
    _attaching: list[tuple[Incarnation, m.Attach]]
    _errors: dict[tuple[Incarnation, int], str]

    def pull(self, peer: Incarnation, pull: m.Pull, data: tuple[Bytes, ...] = ()) -> list[Effect]:
        if pull.digest and self.is_table and self.decoder is not None:
            named = self.decoder.resolve(pull, data)
            if isinstance(named, NeedIds):
                need = m.NeedIds(
                    key=self.id, shard=self.number, clock=pull.clock, part=0, digest=pull.digest, pull=pull.pull
                )
                return [Send(peer, need)]
            data = named
        if self.is_table and (told := self._read_at_once(peer, pull, data)):
            return told
        if self.is_table:
            self._wait_for_rows(peer, pull, [part.copy() for part in data])
            return []
        self._wait_for(peer, pull.pull, pull.clock, pull.pieces, rides=False, ahead=pull.ahead)
        effects: list[Effect] = []
        for number in dict.fromkeys([piece[0] for piece in pull.pieces]):
            effects += self.answer_waiting(self.slots[number])
        return effects

    def _wait_for(
        self,
        peer: Incarnation,
        pull: int,
        clock: int,
        pieces: tuple[m.Piece, ...],
        *,
        rides: bool,
        ahead: int = 0,
    ) -> None:
        for number, lo, hi in pieces:
            self.slots[number].waiting.append(Waiting(peer, pull, clock, lo, hi, rides, ahead=ahead))

    def verdict(self, slot: HeldSlot, peer: Incarnation, clock: int, ahead: int = 0) -> Verdict:
        if slot.missing:
            return Verdict(False, "rank 0 has not given its first value")
        return may_pull(
            self.spec.consistency, peer, clock, rounds=slot.rounds, clocks=self.clocks, live=self.crew, ahead=ahead
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
            if waiting.rows is not None and self._may_read(waiting.peer, waiting.clock, waiting.rows, waiting.ahead):
                effects += self._answer_all(waiting.peer, waiting.pull, waiting.clock, waiting.rows)
            elif waiting.rows is None and self.verdict(slot, waiting.peer, waiting.clock, waiting.ahead).admit:
                effects.append(self._answer(slot, waiting, copies))
            else:
                still.append(waiting)
        slot.waiting = still
        return effects

    def _answer(self, slot: HeldSlot, waiting: Waiting, copies: dict[tuple[int, int], Block]) -> Send:
        lo, hi = waiting.lo, waiting.hi
        if self.decoder is not None:
            return self._answer_filtered(slot, waiting, self.decoder)
        pins: tuple[int, ...] = ()
        itemsize = self.itemsize
        assert isinstance(slot.content, DenseContent)
        block = slot.content.dense.block
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

    def _answer_filtered(self, slot: HeldSlot, waiting: Waiting, decoder: Decoder) -> Send:
        """As the key's filters want it; with what KKT needs to know."""
        lo, hi, itemsize = waiting.lo, waiting.hi, self.itemsize
        assert isinstance(slot.content, DenseContent)
        numbers = slot.content.dense.block.array[lo * itemsize : hi * itemsize]
        found = decoder.answer(numbers)
        data = [numbers.copy() if found is None else found[1]]
        threshold = slot.content.dense.threshold(lo, hi) if decoder.wants_threshold else None
        if isinstance(threshold, np.ndarray):
            data.append(threshold.astype(np.float32).view(np.uint8))
        pulled = m.Pulled(
            pull=waiting.pull,
            key=self.id,
            clock=waiting.clock,
            version=self.slot_version(slot),
            pieces=((slot.number, lo, hi),),
            filtered=() if found is None else (found[0],),
            threshold=-1.0 if isinstance(threshold, np.ndarray) else threshold,
        )
        return Send(waiting.peer, pulled, tuple(Block(one) for one in data), (), self.spec.priority)

    # --- rows of a table --------------------------------------------------------------------------------------------

    def _wait_for_rows(self, peer: Incarnation, pull: m.Pull, ids: Sequence[Bytes], *, rides: bool = False) -> None:
        """Wait at the last slot that is concerned: it is the last to be updated."""
        rows = list(zip(pull.pieces, ids, strict=True))
        if rows:
            slot = self.slots[max(piece[0] for piece in pull.pieces)]
            slot.waiting.append(Waiting(peer, pull.pull, pull.clock, 0, 0, rides, rows, pull.ahead))

    def _may_read(self, peer: Incarnation, clock: int, rows: Rows, ahead: int) -> bool:
        slots = {piece[0] for piece, _ in rows}
        return all(self.verdict(self.slots[number], peer, clock, ahead).admit for number in slots)

    def _read_at_once(self, peer: Incarnation, pull: m.Pull, data: tuple[Bytes, ...]) -> list[Effect]:
        """All that was asked for, if all of it may be answered now."""
        rows = list(zip(pull.pieces, data, strict=True))
        if not self._may_read(peer, pull.clock, rows, pull.ahead):
            return []
        return self._answer_all(peer, pull.pull, pull.clock, rows)

    def _answer_all(self, peer: Incarnation, pull: int, clock: int, rows: Rows) -> list[Effect]:
        """In as few messages as there can be."""
        effects: list[Effect] = []
        some: list[tuple[m.Piece, Bytes]] = []
        size = 0
        for piece, ids in rows:
            nbytes = (piece[2] - piece[1]) * self.itemsize
            if some and size + nbytes > ANSWER_BYTES:
                effects.append(self._answer_rows(peer, pull, clock, some))
                some, size = [], 0
            some.append((piece, ids))
            size += nbytes
        if some:
            effects.append(self._answer_rows(peer, pull, clock, some))
        return effects

    def _answer_rows(self, peer: Incarnation, pull: int, clock: int, wanted: Rows) -> Send:
        block, pins = self._readable(peer, sum(hi - lo for (_, lo, hi), _ in wanted) * self.itemsize)
        read_rows([(self.slots[number].content, ids) for (number, _, _), ids in wanted], bytes_address(block.array))  # type: ignore[misc]
        data: list[Block] = []
        begin = 0
        for (_, lo, hi), _ in wanted:
            end = begin + (hi - lo) * self.itemsize
            data.append(Block(block.array[begin:end], block.segment, block.offset + begin))
            begin = end
        pulled = m.Pulled(
            pull=pull,
            key=self.id,
            clock=clock,
            version=self.slot_version(self.slots[wanted[0][0][0]]),
            pieces=tuple(piece for piece, _ in wanted),
            pins=pins,
        )
        if self.decoder is not None:
            pulled, data = self._filter_rows(pulled, block.array, data, wanted, self.decoder)
        return Send(peer, pulled, tuple(data), pins, self.spec.priority)

    def _filter_rows(
        self, pulled: m.Pulled, rows: Bytes, data: list[Block], wanted: Rows, decoder: Decoder
    ) -> tuple[m.Pulled, list[Block]]:
        """As the key's filters want it; with what KKT needs to know."""
        found = decoder.answer(rows)
        if found is not None:
            data = [Block(found[1])]
            pulled = msgspec.structs.replace(pulled, filtered=(found[0],))
        if decoder.wants_threshold:
            told = [self.slots[piece[0]].content.threshold(ids) for piece, ids in wanted]  # type: ignore[attr-defined]
            if all(isinstance(one, np.ndarray) for one in told):
                data = [*data, *(Block(one.astype(np.float32).view(np.uint8)) for one in told)]
                pulled = msgspec.structs.replace(pulled, threshold=-1.0)
            elif told[0] is not None:
                pulled = msgspec.structs.replace(pulled, threshold=float(told[0]))
        return pulled, data

    def _readable(self, reader: Incarnation, nbytes: int) -> tuple[Block, tuple[int, ...]]:
        """Memory that this reader will find, and the pin that keeps it until it has been read."""
        block = self._room(nbytes)
        if nbytes <= COPIED_BYTES:
            return block, ()
        pin = self._pins.pin(reader, block)
        self._pins.retire(block)
        return block, (pin,)

    @abstractmethod
    def _room(self, nbytes: int) -> Block:
        """Memory for something that is sent: where others can map it, if it is large."""

    def scan(self, peer: Incarnation, scan: m.Scan) -> list[Effect]:
        """A page of a table's rows."""
        slot = self.slots.get(scan.slot)
        if slot is None or not isinstance(slot.content, TableContent):
            reason = f"'{self.spec.name}' has no rows in slot {scan.slot} of shard {self.number}"
            return [Send(peer, m.Refused(request=scan.request, is_usage=True, reason=reason))]
        ids, rows, after = slot.content.scan(scan.after, scan.limit, scan.span)
        block, pins = self._readable(peer, ids.nbytes + rows.nbytes)
        block.array[: ids.nbytes] = ids.view(np.uint8)
        block.array[ids.nbytes :] = rows.reshape(-1).view(np.uint8)
        return [Send(peer, m.Scanned(request=scan.request, after=after, pins=pins), (block,), pins)]

    @abstractmethod
    def slot_version(self, slot: HeldSlot) -> int:
        """How many updates the key has taken, as far as this slot shows."""

    def drop_reader(self, peer: Incarnation) -> None:
        """The link to this peer is gone; it asks again when it is back."""
        for slot in self.slots.values():
            if slot.waiting:
                slot.waiting = [waiting for waiting in slot.waiting if waiting.peer != peer]
        if self._attaching:
            self._attaching = [one for one in self._attaching if one[0] != peer]
        if self.early:
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
                effects.append(Send(one.peer, self._refusal(one.pull, clock, one.pieces(slot.number), error)))
            else:
                still.append(one)
        slot.waiting = still
        return effects + self.answer_waiting(slot)
