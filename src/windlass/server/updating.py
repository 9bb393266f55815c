"""How a shard's slots take what was pushed, and how the head makes of it what the others of its chain take."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from windlass._wire.effects import Effect, Log, Recycle
from windlass._wire.messages import Piece
from windlass.consistency.rounds import StagedPiece
from windlass.errors import UsageError, in_words, text_of
from windlass.server.log import COPIED_BYTES
from windlass.server.refusing import Refuses
from windlass.server.rows import apply_together
from windlass.server.units import THE_SHARDS, Apply, ApplyRows, HeldSlot
from windlass.types import Block, Bytes, Incarnation


def named(pieces: list[StagedPiece]) -> tuple[Piece, ...]:
    """The same without their data."""
    return tuple([(number, lo, hi) for number, lo, hi, _ in pieces])


class Updates(Refuses):
    """The part of a shard that changes values; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    _skipped: list[int]  # slots that took nothing of a drafted round, because it failed

    answers_by_slot: ClassVar[bool]
    """Whether a pull may be answered as soon as its slot has taken a unit, before the others have."""

    def _apply(self, unit: Apply) -> list[Effect]:
        slot = self.slots[unit.slot]
        effects: list[Effect] = []
        is_followed = self.log.downstream is not None and not unit.is_reduced
        if is_followed or (unit.is_drafted and self.log.downstream is not None):
            self.log.begin()
        if unit.pieces:
            try:
                if unit.is_drafted and unit.push in self._errors:
                    self._skipped.append(unit.slot)
                elif unit.is_reduced:
                    slot.content.update(unit.pieces, hyper=unit.hyper, now=unit.now)
                elif unit.push in self._errors:
                    pass  # it is refused: what it would have changed stays as it is
                elif is_followed:
                    reduced, blocks = self.reduce(slot, unit.pieces, unit.divisor)
                    effects += self.log.part(named(reduced), blocks)  # on its way before we update ourselves
                    slot.content.update(reduced, hyper=unit.hyper, now=unit.now)
                else:
                    slot.content.apply(unit.pieces, divisor=unit.divisor, hyper=unit.hyper, now=unit.now)
            except (Exception, SystemExit) as error:  # a user's code may call sys.exit()
                effects.append(self._failed(unit.push, error))
            if not unit.is_reduced:
                effects.append(Recycle(tuple([data for _, _, _, data in unit.pieces])))
        self.applied(slot, unit)
        if slot.waiting and (self.answers_by_slot or self._errors):
            effects += self._refuse_riders(slot, unit.push) if self._errors else self.answer_waiting(slot)
        return effects

    def reduce(
        self, slot: HeldSlot, pieces: list[StagedPiece], divisor: int
    ) -> tuple[list[StagedPiece], tuple[Block, ...]]:
        """What to update with, as all of the chain do, and the memory that it is in."""
        blocks: list[Block] = []

        def room(nbytes: int) -> Bytes:
            blocks.append(self._room(nbytes))
            return blocks[-1].array

        try:
            return slot.content.reduce(pieces, divisor=divisor, room=room), tuple(blocks)
        except BaseException:
            for block in blocks:
                if block.array.nbytes > COPIED_BYTES:
                    self._pins.retire(block)
            raise

    def _apply_rows(self, unit: ApplyRows) -> list[Effect]:
        """As one: the kernels take rows of several slots."""
        if self._errors or self.log.downstream is not None:
            return [effect for one in unit.apart() for effect in self._apply(one)]
        held = [self.slots[piece[0]] for piece in unit.pieces]
        effects: list[Effect] = []
        try:
            contents = [slot.content for slot in held]
            apply_together(contents, unit.pieces, divisor=unit.divisor, hyper=unit.hyper, now=unit.now)
        except (Exception, SystemExit) as error:
            effects.append(self._failed(unit.push, error))
        effects.append(Recycle(tuple([data for _, _, _, data in unit.pieces])))
        for slot in held:
            if slot.waiting:
                effects += self._refuse_riders(slot, unit.push) if self._errors else self.answer_waiting(slot)
        return effects

    def _failed(self, push: tuple[Incarnation, int], error: BaseException) -> Log:
        """A user's reducer or updater failed: its pushers hear of it, the server lives."""
        self._errors[push] = self.failure(error)
        return Log("error", self._errors[push])

    def failure(self, error: BaseException) -> str:
        what = text_of(error) if isinstance(error, UsageError) else in_words(error)
        return f"the update of '{self.spec.name}' failed: {what}"

    @abstractmethod
    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        """This slot has taken the unit."""
