"""Leased work in an explored run: what a worker of it does, and what must be true at the end.

A batch of work is a bit: its push adds 1 to that element of every slot of every key, whoever makes it. When all is
done, every element of every key is 1: no batch was counted twice anywhere, and none was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from windlass._wire import messages as m
from windlass.testing.history import KeyShape
from windlass.testing.program import Condition, Program
from windlass.types import MANAGER, Array, Bounded, Lease, Sequential
from windlass.worker.entry import Entry
from windlass.worker.landing import Landing
from windlass.worker.ops import Op
from windlass.worker.split import split

if TYPE_CHECKING:
    from windlass.testing.world import World

Keys = list[tuple[KeyShape, Entry]]


class LeaseProgram(Program):
    """As the iterator that store.batches() gives, step by step; it pushes what it is given, in one push or several."""

    wrong: str = ""

    def _play(self, keys: Keys) -> Iterator[Condition]:
        workload = self.plan.leased
        assert workload is not None
        given: dict[int, list[Condition]] = {}
        is_outside = False
        while True:
            done = tuple(batch for batch, calls in given.items() if all(call() for call in calls))
            for batch in done:
                del given[batch]
            granted = yield from self._ask(MANAGER, self._take(workload, done, tuple(given), keys, is_outside))
            if granted.is_over:
                break
            if granted.may_enter:
                held = tuple(given)
                self.holdings[workload.name] = m.Holding(workload=workload, held=held, is_entering=True)
                yield from self._level(keys)
                is_outside = False
                continue
            if not granted.batches:
                self.holdings[workload.name] = m.Holding(workload=workload, held=tuple(given), is_outside=True)
                yield from self._rest([] if is_outside else keys)
                is_outside = True
                continue
            self.holdings[workload.name] = m.Holding(workload=workload, held=(*given, *granted.batches))
            for share in [granted.batches] if workload.step_batches else [(batch,) for batch in granted.batches]:
                calls = [self._push_leased(shape, entry, Lease(workload.name, share)) for shape, entry in keys]
                given |= dict.fromkeys(share, calls)
                yield from self._maybe(lambda calls=calls: all(call() for call in calls))  # type: ignore[misc]
        yield from self._level(keys)
        self.holdings.pop(workload.name, None)
        yield lambda: self.under_way == 0
        self._check()

    def _take(
        self, workload: m.Workload, done: tuple[int, ...], held: tuple[int, ...], keys: Keys, is_outside: bool
    ) -> Callable[[int], m.AnyMessage]:
        ids = tuple(entry.key.id for _, entry in keys) if self.has_pushed else ()
        kept = {type(shape.consistency) for shape, _ in keys}
        waits = m.Waits.ROUNDS if Sequential in kept else m.Waits.SLOWER if Bounded in kept else m.Waits.NOBODY
        return lambda n: m.Take(
            request=n, workload=workload, done=done, held=held, keys=ids, is_outside=is_outside, waits=waits
        )

    has_pushed = False

    def _detach(self, entry: Entry, shard: int) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Detach(request=n, key=entry.key.id, shard=shard)

    def _rest(self, keys: Keys) -> Iterator[Condition]:
        for _, entry in keys:
            yield self._settled(entry)
            self._check()
            for shard in reversed(range(len(entry.key.chains))):
                yield from self._ask((entry.key, shard), self._detach(entry, shard))

    def _settled(self, entry: Entry) -> Condition:
        return lambda: self.error is not None or not self.is_pushing(entry.key)

    def _level(self, keys: Keys) -> Iterator[Condition]:
        """Some have pushed more often than others, and may still wait for them."""
        for _, entry in keys:
            yield self._settled(entry)
            self._check()
            attached = yield from self._ask((entry.key, 0), self._attach(entry.key, 0, -2))
            entry.key.clock = entry.key.since = int(attached.detail)
            for shard in range(len(entry.key.chains)):
                yield from self._ask((entry.key, shard), self._attach(entry.key, shard, entry.key.since))

    def _push_leased(self, shape: KeyShape, entry: Entry, lease: Lease) -> Condition:
        self.has_pushed = True
        value = np.zeros(shape.size, np.int64)
        for batch in lease.numbers:
            value += shape.mark(batch)
        parts, owned = entry.parts(value, 0, split(entry.key, 0, shape.size), may_borrow=False)

        def free() -> None:
            for block in owned:
                self.memory.free(block)

        op = Op(entry.key, parts, None, None, self._finish(free), completes=lease)
        if self.rng.random() < 0.5:
            seen: Array = np.full(shape.size, -1, np.int64)
            landing = Landing(entry, (0, shape.size), is_range=True, out=seen)
            op.pull, op.deliver = split(entry.key, 0, shape.size), landing.deliver

            def look() -> None:
                self._look(shape, seen, lease)
                free()

            op.finish = self._finish(look)
        return self._start(op)

    def _look(self, shape: KeyShape, seen: Array, lease: Lease) -> None:
        """Nothing is ever seen twice, and what one has pushed oneself is there, whoever's push it was that counted. (Of
        several batches in one push, another's push may have counted some, and the rest is given out again.)"""
        for batch in range(shape.slot_size):
            counts = set(seen[batch :: shape.slot_size].tolist())
            if not counts <= {0, 1} or (lease.numbers == (batch,) and counts != {1}):
                self.wrong = self.wrong or f"'{shape.name}': batch {batch} was seen {sorted(counts)} times"


def lease_problems(world: World, values: dict[str, Any]) -> list[str]:
    """What is wrong with the accounts of leased work; nothing, if all is well."""
    wrong = [f"leases: {worker.log.name}: {worker.program.wrong}" for worker in world.workers.values()
             if isinstance(worker.program, LeaseProgram) and worker.program.wrong]  # fmt: skip
    if all(worker.log.departed is not None for worker in world.workers.values()):
        return wrong  # nobody was left to do it
    for shape in world.plan.keys:
        value = values.get(shape.name)
        if value is not None and not (value == 1).all():
            at = int(np.flatnonzero(value != 1)[0])
            where = f"batch {at % shape.slot_size} on slot {at // shape.slot_size}"
            wrong.append(f"leases: '{shape.name}': {where} counted {value[at]} times")
    return wrong
