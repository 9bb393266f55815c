"""The book of one workload: which batches are to be given out, who holds which, and which are done.

A batch is *open* (to be given out), *held* (somebody works on it), *doubted* (whoever held it is gone: the servers are
asked whether it counts) or *done*. An epoch is over when all its batches are done, and the next one begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from windlass._wire.messages import Workload
from windlass.consistency import Counted
from windlass.types import Incarnation, KeyId

SLOW_FACTOR = 4.0
SLOW_SECONDS = 2.0
"""Whoever holds a batch for longer than this, and than SLOW_FACTOR times what batches take, is slow: when nothing else
is left, somebody else gets the batch, too."""

MAX_STRIKES = 3
"""How often a batch that was pushed is missing on some key before that is taken for what the script wants: it does not
push every batch to every key."""


@dataclass(slots=True)
class Step:
    """What all workers together take for one step, and who has had a share of it; who came when nothing was left has
    none."""

    pool: deque[int]
    batches: frozenset[int]
    served: set[Incarnation] = field(default_factory=set)
    idle: set[Incarnation] = field(default_factory=set)


class Book:
    def __init__(self, workload: Workload, counted: Counted, epoch: int = 0) -> None:
        """`counted` is what the servers have of it on the keys that they know of, and nobody may know of all: what is
        of the epoch that is under way is doubted. What is missing below the highest of it is likely to be under way
        now, so it is given out last."""
        self.workload = workload
        self.keys: set[KeyId] = set()
        self.has_word = False  # whether the keys are, or include, what a worker says that it pushes to
        self.may_copy = False  # whether two may do the same work
        self.epoch = epoch if workload.epoch_batches else workload.epochs
        self.done: set[int] = set()
        self.held: dict[int, dict[Incarnation, float]] = {}  # by batch: who has it, since when
        self.doubted: set[int] = set()
        self._open: deque[int] = deque()
        self._alone: set[int] = set()  # some shards count these: a push must not complete others with one of them
        self._steps: deque[Step] = deque()
        self._usual_seconds = 0.0
        self._strikes: dict[int, int] = {}  # how often a batch was done, as its worker says, and not counted
        if not self.is_over:
            self._begin_epoch(counted)

    @property
    def num_open(self) -> int:
        """Batches that could be given out now."""
        return len(self._open) + sum(len(step.pool) for step in self._steps)

    @property
    def is_over(self) -> bool:
        return self.epoch >= self.workload.epochs

    @property
    def is_epoch_done(self) -> bool:
        """Whether all batches of the epoch are done, as far as the workers' word goes."""
        return not (self._open or self.held or self.doubted or any(step.pool for step in self._steps))

    def _begin_epoch(self, counted: Counted) -> None:
        first = self.epoch * self.workload.epoch_batches
        batches = range(first, first + self.workload.epoch_batches)
        self.doubted = {batch for batch in batches if batch in counted}
        highest = max(self.doubted, default=first)
        left = [batch for batch in batches if batch not in self.doubted]
        self._open = deque(sorted(left, key=lambda batch: (batch < highest, batch)))
        self._steps.clear()

    def end_epoch(self) -> None:
        self.epoch += 1
        self.done.clear()
        self._alone.clear()
        self._strikes.clear()
        if not self.is_over:
            self._begin_epoch(Counted())

    # --- giving out ---------------------------------------------------------------------------------------------------

    def give(self, who: Incarnation, now: float, crew: Collection[Incarnation]) -> tuple[int, ...]:
        """What this worker does next; nothing, if there is nothing for it now."""
        if self.workload.step_batches:
            batches = self._share(who, crew)
        elif self._open:
            batches = (self._open.popleft(),)
        else:
            batches = self._copy_of_slow(who, now)
        for batch in batches:
            self.held.setdefault(batch, {})[who] = now
        return batches

    def _share(self, who: Incarnation, crew: Collection[Incarnation]) -> tuple[int, ...]:
        """Its part of the oldest step that it has had none of: as many as everybody's who is still to come. The next
        step begins with who is done with its part of the last one."""
        self._drop_finished_steps(crew)
        for step in self._steps:
            if step.pool and who not in step.served:
                return self._serve(step, who, crew)
        if self._steps:
            last = self._steps[-1]
            if who not in last.served:
                last.idle.add(who)
            if who in last.idle and any(batch in self.held for batch in last.batches):
                return ()
        if not self._open and not self.held:  # whoever was to have what is left does not come for it
            self._open.extend(batch for step in self._steps for batch in step.pool)
            self._steps.clear()
        if not self._open:
            return ()
        batches = [self._open.popleft() for _ in range(min(self.workload.step_batches, len(self._open)))]
        step = Step(deque(batches), frozenset(batches))
        self._steps.append(step)
        return self._serve(step, who, crew)

    def _serve(self, step: Step, who: Incarnation, crew: Collection[Incarnation]) -> tuple[int, ...]:
        to_come = max(1, sum(one not in step.served for one in crew))
        step.served.add(who)
        share: list[int] = []
        for _ in range(-(-len(step.pool) // to_come)):
            is_alone = step.pool[0] in self._alone
            if share and is_alone:
                break
            share.append(step.pool.popleft())
            if is_alone:
                break
        return tuple(share)

    def _drop_finished_steps(self, crew: Collection[Incarnation]) -> None:
        """Steps before the last one that everybody has had a share of. What is left of one, because somebody left, is
        given out next."""
        for step in [step for step in self._steps if step.served.issuperset(crew) or not step.pool]:
            self._open.extendleft(reversed(step.pool))
            step.pool.clear()
            if step is not self._steps[-1]:
                self._steps.remove(step)

    def _copy_of_slow(self, who: Incarnation, now: float) -> tuple[int, ...]:
        """A batch that somebody has held for too long: the first of the two to be counted counts."""
        if not self.may_copy:
            return ()
        limit = max(SLOW_SECONDS, SLOW_FACTOR * self._usual_seconds)
        for batch, holders in self.held.items():
            if who not in holders and len(holders) == 1 and now - next(iter(holders.values())) > limit:
                return (batch,)
        return ()

    # --- taking back --------------------------------------------------------------------------------------------------

    def finish(self, who: Incarnation, batches: Iterable[int], now: float) -> None:
        """A worker's pushes for these are acknowledged. Who did the same work is done, too, where nobody waits for its
        pushes."""
        for batch in batches:
            holders = self.held.get(batch, {})
            if who in holders:
                took = now - holders.pop(who)
                if self.may_copy or not holders:
                    del self.held[batch]
                self._usual_seconds = took if not self._usual_seconds else 0.8 * self._usual_seconds + 0.2 * took
            if self._is_of_epoch(batch):
                self.done.add(batch)
                self.doubted.discard(batch)
                self._withdraw(batch)

    def claim(self, who: Incarnation, batches: Iterable[int], now: float) -> None:
        """A worker holds these, and no others: it may have been given them by the scheduler before this one."""
        batches = set(batches)
        for batch in batches:
            if self._is_of_epoch(batch) and batch not in self.done:
                self.held.setdefault(batch, {}).setdefault(who, now)
                self._withdraw(batch)
        self._let_go(who, lambda batch: batch not in batches)

    def lose(self, who: Incarnation) -> None:
        """A worker is gone: whether what it held counts, the servers know."""
        self.doubted |= set(self._let_go(who, lambda batch: True, gives_back=False))

    def settle(self, batches: Iterable[int], counted: Collection[int]) -> None:
        """The servers have told which of these count; the others are given out again, first of all."""
        for batch in sorted(batches, reverse=True):
            self.doubted.discard(batch)
            if batch in self.done and batch not in counted:
                self._strikes[batch] = self._strikes.get(batch, 0) + 1
            self.done.discard(batch)
            if batch in counted or self._strikes.get(batch, 0) >= MAX_STRIKES:
                self.done.add(batch)
            elif batch not in self.held:
                self._open.appendleft(batch)
                self._alone.add(batch)

    def _let_go(self, who: Incarnation, which: Callable[[int], bool], *, gives_back: bool = True) -> list[int]:
        """Take batches from a worker; those that nobody else holds."""
        left = []
        for batch in [batch for batch, holders in self.held.items() if who in holders and which(batch)]:
            del self.held[batch][who]
            if not self.held[batch]:
                del self.held[batch]
                left.append(batch)
        if gives_back:
            self._open.extendleft(reversed(left))
        return left

    def _withdraw(self, batch: int) -> None:
        """Do not give it out, if that is still to come."""
        for pool in (self._open, *(step.pool for step in self._steps)):
            if batch in pool:
                pool.remove(batch)

    def _is_of_epoch(self, batch: int) -> bool:
        return batch // self.workload.epoch_batches == self.epoch
