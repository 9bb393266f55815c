"""Taking a snapshot of keys that are being pushed to: which round is announced, what is asked again, what begins anew.

The saver asks how far the keys are, *announces* a round, and has every shard of every sequential key frozen after that
one. Keys that are pushed together get the same round: the highest that any of them has closed, which the others reach
in a moment. Where a shard has gone past it before it heard, all begin anew with a round further ahead. A key that does
not come to it, because nobody pushes it any more, is taken as it is; those that belong *together* only if all of them
have come equally far: in the middle of a long step some are a round ahead. Bounded and eventual keys have no rounds:
each of their shards is frozen when its turn comes.

Steps are generators, so that whoever drives them owns links and clock: they yield what is to be asked (or that a moment
should pass) and are sent the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from windlass._wire import messages as m
from windlass.checkpoint import SavedSlot
from windlass.store.parts import join_arrays
from windlass.types import Array, Bytes, KeyId
from windlass.worker.ops import KeyInfo

NEAR_ROUNDS = 2
"""Keys whose counts of rounds differ by no more are taken to be pushed together."""

MAX_POLLS = 100
POLL_SECONDS = 0.02
"""A key that makes no progress for so many polls is not being pushed: two seconds."""


_TORN = (
    "; other parts of the same model have: a step is under way, or a run has ended in the middle of one. Then run "
    "again, or load a checkpoint"
)


class Melted(Exception):
    """What was frozen, or was to be, is so no more: begin anew."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question to the head of a shard."""

    to: tuple[KeyInfo, int]
    make: Callable[[int], m.AnyMessage]
    what: str


Result = TypeVar("Result")
Answers = Sequence[tuple[Any, tuple[Bytes, ...]]]
Steps = Generator[list[Ask], Answers, Result]
"""An empty list asks nothing: let POLL_SECONDS pass."""


@dataclass(slots=True)
class Announcer:
    """Chooses the round after which each key is frozen; learns from attempts that failed."""

    margin: int = 0
    quiet: set[KeyId | str] = field(default_factory=set)  # keys, or together, that did not come to the announced round

    def announce(self, counts: Mapping[KeyInfo, int]) -> dict[KeyInfo, int]:
        """For each key, the number of rounds it should have taken. Within a group of keys that are near each other, or
        belong together, it is the same for all."""
        goals: dict[KeyInfo, int] = {}
        before = goal = 0
        for key in sorted(counts, key=lambda key: -counts[key]):
            count = counts[key]
            if _group(key) in self.quiet:
                goals[key] = count
                continue
            if not goal or before - count > NEAR_ROUNDS:
                goal = count + self.margin
            before, goals[key] = count, goal
        highest: dict[KeyId | str, int] = {}
        for key, goal in goals.items():
            highest[_group(key)] = max(goal, highest.get(_group(key), 0))
        return {key: highest[_group(key)] for key in goals}

    def missed(self, key: KeyInfo) -> Melted:
        """The key went past its round before it was frozen everywhere."""
        if _group(key) in self.quiet:
            self.quiet.discard(_group(key))
        else:
            self.margin = max(1, 2 * self.margin)
        return Melted(f"'{key.spec.name}' had gone past the announced round")

    def stayed_behind(self, keys: Iterable[KeyInfo], counts: Mapping[KeyInfo, int]) -> Melted:
        """These keys have made no progress for long; `counts` is how far each key has come."""
        far: dict[KeyId | str, set[int]] = {}
        for key, reached in counts.items():
            far.setdefault(_group(key), set()).add(reached)
        names = ", ".join(f"'{key.spec.name}'" for key in keys)
        even = {group for group, counts in far.items() if len(counts) == 1}
        self.quiet.update(_group(key) for key in keys if _group(key) in even)
        torn = "" if all(_group(key) in even for key in keys) else _TORN
        return Melted(f"{names} did not come to the announced round{torn}")


def _group(key: KeyInfo) -> KeyId | str:
    return key.spec.together or key.id


@dataclass(slots=True)
class Snapshot:
    """One attempt, with a number that its saver has not used before."""

    number: int
    announcer: Announcer
    max_polls: int = MAX_POLLS

    # --- sequential keys ----------------------------------------------------------------------------------------------

    def look(self, key_shards: Sequence[tuple[KeyInfo, int]]) -> Steps[dict[tuple[KeyInfo, int], int]]:
        """How many updates these shards have taken; those that have no first value yet are left out."""
        if not key_shards:
            return {}
        answers = yield [self._freeze(key, shard, None) for key, shard in key_shards]
        told = zip(key_shards, (answer for answer, _ in answers), strict=True)
        return {which: answer.count for which, answer in told if answer.frost is not m.Frost.EMPTY}

    def freeze(self, keys: Sequence[KeyInfo]) -> Steps[dict[KeyInfo, int]]:
        """Freeze sequential keys, each after one round on all of its shards; gives the rounds. Keys without a first
        value are left out."""
        found = yield from self.look([(key, 0) for key in keys])
        goals = self.announcer.announce({key: count for (key, _), count in found.items()})
        waiting = [(key, shard) for key in goals for shard in key.whole]
        seen: dict[tuple[KeyInfo, int], tuple[int, int]] = {}  # what each said last, and for how many polls
        while waiting:
            answers = yield [self._freeze(key, shard, goals[key]) for key, shard in waiting]
            behind = []
            for which, (answer, _) in zip(waiting, answers, strict=True):
                if answer.frost is m.Frost.AHEAD:
                    behind.append(which)
                    count, polls = seen.get(which, (-1, 0))
                    seen[which] = (answer.count, polls + 1 if count == answer.count else 0)
                elif answer.frost is not m.Frost.FROZEN or answer.count != goals[which[0]]:
                    raise self.announcer.missed(which[0])
            tired = {key for key, shard in behind if seen[key, shard][1] >= self.max_polls}
            if tired:
                counts = {key: min(seen[one][0] for one in behind if one[0] is key) for key, _ in behind}
                raise self.announcer.stayed_behind(tired, goals | counts)
            waiting = behind
            if waiting:
                yield []
        return goals

    # --- bounded and eventual keys ------------------------------------------------------------------------------------

    def freeze_shard(self, key: KeyInfo, shard: int) -> Steps[None]:
        """Freeze one shard as it is: with all that has been acknowledged."""
        while True:
            [(answer, _)] = yield [self._freeze(key, shard, 0)]
            if answer.frost is m.Frost.FROZEN:
                return
            if answer.frost is m.Frost.EMPTY:
                raise Melted(f"'{key.spec.name}' has no first value")
            yield []

    def _freeze(self, key: KeyInfo, shard: int, round: int | None) -> Ask:
        def make(request: int) -> m.Freeze:
            return m.Freeze(request=request, key=key.id, shard=shard, snapshot=self.number, round=round)

        return Ask((key, shard), make, f"a snapshot of '{key.spec.name}'")

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, key: KeyInfo, slots: Sequence[int]) -> Steps[list[SavedSlot]]:
        """What these frozen slots are made of: first one array of each, which tells how many it has, then the rest."""
        saved = [SavedSlot({}, {}) for _ in slots]
        parts: list[list[tuple[str, Array]]] = [[] for _ in slots]
        wanted = [(index, 0) for index in range(len(slots))]
        while wanted:
            answers = yield [self._dump(key, slots[index], part) for index, part in wanted]
            more: list[tuple[int, int]] = []
            for (index, part), (dumped, data) in zip(wanted, answers, strict=True):
                names = dumped.names
                if not names:
                    text = f"slot {slots[index]} of '{key.spec.name}' is kept no more: its server is new, or the link"
                    raise Melted(text)
                saved[index].meta = dumped.meta
                parts[index].append((names[part], data[0].view(dumped.dtypes[part])))
                more += [(index, other) for other in range(1, len(names))] if part == 0 else []
            wanted = more
        for slot, some in zip(saved, parts, strict=True):
            slot.arrays = join_arrays(some)
        return saved

    def _dump(self, key: KeyInfo, slot: int, part: int) -> Ask:
        def make(request: int) -> m.Dump:
            return m.Dump(request=request, key=key.id, slot=slot, part=part, snapshot=self.number)

        return Ask((key, key.shard_of(slot)), make, f"slot {slot} of '{key.spec.name}', to be saved,")
