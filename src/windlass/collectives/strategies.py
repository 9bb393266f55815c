"""The strategies: each makes the schedule of an all-reduce of `size` elements over so many members.

docs/collectives.md says what each costs and where it is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import chain, zip_longest
from typing import NamedTuple

from windlass.collectives.schedule import Action, Owned, Schedule, Span, Step, Transfer, cut, step_of
from windlass.errors import UsageError

REDUCE, COPY = Action.REDUCE, Action.COPY

Machines = Sequence[Sequence[int]]
"""The members of each machine."""


class Strategy(StrEnum):
    """`AUTO` is the backend's own choice; it has no schedule of its own."""

    AUTO = "auto"
    ROOT = "root"
    CPU = "cpu"
    SHARDED = "sharded"
    RING = "ring"
    BIDIRECTIONAL_RING = "bidirectional_ring"
    TREE = "tree"
    HIERARCHICAL = "hierarchical"


class _Halves(NamedTuple):
    reduce: list[Step]
    owners: list[Owned]
    gather: list[Step]


def check_strategy(name: object) -> Strategy:
    """The strategy of that name; UsageError lists them all."""
    try:
        return Strategy(name)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        known = ", ".join(f"'{each}'" for each in Strategy)
        raise UsageError(f"strategy expects one of {known}, got {name!r:.40}") from None


def plan(strategy: str, members: int, size: int, machines: Machines | None = None) -> Schedule:
    """The schedule of an all-reduce: who sends which of `size` elements to whom, in which step. `print` shows it.
    `machines` says who shares a machine, for `hierarchical`; by default the members are cut into as many machines as
    makes machines and members per machine nearly equal."""
    strategy, everyone = check_strategy(strategy), list(range(members))
    if strategy is Strategy.ROOT:
        halves = root(everyone, size)
    elif strategy is Strategy.CPU:
        halves = cpu(everyone, size)
    elif strategy is Strategy.SHARDED:
        halves = _sharded(everyone, cut(0, size, members))
    elif strategy is Strategy.RING:
        halves = _ring(everyone, cut(0, size, members))
    elif strategy is Strategy.BIDIRECTIONAL_RING:
        halves = _bidirectional(everyone, size)
    elif strategy is Strategy.TREE:
        halves = _tree(everyone, size)
    elif strategy is Strategy.HIERARCHICAL:
        halves = _hierarchical(check_machines(machines, members), size)
    else:
        raise UsageError("'auto' is each backend's own choice and has no schedule; name a strategy")
    return Schedule(
        members,
        size,
        reduce=tuple(step for step in halves.reduce if step),
        owners=tuple(owned for owned in halves.owners if owned.lo < owned.hi),
        gather=tuple(step for step in halves.gather if step),
    )


def check_machines(machines: Machines | None, members: int) -> list[list[int]]:
    """The machines as given, or guessed. UsageError unless each member is on exactly one."""
    if machines is None:
        count = next(each for each in range(int(members**0.5), 0, -1) if members % each == 0)
        return [list(range(lo, hi)) for lo, hi in cut(0, members, count)]
    found = [list(machine) for machine in machines]
    if sorted(chain.from_iterable(found)) != list(range(members)) or not all(found):
        raise UsageError(f"machines expects every rank below {members} on exactly one machine, got {found!r:.100}")
    return found


def root(members: list[int], size: int, at: int = 0) -> _Halves:
    """Everybody sends all to one member, which reduces, and sends all back. Rank order, if it is the first."""
    others = [member for member in members if member != at]
    reduce = step_of(Transfer(member, at, 0, size, REDUCE) for member in others)
    gather = step_of(Transfer(at, member, 0, size, COPY) for member in others)
    return _Halves([reduce], [Owned(at, 0, size)], [gather])


def cpu(members: list[int], size: int) -> _Halves:
    """The same, to the host."""
    host = len(members)
    first, *others = members
    reduce = [Transfer(first, host, 0, size, COPY), *(Transfer(member, host, 0, size, REDUCE) for member in others)]
    gather = (Transfer(host, member, 0, size, COPY) for member in members)
    return _Halves([step_of(reduce)], [Owned(host, 0, size)], [step_of(gather)])


def _sharded(members: list[int], spans: Sequence[Span]) -> _Halves:
    """Each span is reduced on its own member: all ports are busy at once."""
    owners = [Owned(member, *span) for member, span in zip(members, spans, strict=False)]
    reduce = [
        Transfer(source, owner, lo, hi, REDUCE) for owner, lo, hi in owners for source in members if source != owner
    ]
    gather = [
        Transfer(owner, target, lo, hi, COPY) for owner, lo, hi in owners for target in members if target != owner
    ]
    return _Halves([step_of(reduce)], owners, [step_of(gather)])


def _ring(members: list[int], spans: Sequence[Span]) -> _Halves:
    # Span k travels once round the ring, from the member after its owner to its owner, and grows by each one's share;
    # then once more, complete, from its owner to all others. Every member sends one span and gets one in each step.
    count = len(members)

    def around(step: int, action: Action, ahead: int) -> Step:
        return step_of(
            Transfer(member, members[(place + 1) % count], *spans[(place + ahead - step) % count], action)
            for place, member in enumerate(members)
        )

    reduce = [around(step, REDUCE, -1) for step in range(count - 1)]
    gather = [around(step, COPY, 0) for step in range(count - 1)]
    return _Halves(reduce, [Owned(member, *span) for member, span in zip(members, spans, strict=True)], gather)


def _bidirectional(members: list[int], size: int) -> _Halves:
    """Two rings at once: half of every member's span travels each way, so that both directions of each link work."""
    halves = [cut(lo, hi, 2) for lo, hi in cut(0, size, len(members))]
    there = _ring(members, [half[0] for half in halves])
    back = _ring(members[::-1], [half[1] for half in halves][::-1])
    return _Halves(
        [one + other for one, other in zip(there.reduce, back.reduce, strict=True)],
        there.owners + back.owners,
        [one + other for one, other in zip(there.gather, back.gather, strict=True)],
    )


def _tree(members: list[int], size: int) -> _Halves:
    """Pairs, then pairs of pairs: the fewest steps, each with everything."""
    count = len(members)
    reduce, gather = [], []
    distance = 1
    while distance < count:
        pairs = [(members[i], members[i + distance]) for i in range(0, count - distance, 2 * distance)]
        reduce.append(step_of(Transfer(far, near, 0, size, REDUCE) for near, far in pairs))
        gather.append(step_of(Transfer(near, far, 0, size, COPY) for near, far in pairs))
        distance *= 2
    return _Halves(reduce, [Owned(members[0], 0, size)], gather[::-1])


def _hierarchical(machines: list[list[int]], size: int) -> _Halves:
    # A *lane* is one member of each machine. Every machine first reduces its members' tensors, one span on each lane's
    # member; then each lane's members reduce their span across machines, in a ring; then all goes back the same way.
    # Between machines travels what one member would send, whatever the number of members on a machine. Machines of
    # unequal size have as many lanes as the smallest has members.
    lanes = min(len(machine) for machine in machines)
    spans = cut(0, size, lanes)
    local = [_sharded(machine, spans) for machine in machines]
    across = [
        _ring([machine[lane] for machine in machines], cut(*spans[lane], len(machines))) for lane in range(lanes)
    ]

    def together(steps: list[list[Step]]) -> list[Step]:
        return [tuple(chain.from_iterable(each)) for each in zip_longest(*steps, fillvalue=())]

    reduce = together([one.reduce for one in local]) + together([lane.reduce for lane in across])
    gather = together([lane.gather for lane in across]) + together([one.gather for one in local])
    return _Halves(reduce, [owned for lane in across for owned in lane.owners], gather)
