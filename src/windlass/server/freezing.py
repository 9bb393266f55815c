"""Keeping a shard as it was at one moment, for whoever saves it, while pushes go on: copy on write.

A *snapshot* is one saver's, with a number of its own; of each shard it keeps the slots after one round, or as they were
when it was asked. Freezing copies nothing: the published block is pinned, so the next update goes to another one, and
what the updater keeps beside it is copied when it is about to change. A slot is given back when it has been read, and
everything when the saver says so, loses its link, or is gone; so it is when this server speaks for the shard no more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.consistency import CountedBatches
from windlass.server.answers import Answers
from windlass.server.content import Content, Frozen
from windlass.server.deposits import Deposits
from windlass.server.log import COPIED_BYTES
from windlass.server.pins import Pins
from windlass.server.units import THE_SHARDS, Freezing, HeldSlot
from windlass.store.parts import cut_arrays
from windlass.types import Array, Block, Bytes, Incarnation, KeyId, Memory


class Which(NamedTuple):
    """One shard of one snapshot."""

    saver: Incarnation
    snapshot: int
    key: KeyId
    shard: int


@dataclass(slots=True)
class FrozenShard:
    """`count` is how many updates the key had taken, `leases` which batches of leased work were among them."""

    count: int
    num_slots: int  # of the key
    slots: dict[int, Frozen]
    leases: dict[str, list[object]]


class Freezer:
    """What one server keeps for savers. Nothing is kept for a snapshot that its saver has given up."""

    def __init__(self, me: Incarnation, pins: Pins, memory: Memory) -> None:
        self._me, self._pins, self._memory = me, pins, memory
        self._asked: set[Which] = set()  # not frozen yet
        self._frozen: dict[Which, FrozenShard] = {}
        self.deposits: Deposits[Which] = Deposits()
        self._void: dict[Incarnation, int] = {}  # the last snapshot that each saver has given up

    def __len__(self) -> int:
        return len(self._frozen) + len(self._asked)

    def find(self, which: Which) -> FrozenShard | None:
        return self._frozen.get(which)

    def is_new(self, which: Which) -> bool:
        """Whether nobody has asked for it yet."""
        return which not in self._asked

    def is_void(self, which: Which) -> bool:
        """Whether its saver has given it up; this was said before that, and came late."""
        return which.snapshot <= self._void.get(which.saver, 0)

    def ask(self, which: Which) -> None:
        """Somebody wants this frozen."""
        self._asked.add(which)

    def freeze(
        self, which: Which, count: int, num_slots: int, slots: dict[int, HeldSlot], leases: dict[str, list[object]]
    ) -> FrozenShard | None:
        """The moment has come; None if nobody wants it any more."""
        if which not in self._asked:
            return self._frozen.get(which)
        self._asked.discard(which)
        kept = {number: self.keep(slot.content) for number, slot in slots.items()}
        self._frozen[which] = FrozenShard(count, num_slots, kept, leases)
        return self._frozen[which]

    def keep(self, content: Content) -> Frozen:
        """From now on the slot changes elsewhere."""
        return content.freeze()

    def read(self, which: Which, wanted: m.Dump) -> Send:
        """One array of a slot, or a stretch of one; after the last one the slot is given back."""
        shard = self._frozen.get(which)
        if shard is not None and wanted.slot not in shard.slots and wanted.slot == shard.num_slots:
            return self._read_deposits(which, wanted)
        kept = shard.slots.get(wanted.slot) if shard is not None else None
        parts = list(cut_arrays(kept.arrays())) if kept is not None else []
        if shard is None or kept is None or not 0 <= wanted.part < len(parts):
            return Send(which.saver, m.Dumped(request=wanted.request, names=(), dtypes=(), meta={}))
        name, array = parts[wanted.part]
        names, dtypes = tuple(one for one, _ in parts), tuple(str(one.dtype) for _, one in parts)
        block, pins = self._readable(which.saver, array, kept.block(name))
        meta = kept.meta | {"leases": shard.leases} if shard.leases else kept.meta
        dumped = m.Dumped(request=wanted.request, names=names, dtypes=dtypes, meta=meta, pins=pins)
        if wanted.part == len(parts) - 1:
            shard.slots.pop(wanted.slot).thaw()
        return Send(which.saver, dumped, (block,), pins)

    def _read_deposits(self, which: Which, wanted: m.Dump) -> Send:
        """What workers have kept back. It stays until all is given back."""
        arrays, meta = self.deposits.content(which)
        parts = list(cut_arrays(arrays or {"": np.empty(0, np.uint8)}))
        if not 0 <= wanted.part < len(parts):
            return Send(which.saver, m.Dumped(request=wanted.request, names=(), dtypes=(), meta={}))
        names, dtypes = tuple(one for one, _ in parts), tuple(str(one.dtype) for _, one in parts)
        block, pins = self._readable(which.saver, parts[wanted.part][1], None)
        dumped = m.Dumped(request=wanted.request, names=names, dtypes=dtypes, meta=meta, pins=pins)
        return Send(which.saver, dumped, (block,), pins)

    def _readable(self, reader: Incarnation, array: Array, own: Block | None) -> tuple[Block, tuple[int, ...]]:
        """The array where its reader finds it, its own block or a copy in memory that can be shared; and its pin."""
        if array.nbytes <= COPIED_BYTES:
            return Block(array.view(np.uint8).copy()), ()
        if own is not None:
            return own, (self._pins.pin(reader, own),)
        block = self._memory.allocate(array.nbytes)
        block.array[:] = array.view(np.uint8)
        pin = self._pins.pin(reader, block)
        self._pins.retire(block)  # a copy: nobody else needs it
        return block, (pin,)

    # --- letting go ---------------------------------------------------------------------------------------------------

    def thaw(self, saver: Incarnation, snapshot: int) -> None:
        """The saver needs nothing more of its snapshots up to this one."""
        self._void[saver] = max(snapshot, self._void.get(saver, 0))
        self._drop(lambda which: which.saver == saver and which.snapshot <= snapshot)

    def drop_saver(self, saver: Incarnation) -> None:
        """Its link is down: it begins anew, or not at all."""
        self._void.pop(saver, None)
        self._drop(lambda which: which.saver == saver)

    def drop_shard(self, key: KeyId, shard: int) -> None:
        """Somebody else speaks for the shard, or nobody does."""
        self._drop(lambda which: (which.key, which.shard) == (key, shard))

    def _drop(self, is_over: Callable[[Which], bool]) -> None:
        self._asked = {which for which in self._asked if not is_over(which)}
        self.deposits.drop(is_over)
        for which in [which for which in self._frozen if is_over(which)]:
            for kept in self._frozen.pop(which).slots.values():
                kept.thaw()


class Freezes(Answers):
    """The half of a shard that is kept for savers; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    base: int
    batches: CountedBatches
    freezer: Freezer

    def freeze(self, peer: Incarnation, wanted: m.Freeze) -> list[Effect]:
        """Freeze the shard at its moment; tell at once how that stands."""
        which = Which(peer, wanted.snapshot, self.id, self.number)
        known = self.freezer.find(which)
        if known is not None and wanted.round is not None:
            frost = self.freezer.deposits.frost(which, self.crew)
            return [self._frost(peer, wanted.request, frost, known.count), *self._ask_for_deposits(which)]
        count = self.current_count()
        if not self.is_ready:
            return [self._frost(peer, wanted.request, m.Frost.EMPTY, count)]
        round = self.moment(wanted.round)
        if round is None or not self.freezer.is_new(which):
            return [self._frost(peer, wanted.request, m.Frost.AHEAD, count), *self._ask_for_deposits(which)]
        if round < self.current_round() or self.freezer.is_void(which):
            return [self._frost(peer, wanted.request, m.Frost.MISSED, count)]
        self.freezer.ask(which)
        asks: list[Effect] = []
        if self.number == 0 and self.decoder is not None and self.decoder.keeps_loss:
            self.freezer.deposits.ask(which, round)
            asks = self._ask_for_deposits(which)
        if round == self.current_round() and not asks:
            return self.schedule(Freezing(which, round, wanted.request))
        told = self._frost(peer, wanted.request, m.Frost.AHEAD, count)
        return [*self.schedule(Freezing(which, round, 0)), told, *asks]

    def _ask_for_deposits(self, which: Which) -> list[Effect]:
        """Ask those who have not given what they have kept back; again, because the word may have been lost."""
        deposits = self.freezer.deposits
        clock, attempt = deposits.order(which)
        ask = m.Deposit(key=self.id, saver=which.saver, snapshot=which.snapshot, clock=clock, attempt=attempt)
        return [Send(who, ask) for who in deposits.missing(which, self.crew)]

    def deposit(self, peer: Incarnation, given: m.Deposited, data: tuple[Bytes, ...]) -> None:
        which = Which(given.saver, given.snapshot, self.id, self.number)
        self.freezer.deposits.take(which, peer, self.members.rank(peer), given, data)

    def carry_out(self, unit: Freezing) -> list[Effect]:
        count = self.version + self.base
        leases = self.batches.dump()
        frozen = self.freezer.freeze(Which(*unit.which), count, self.spec.num_slots, self.slots, leases)
        if frozen is None or not unit.request:
            return []
        return [self._frost(unit.which[0], unit.request, m.Frost.FROZEN, frozen.count)]

    def _frost(self, peer: Incarnation, request: int, frost: m.Frost, count: int) -> Send:
        return Send(peer, m.Frozen(request=request, frost=frost, count=count))

    def dump(self, peer: Incarnation, wanted: m.Dump) -> list[Effect]:
        return [self.freezer.read(Which(peer, wanted.snapshot, self.id, self.number), wanted)]

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it has its first value."""

    @abstractmethod
    def current_count(self) -> int:
        """How many updates have been decided, those before a load included."""

    @abstractmethod
    def current_round(self) -> int:
        """The last round that was closed; -1 where there are none."""

    @abstractmethod
    def moment(self, count: int | None) -> int | None:
        """The round after which the key has taken so many updates; -1 where there are no rounds."""

    @abstractmethod
    def schedule(self, order: Freezing) -> list[Effect]:
        """Do it between two rounds."""
