"""Leased work as a worker sees it: an iterator of batches, each of which is somebody's once, and counted once.

A worker asks the scheduler for batches, and tells it at the same time which ones are done: those whose pushes are
acknowledged. When there is nothing to do for it at the moment, because others still work on the last batches of an
epoch, it *rests* on the keys that the work is pushed to, so that no round waits for it, and takes its place again when
there is.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from windlass._wire import messages as m
from windlass.errors import UsageError
from windlass.types import MANAGER, RESERVED, Array, Bounded, Generation, Lease, Sequential
from windlass.worker.task import Task

if TYPE_CHECKING:
    from windlass.worker.store import Store

Indices = npt.NDArray[np.int64]
OF_RUN = re.compile(r"run-\d+/batches-\d+$")
"""What work is called that has no name of its own: it is of one run."""


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """Some samples of a data set, leased to this worker. `X[batch.indices]` are they.

    `weight` is the batch's part of a whole step: the gradient of its mean loss, times this, summed over all batches of
    the step, is the gradient of the step's mean loss. Without `global_batch` it is 1. `is_last` tells that it is this
    worker's last one of the step: then push.
    """

    workload: str
    epoch: int
    number: int
    indices: Indices
    weight: float = 1.0
    is_last: bool = True
    share: tuple[int, ...] = ()  # the batches of this step that are this worker's
    tasks: list[Task] = field(default_factory=list)
    global_batch: int = 0  # the samples of a whole step, where that was asked for

    def __len__(self) -> int:
        return len(self.indices)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.indices if dtype is None else self.indices.astype(dtype)

    def __repr__(self) -> str:
        return f"<Batch {self.number} of '{self.workload}' | epoch {self.epoch}, {len(self)} samples>"


def workload_name(name: object, run: int, number: int) -> str:
    """What the work is called that somebody begins, as the `number`th of a run, and names so, or does not (None)."""
    if name is None:
        return f"run-{run}/batches-{number}"
    if not isinstance(name, str) or not name or OF_RUN.match(name):
        raise UsageError(f"name expects a name for the work, and none like 'run-1/batches-0', got {name!r:.60}")
    return name


def lease_of(completes: Batch | Sequence[Batch] | None) -> Lease | None:
    """What a push completes, as it travels."""
    if completes is None:
        return None
    batches = list(completes) if isinstance(completes, Sequence) else [completes]
    for batch in batches:
        if not isinstance(batch, Batch):
            raise UsageError(f"completes expects a batch of store.batches(), or several, got {type(batch).__name__}")
        if batch.workload != batches[0].workload:
            both = f"'{batches[0].workload}' and '{batch.workload}'"
            raise UsageError(f"completes expects batches of one workload, got {both}")
    if not batches:
        return None
    if not batches[-1].is_last:
        raise UsageError(f"{batches[-1]!r} is not the last of its step: push once, when batch.is_last")
    numbers = dict.fromkeys(number for batch in batches for number in batch.share)
    return Lease(batches[0].workload, tuple(numbers))


def check_begun(store: Store, completes: Batch | Sequence[Batch]) -> None:
    """Raise UsageError unless these are the batches that the next step of an optimizer completes."""
    given = [completes] if isinstance(completes, Batch) else list(completes)
    begun = store.begun_batches
    if {id(batch) for batch in given} - {id(batch) for batch in begun} or (given and not begun):
        expected = ", ".join(map(repr, begun)) or "none: a step was made since"
        raise UsageError(f"step(completes=): expected batches that were begun since the last step ({expected})")


class Batches:
    """Iterates over this worker's part of the work, until all of it is done by everybody. One thread uses it."""

    def __init__(self, store: Store, workload: m.Workload, *, shuffle: bool, seed: int) -> None:
        self._store, self._workload = store, workload
        self._shuffle, self._seed = shuffle, seed
        self._share: deque[Batch] = deque()  # given to us and not begun
        self._given: dict[int, Batch] = {}  # and not known to be done
        self._order: tuple[int, Indices] = (-1, np.empty(0, np.int64))
        self._is_outside = self._is_entering = False
        self._resting: set[str] = set()
        self.is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if not self._share and not self.is_over:
            self._take()
        if not self._share:
            raise StopIteration
        batch = self._share.popleft()
        begun = self._store.begun_batches
        begun[:] = [one for one in begun if not one.tasks and one.epoch == batch.epoch]
        begun.append(batch)
        return batch

    def close(self) -> None:
        """Give back what was not done. Safe to repeat; the end of the iteration does it, too."""
        if not self.is_over and self._store.is_usable:
            self.is_over = True
            self._share.clear()
            self._rest(self._ask(is_leaving=True))  # until we push again: the others go on
            self._note_holdings()

    def _take(self) -> None:
        granted = self._ask()
        while not granted.batches and not granted.is_over:
            if granted.may_enter:
                self._enter(granted)
            else:
                self._rest(granted)
            granted = self._ask()
        if granted.is_over:
            self.is_over = True
            self._end(granted)
            return
        self._is_outside = self._is_entering = False
        last = len(granted.batches) - 1
        for at, number in enumerate(granted.batches):
            batch = self._batch(number, granted.batches, is_last=at == last)
            self._given[number] = batch
            self._share.append(batch)
        self._note_holdings()

    def _note_holdings(self) -> None:
        """Have the client say what we hold, whenever there is a new scheduler."""
        holdings = self._store._client.state.holdings
        if self.is_over:
            holdings.pop(self._workload.name, None)
        else:
            held, waits = tuple(self._given), self._waits()
            holdings[self._workload.name] = m.Holding(
                workload=self._workload, held=held, is_outside=self._is_outside, waits=waits,
                is_entering=self._is_entering,
            )  # fmt: skip

    def _ask(self, *, is_leaving: bool = False) -> m.Granted:
        done = [number for number, batch in self._given.items() if all(task.is_done for task in batch.tasks)]
        failed = {number for number in done if any(task.error for task in self._given[number].tasks)}
        for number in done:
            del self._given[number]
        take = partial(
            m.Take,
            workload=self._workload,
            done=tuple(number for number in done if number not in failed),
            held=() if is_leaving else tuple(self._given),
            keys=tuple(entry.key.id for entry in self._entries()),
            is_outside=self._is_outside,
            is_leaving=is_leaving,
            waits=self._waits(),
        )
        what = f"batches('{self._workload.name}')"
        granted: m.Granted = self._store._client.request(MANAGER, lambda n: take(request=n), what)[0]
        return granted

    def _waits(self) -> m.Waits:
        """Whom this workload's pushes wait for."""
        kept = [entry.key.spec.consistency for entry in self._entries()] or [self._store.options.consistency]
        if any(isinstance(one, Sequential) for one in kept):
            return m.Waits.ROUNDS
        return m.Waits.SLOWER if any(isinstance(one, Bounded) for one in kept) else m.Waits.NOBODY

    def _entries(self) -> list[Any]:
        """The keys that this workload's pushes of this worker went to."""
        names = self._store._leased.keys.get(self._workload.name, set())
        return [self._store._entries[name] for name in sorted(names) if name in self._store._entries]

    def _batch(self, number: int, share: tuple[int, ...], *, is_last: bool) -> Batch:
        workload = self._workload
        epoch, place = divmod(number, workload.epoch_batches)
        indices = self._order_of(epoch)[place * workload.batch_size : (place + 1) * workload.batch_size]
        together = workload.step_batches * workload.batch_size
        weight = len(indices) / together if together else 1.0
        mine = share if together else (number,)
        return Batch(workload.name, epoch, number, indices, weight, is_last, mine, global_batch=together)

    def _order_of(self, epoch: int) -> Indices:
        if self._order[0] != epoch:
            order = np.arange(self._workload.size)
            if self._shuffle:
                np.random.default_rng([self._seed, epoch]).shuffle(order)
            self._order = (epoch, order)
        return self._order[1]

    # --- having nothing to do -----------------------------------------------------------------------------------------

    def _rest(self, granted: m.Granted) -> None:
        """Let nobody wait for us: on the keys of our own pushes, and on those of others' that we use, too."""
        self._store._leased.look()
        self._is_outside, self._is_entering = True, False
        self._note_holdings()
        for name, entry in self._concerned(granted):
            if self._waits() is m.Waits.NOBODY:
                self._store._client.settle(entry.key)  # what is done can be told
            elif name not in self._resting:
                with suppress(UsageError):  # somebody has deleted it
                    self._store._rest(entry)
                    self._resting.add(name)

    def _enter(self, granted: m.Granted) -> None:
        """Nobody pushes at the moment: begin on all keys at the same step. Level with the others: who had to catch up
        on a bounded key could not, where a sequential one lets nobody get ahead."""
        self._is_outside, self._is_entering = False, True
        self._note_holdings()
        for name, entry in self._concerned(granted):
            if name in self._resting:
                self._level(entry, granted)
        self._resting.clear()
        self._store._leased.refresh()

    def _end(self, granted: m.Granted) -> None:
        """All is done, or we leave. Some have pushed more often than others: from here on all are level."""
        self._resting.clear()
        self._store._leased.look()
        for _, entry in self._concerned(granted):
            self._level(entry, granted)
        self._note_holdings()
        self._store._leased.refresh()

    def _level(self, entry: Any, granted: m.Granted) -> None:
        with suppress(UsageError):  # somebody has deleted it
            self._store._level(entry, Generation(granted.term, granted.number))

    def _concerned(self, granted: m.Granted) -> list[tuple[str, Any]]:
        """The keys that the work is pushed to. Who has pushed none of it yet cannot know them all: any of its keys may
        be one."""
        mine = {entry.key.id for entry in self._entries()}
        ids = {*granted.keys, *mine}
        found = [
            (name, entry) for name, entry in self._store._entries.items()
            if entry.key.id in ids or (not mine and not name.startswith(RESERVED))
        ]  # fmt: skip
        return sorted(found, key=lambda one: one[1].key.id)  # all in the same order, so that none waits in a circle


class Refresher(Protocol):
    """Somebody who keeps values of the store, an optimizer, say."""

    def look(self) -> None:
        """Begin to use the keys that others have made for it."""

    def refresh(self) -> None: ...


@dataclass(slots=True)
class Leased:
    """What a store knows of leased work: batches that were begun and not yet pushed, and where pushes went."""

    begun: list[Batch] = field(default_factory=list)
    keys: dict[str, set[str]] = field(default_factory=dict)  # by workload
    workloads: list[Batches] = field(default_factory=list)
    run: int = 1  # workloads of different runs are different work
    refreshers: weakref.WeakSet[Refresher] = field(default_factory=weakref.WeakSet)

    def look(self) -> None:
        """Others may have made keys that this worker does not know, because it has pushed nothing yet: on those, too,
        it is waited for."""
        for refresher in list(self.refreshers):
            refresher.look()

    def refresh(self) -> None:
        """Rounds have gone on while this worker had no part in them."""
        for refresher in list(self.refreshers):
            refresher.refresh()

    def note(self, completes: Batch | Sequence[Batch], task: Task, names: Sequence[str]) -> None:
        """A push was made that completes these."""
        for batch in [completes] if isinstance(completes, Batch) else list(completes):
            batch.tasks.append(task)
            self.keys.setdefault(batch.workload, set()).update(names)

    def close(self) -> None:
        """A run is over: give back what was not done."""
        workloads, self.workloads = self.workloads, []
        self.begun.clear()
        self.keys.clear()
        for workload in workloads:
            workload.close()
