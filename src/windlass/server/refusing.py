"""What a shard cannot take, though it is in order: a table that would outgrow its bytes. All slots are asked before any
of them changes; where a key has rounds, all shards are."""

from __future__ import annotations

from windlass._wire.effects import Effect, Log
from windlass.consistency.rounds import StagedPiece
from windlass.server.answers import Answers
from windlass.server.units import THE_SHARDS, Check
from windlass.types import Incarnation


class Refuses(Answers):
    """The part of a shard that looks first; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    may_refuse: bool

    def checks(
        self, pieces: list[StagedPiece], push: tuple[Incarnation, int], *, is_write: bool = False
    ) -> list[Check]:
        """What comes before the update of any slot."""
        return [Check(pieces, push, is_write)] if self.may_refuse and pieces else []

    def refusal(self, pieces: list[StagedPiece], *, is_write: bool = False) -> str:
        """Why these cannot be taken, all together, if so."""
        by_slot: dict[int, list[StagedPiece]] = {}
        for piece in pieces:
            by_slot.setdefault(piece[0], []).append(piece)
        problems = (self.slots[number].content.refusal(some, is_write=is_write) for number, some in by_slot.items())
        problem = next(filter(None, problems), "")
        return f"'{self.spec.name}' has taken nothing of this push: {problem}" if problem else ""

    def _check(self, unit: Check) -> list[Effect]:
        problem = "" if unit.push in self._errors else self.refusal(unit.pieces, is_write=unit.is_write)
        if not problem:
            return []
        self._errors[unit.push] = problem
        return [Log("error", problem)]
