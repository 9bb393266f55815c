"""What the filters of workers have kept back, for a checkpoint. A residual is its worker's own, so whoever saves a key
has each of them asked for it: as it is after one push, the one of the round that is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from windlass._wire import messages as m
from windlass.store.parts import join_arrays
from windlass.types import Array, Bytes, Incarnation

Which = TypeVar("Which")

Arrays = dict[str, Array]


@dataclass(slots=True)
class _Asked:
    clock: int
    attempt: int = 0
    parts: dict[Incarnation, dict[int, tuple[str, Array]]] = field(default_factory=dict)
    given: dict[Incarnation, tuple[int, Arrays, dict[str, Any]]] = field(default_factory=dict)
    is_missed: bool = False
    is_read: bool = False  # by its saver, part by part: nothing more is taken


class Deposits(Generic[Which]):
    """By snapshot. Nothing of a worker that is gone is waited for, or lost that it has given."""

    def __init__(self) -> None:
        self._asked: dict[Which, _Asked] = {}
        self._attempts = 0

    def ask(self, which: Which, clock: int) -> None:
        """Every worker is to give what it has kept back after push `clock`; -1: now."""
        if which not in self._asked:
            self._attempts += 1
            self._asked[which] = _Asked(clock, self._attempts)

    def missing(self, which: Which, crew: Iterable[Incarnation]) -> list[Incarnation]:
        asked = self._asked.get(which)
        return [] if asked is None or asked.is_read else [who for who in crew if who not in asked.given]

    def frost(self, which: Which, crew: Iterable[Incarnation]) -> m.Frost:
        """Whether all is here."""
        asked = self._asked.get(which)
        if asked is not None and asked.is_missed:
            return m.Frost.MISSED
        return m.Frost.AHEAD if self.missing(which, crew) else m.Frost.FROZEN

    def order(self, which: Which) -> tuple[int, int]:
        """After which push it is to be given, and the number of the attempt: what belongs to an earlier one is void."""
        asked = self._asked.get(which)
        return (-1, 0) if asked is None else (asked.clock, asked.attempt)

    def take(self, which: Which, who: Incarnation, rank: int, given: m.Deposited, data: tuple[Bytes, ...]) -> None:
        asked = self._asked.get(which)
        if asked is None or asked.is_read or who in asked.given or given.attempt != asked.attempt:
            return
        if given.is_missed:
            asked.is_missed = True
            return
        parts = asked.parts.setdefault(who, {})
        for part in data:
            parts[given.part] = (given.name, part.copy().view(given.dtype))
        if len(parts) == given.parts:
            del asked.parts[who]
            asked.given[who] = (rank, join_arrays(parts[number] for number in sorted(parts)), given.meta)

    def begin(self, who: Incarnation, clock: int, is_concerned: Callable[[Which], bool]) -> None:
        """It pushes from this clock on: what it gave before, having kept back nothing yet, is not what it has after a
        later push. It is asked again."""
        for which, asked in self._asked.items():
            if asked.clock > clock and not asked.is_read and is_concerned(which):
                asked.given.pop(who, None)

    def content(self, which: Which) -> tuple[Arrays, dict[str, Any]]:
        """All of it: arrays by rank and name, and of each rank what else it needs. The same whenever it is asked again:
        who joins meanwhile comes too late."""
        asked = self._asked.get(which)
        if asked is not None:
            asked.is_read = True
        given = [] if asked is None else sorted(asked.given.values(), key=lambda each: each[0])
        arrays = {f"{rank}.{name}": array for rank, each, _ in given for name, array in each.items()}
        return arrays, {str(rank): meta for rank, _, meta in given}

    def drop(self, is_over: Callable[[Which], bool]) -> None:
        for which in [which for which in self._asked if is_over(which)]:
            del self._asked[which]


def by_rank(arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> dict[int, tuple[Arrays, dict[str, Any]]]:
    """The residual of each rank, out of what `content` gave."""
    found: dict[int, tuple[Arrays, dict[str, Any]]] = {int(rank): ({}, each) for rank, each in meta.items()}
    for name, array in arrays.items():
        rank, _, own = name.partition(".")
        found[int(rank)][0][own] = array
    return found
