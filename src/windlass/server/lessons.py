"""Showing a shard to a server that is to join its chain, slot by slot, while all goes on; and being shown one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.consistency import CountedBatches
from windlass.server.answers import Answers
from windlass.server.log import COPIED_BYTES, Teaching
from windlass.server.shard_time import ShardTime
from windlass.server.units import THE_SHARDS, UNSEEN, Learn, Teach, Unit
from windlass.store.parts import cut_arrays
from windlass.types import Array, Block, Bytes, Generation, Incarnation


class Lessons(Answers):
    """The part of a shard that teaches and learns; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    base: int
    lesson: int  # the last one begun, by us or with us; what belongs to earlier ones is void
    being_shown: dict[int, dict[int, tuple[str, Array]]]  # by slot, and by part
    awaits: bool  # the end of a round of which a draft is here: a learner would not have it
    is_lesson_due: bool  # when that has come
    counted: dict[Incarnation, int]
    batches: CountedBatches
    resting: set[Incarnation]
    asked: dict[Incarnation, int]
    restored: dict[Incarnation, int]  # under which number each asked last that a slot become what was saved of it
    time: ShardTime
    _crew: tuple[Generation, dict[Incarnation, str]] | None
    _refused: dict[tuple[Incarnation, int], str]

    def teach(self, learner: Incarnation) -> list[Effect]:
        """The learner is ready: show it the shard, slot by slot, while everything goes on. Asked again, begin anew: the
        link broke, and nobody knows what it has seen. Once the chain waits for it, it has seen all."""
        if self.log.learner != learner or self.log.teaching not in (Teaching.WAITING, Teaching.SHOWING):
            return []
        self.lesson += 1
        self.is_lesson_due = False
        slots = [Teach(self.lesson, learner, slot) for slot in self.slots]
        return self.queue([Teach(self.lesson, learner), *slots, Teach(self.lesson, learner, is_end=True)])

    def _teach(self, unit: Teach) -> list[Effect]:
        log = self.log
        if log.learner != unit.learner or unit.lesson != self.lesson:
            return []
        if unit.slot < 0 and not unit.is_end:
            if self.awaits:
                self.lesson += 1  # the rest of this one is void
                self.is_lesson_due = True
                return []
            return log.show(unit.lesson, self.counts())
        if log.teaching is not Teaching.SHOWING:
            return []
        if unit.is_end:
            return [Send(unit.learner, m.Shown(key=self.id, shard=self.number, lesson=unit.lesson))]
        slot = self.slots[unit.slot]
        arrays, meta = slot.content.dump()
        meta = {"content": meta, "rounds": slot.rounds, "missing": slot.missing, "time": self.time.now()}
        effects: list[Effect] = []
        parts = list(cut_arrays(arrays))
        for position, (name, array) in enumerate(parts):
            block = self._copied(array.view(np.uint8))
            pins = (self._pins.pin(unit.learner, block),) if block.array.nbytes > COPIED_BYTES else ()
            if pins:
                self._pins.retire(block)
            show = m.ShowSlot(
                key=self.id,
                shard=self.number,
                lesson=unit.lesson,
                slot=unit.slot,
                index=log.applied,
                name=name,
                dtype=str(array.dtype),
                is_last=position == len(parts) - 1,
                meta=meta,
                pins=pins,
                part=position,
            )
            effects.append(Send(unit.learner, show, (block,), pins))
        return effects

    def counts(self) -> dict[str, Any]:
        """What a shard counts, beside its slots, as far as its entries tell: for a learner. What is here and not in an
        entry yet will be sent to it again if it ever becomes the head."""
        return {
            "applied": dict(self.clocks.applied),
            "version": self.version,
            "counted": dict(self.counted),
            "base": self.base,
            "refused": [[who, clock, error] for (who, clock), error in self._refused.items()],
            "resting": sorted(self.resting),
            "asked": dict(self.asked),
            "restored": dict(self.restored),
            "leases": self.batches.dump(),
            "repeats": dict(self.batches.repeats),
        }

    def learn_counts(self, counts: dict[str, Any]) -> None:
        self.clocks.received = {Incarnation(who): clock for who, clock in counts["applied"].items()}
        self.clocks.applied = {Incarnation(who): clock for who, clock in counts["applied"].items()}
        self.version, self.base = counts["version"], counts["base"]
        self.resting = {Incarnation(who) for who in counts["resting"]}
        self.asked = {Incarnation(who): request for who, request in counts["asked"].items()}
        self.restored = {Incarnation(who): request for who, request in counts["restored"].items()}
        self.batches.load(counts["leases"], counts["repeats"])
        self._crew = None
        self.counted = {Incarnation(who): elements for who, elements in counts["counted"].items()}
        self._refused = {(Incarnation(who), clock): error for who, clock, error in counts["refused"]}
        for slot in self.slots.values():
            slot.base = UNSEEN

    def _learn(self, unit: Learn) -> list[Effect]:
        slot, meta = self.slots[unit.shown.slot], unit.shown.meta
        if slot.base != UNSEEN:
            return []  # it was shown before, and has taken entries since
        slot.content.restore(unit.arrays, meta["content"])
        self.time.hear(meta["time"])
        slot.rounds, slot.missing, slot.base = meta["rounds"], meta["missing"], unit.shown.index
        return []

    @abstractmethod
    def queue(self, units: Sequence[Unit]) -> list[Effect]:
        """Do them, now or later, in order."""

    @abstractmethod
    def _copied(self, data: Bytes) -> Block:
        """The same bytes in memory that a message can refer to."""
