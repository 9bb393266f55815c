"""What a strategy is: who sends which elements to whom, in which step, and what becomes of them there.

A tensor is seen flat, as elements 0 to `size`. A *member* holds one copy of it; the *host*, which some strategies need,
is one more holder, in main memory, with the number `members`. A *span* is elements lo to hi; an *owner* of a span is
the member that holds its complete reduction when the reduce steps are done. A *transfer* moves a span from one holder
to another, where it is reduced into what is there, or copied over it. The transfers of one step may all be under way
at once; those with the same target and overlapping spans take effect in the order listed.

Everything here is a plain value. Backends execute schedules; nothing in a schedule knows of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


class Action(Enum):
    """What the target does with what it gets."""

    REDUCE = "reduce"
    COPY = "copy"


class Transfer(NamedTuple):
    """Elements lo to hi of the source's copy go to the target's."""

    source: int
    target: int
    lo: int
    hi: int
    action: Action


class Owned(NamedTuple):
    """This member holds the complete reduction of elements lo to hi."""

    member: int
    lo: int
    hi: int


Step = tuple[Transfer, ...]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """First the `reduce` steps; then each owner finishes its spans (what mean divides, it divides here, once); then
    the `gather` steps, which only copy."""

    members: int
    size: int
    reduce: tuple[Step, ...]
    owners: tuple[Owned, ...]
    gather: tuple[Step, ...]

    @property
    def host(self) -> int:
        """The number of the host, whether or not it takes part."""
        return self.members

    @property
    def has_host(self) -> bool:
        return any(self.host in (each.source, each.target) for step in self.steps for each in step)

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.reduce + self.gather

    def __str__(self) -> str:
        """One line for each step, e.g. `reduce 1: 0→1 [6, 8)  1→2 [0, 2)`; the host is called `host`."""

        def name(holder: int) -> str:
            return "host" if holder == self.host else str(holder)

        lines = [f"{self.members} members, {self.size} elements"]
        for phase, steps in (("reduce", self.reduce), ("gather", self.gather)):
            for number, step in enumerate(steps, start=1):
                said = (f"{name(each.source)}→{name(each.target)} [{each.lo}, {each.hi})" for each in step)
                lines.append(f"{phase} {number}: {'  '.join(said)}")
        return "\n".join(lines)

    def port_elements(self) -> int:
        """The elements that pass the busiest holder's port, step by step: what counts where every device hangs on
        a switch by one link that carries both directions at once."""
        return sum(_busiest(step, lambda each: (("out", each.source), ("in", each.target))) for step in self.steps)

    def link_elements(self) -> int:
        """The same for the busiest link: what counts where each pair of neighbours has a link of its own."""
        return sum(_busiest(step, lambda each: ((each.source, each.target),)) for step in self.steps)


def _busiest(step: Step, places: Callable[[Transfer], tuple[Hashable, ...]]) -> int:
    load: Counter[Hashable] = Counter()
    for each in step:
        for place in places(each):
            load[place] += each.hi - each.lo
    return max(load.values(), default=0)


def cut(lo: int, hi: int, parts: int) -> list[Span]:
    """Elements lo to hi in so many spans, whose lengths differ by at most one; the longer ones come first."""
    length, longer = divmod(hi - lo, parts)
    bounds = [lo + part * length + min(part, longer) for part in range(parts + 1)]
    return list(pairwise(bounds))


def step_of(transfers: Iterable[Transfer]) -> Step:
    """A step of those transfers that move anything."""
    return tuple(each for each in transfers if each.lo < each.hi and each.source != each.target)


def parts_of(members: int, size: int) -> tuple[Owned, ...]:
    """Everybody owns their own part: what reduce_scatter ends with and all_gather_parts begins with."""
    return tuple(Owned(member, lo, hi) for member, (lo, hi) in enumerate(cut(0, size, members)))


def hand_over(have: Sequence[Owned], want: Sequence[Owned]) -> Step:
    """One step in which every wanted span comes to its owner from whoever has it."""
    return step_of(
        Transfer(source.member, target.member, max(source.lo, target.lo), min(source.hi, target.hi), Action.COPY)
        for source in have
        for target in want
    )


def reduce_scatter(whole: Schedule) -> Schedule:
    """The first half of an all-reduce: everybody ends with the reduction of their own part."""
    step = hand_over(whole.owners, parts_of(whole.members, whole.size))
    return Schedule(whole.members, whole.size, whole.reduce, whole.owners, (step,) if step else ())


def all_gather(whole: Schedule) -> Schedule:
    """The second half: everybody begins with their own part and ends with all of it."""
    step = hand_over(parts_of(whole.members, whole.size), whole.owners)
    return Schedule(whole.members, whole.size, (), (), ((step,) if step else ()) + whole.gather)


def broadcast(whole: Schedule, root: int) -> Schedule:
    """The second half, begun by one member that has everything."""
    step = hand_over([Owned(root, 0, whole.size)], whole.owners)
    return Schedule(whole.members, whole.size, (), (), ((step,) if step else ()) + whole.gather)
