"""What a shard cannot take, though it is in order: a table that would outgrow its bytes. All slots are asked before any
of them changes; where a key has rounds, all shards are. Where it has none its worker asks them all, and each sets the
room aside: what all of them have room for is sent, and comes to where nobody else has taken it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Log, Recycle, Send
from windlass.consistency.rounds import StagedPiece
from windlass.server.answers import Answers
from windlass.server.units import THE_SHARDS, Check, SetAside, Unit
from windlass.types import Bytes, Incarnation, Sequential


class Refuses(Answers):
    """The part of a shard that looks first; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    may_refuse: bool
    num_shards: int
    _aside: dict[tuple[Incarnation, int], list[StagedPiece]]  # set aside: the ids of what is to come

    def checks(
        self, pieces: list[StagedPiece], push: tuple[Incarnation, int], *, is_write: bool = False
    ) -> list[Check]:
        """What comes before the update of any slot."""
        return [Check(pieces, push, is_write)] if self.may_refuse and pieces else []

    def refusal(self, pieces: list[StagedPiece], push: tuple[Incarnation, int], *, is_write: bool = False) -> str:
        """Why these cannot be taken, all together, if so. What is set aside for others is not theirs to take."""
        by_slot: dict[int, tuple[list[StagedPiece], list[StagedPiece]]] = {}
        for piece in pieces:
            by_slot.setdefault(piece[0], ([], []))[0].append(piece)
        for piece in [piece for other, some in self._aside.items() if other != push for piece in some]:
            if piece[0] in by_slot:
                by_slot[piece[0]][1].append(piece)
        problems = (
            self.slots[number].content.refusal(some, is_write=is_write, promised=promised)
            for number, (some, promised) in by_slot.items()
        )
        return next(filter(None, problems), "")

    def nothing_taken(self, problem: str) -> str:
        return f"'{self.spec.name}' has taken nothing of this push: {problem}"

    def _check(self, unit: Check) -> list[Effect]:
        problem = "" if unit.push in self._errors else self.refusal(unit.pieces, unit.push, is_write=unit.is_write)
        if not problem:
            return []
        if unit.is_write or self.num_shards == 1 or isinstance(self.spec.consistency, Sequential):
            problem = self.nothing_taken(problem)
        else:  # it was not asked for room, or promised it before it became the head
            where = f"shard {self.number} of '{self.spec.name}'"
            but = "others may have taken theirs, so do not repeat it"
            problem = f"{where} has taken nothing of this push; {but}: {problem}"
        self._errors[unit.push] = problem
        return [Log("error", problem)]

    # --- room that is set aside ---------------------------------------------------------------------------------------

    def reserve(self, peer: Incarnation, asked: m.Reserve, ids: tuple[Bytes, ...]) -> list[Effect]:
        pieces = [(*piece, part.copy()) for piece, part in zip(asked.pieces, ids, strict=True)]
        return [Recycle(ids), *self.queue([SetAside((peer, asked.clock), asked.request, pieces)])]

    def _set_aside(self, unit: SetAside) -> list[Effect]:
        peer, clock = unit.push
        before = self._aside.pop(unit.push, [])
        pieces = before + unit.pieces if unit.is_write else unit.pieces
        slots = {piece[0] for piece in unit.pieces}
        new = [piece for piece in pieces if piece[0] in slots]
        if problem := self.refusal(new, unit.push, is_write=unit.is_write):
            reason = self.nothing_taken(problem)
            return [Send(peer, m.Refused(request=unit.request, is_usage=True, reason=reason))]
        is_to_come = peer in self.members.live and clock > self.clocks.received.get(peer, 0)
        if pieces and (unit.is_write or is_to_come):
            self._aside[unit.push] = pieces
        return [Send(peer, m.Done(request=unit.request))]

    def free_room(self, is_free: Callable[[Incarnation, int], bool]) -> None:
        """Give back what was set aside for these pushes."""
        for push in [push for push in self._aside if is_free(*push)]:
            del self._aside[push]

    @abstractmethod
    def queue(self, units: Sequence[Unit]) -> list[Effect]:
        """Do these in order, after what is queued already."""
