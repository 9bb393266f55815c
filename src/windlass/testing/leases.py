"""Leased work in an explored run: what a worker of it does, and what must be true at the end.

A batch of work is a bit: its push adds 1 to that element of every slot of every key, whoever makes it. When all is
done, every element of every key is 1: no batch was counted twice anywhere, and none was missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from windlass._wire import messages as m
from windlass.testing.calls import Calls
from windlass.testing.history import KeyShape
from windlass.testing.program import Condition, Program
from windlass.types import MANAGER, NO_GENERATION, Array, Bounded, Generation, Lease, Sequential
from windlass.worker.ops import KeyInfo

if TYPE_CHECKING:
    from windlass.testing.world import World

Keys = list[Calls]


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
                yield from self._level(keys, Generation(granted.term, granted.number))
                is_outside = False
                continue
            if not granted.batches:
                self.holdings[workload.name] = m.Holding(workload=workload, held=tuple(given), is_outside=True)
                yield from self._rest([] if is_outside else keys)
                is_outside = True
                continue
            self.holdings[workload.name] = m.Holding(workload=workload, held=(*given, *granted.batches))
            for share in [granted.batches] if workload.step_batches else [(batch,) for batch in granted.batches]:
                calls = [self._push_leased(key, Lease(workload.name, share)) for key in keys]
                given |= dict.fromkeys(share, calls)
                yield from self._maybe(lambda calls=calls: all(call() for call in calls))  # type: ignore[misc]
        yield from self._level(keys, Generation(granted.term, granted.number))
        self.holdings.pop(workload.name, None)
        yield lambda: self.under_way == 0
        self._check()

    def _take(
        self, workload: m.Workload, done: tuple[int, ...], held: tuple[int, ...], keys: Keys, is_outside: bool
    ) -> Callable[[int], m.AnyMessage]:
        ids = tuple(calls.key.id for calls in keys) if self.has_pushed else ()
        kept = {type(calls.shape.consistency) for calls in keys}
        waits = m.Waits.ROUNDS if Sequential in kept else m.Waits.SLOWER if Bounded in kept else m.Waits.NOBODY
        return lambda n: m.Take(
            request=n, workload=workload, done=done, held=held, keys=ids, is_outside=is_outside, waits=waits
        )

    has_pushed = False

    def _detach(self, key: KeyInfo, shard: int) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Detach(request=n, key=key.id, shard=shard)

    def _rest(self, keys: Keys) -> Iterator[Condition]:
        for key in (calls.key for calls in keys):
            yield self._settled(key)
            self._check()
            for shard in reversed(range(len(key.chains))):
                yield from self._ask((key, shard), self._detach(key, shard))

    def _settled(self, key: KeyInfo) -> Condition:
        return lambda: self.error is not None or not self.is_pushing(key)

    def _level(self, keys: Keys, since: Generation = NO_GENERATION) -> Iterator[Condition]:
        """Some have pushed more often than others, and may still wait for them."""
        for key in (calls.key for calls in keys):
            yield self._settled(key)
            self._check()
            attached = yield from self._ask((key, 0), self._attach(key, 0, -2, since))
            key.clock = key.since = int(attached.detail)
            for shard in range(len(key.chains)):
                yield from self._ask((key, shard), self._attach(key, shard, key.since))

    def _push_leased(self, calls: Calls, lease: Lease) -> Condition:
        self.has_pushed = True
        whole = calls.whole()
        pushing = calls.push(lease.numbers, whole, self.rng)
        op, op.completes = pushing.op, lease
        may_ride = calls.shape.table is None or calls.book is None
        if not may_ride or self.rng.random() < 0.5:
            return self._start(op, lambda: self._free(pushing.owned))
        pulling = calls.pull(whole, riding=pushing)

        def look() -> None:
            self._look(calls.shape, pulling.value(), lease)
            self._free(pushing.owned)

        return self._start(op, look)

    def _look(self, shape: KeyShape, seen: Array, lease: Lease) -> None:
        """Nothing is ever seen twice, and what one has pushed oneself is there, whoever's push it was that counted. (Of
        several batches in one push, another's push may have counted some, and the rest is given out again.)"""
        for batch in range(shape.slot_size):
            counts = set(seen[batch :: shape.slot_size].tolist())
            if not counts <= {0, 1} or (lease.numbers == (batch,) and counts != {1}):
                self.wrong = self.wrong or f"'{shape.name}': batch {batch} was seen {sorted(counts)} times"


def lease_problems(world: World, values: dict[str, Any]) -> list[str]:
    """What is wrong with the accounts of leased work; nothing, if all is well."""
    at_work = [(one.log, one.program) for one in world.workers.values() if isinstance(one.program, LeaseProgram)]
    wrong = [f"leases: {log.name}: {program.wrong}" for log, program in at_work if program.wrong]
    if all(log.departed is not None for log, _ in at_work):
        return wrong  # nobody was left to do it; who reads or saves does none
    for shape in world.plan.keys:
        value = values.get(shape.name)
        if value is not None and not (value == 1).all():
            at = int(np.flatnonzero(value != 1)[0])
            where = f"batch {at % shape.slot_size} on slot {at // shape.slot_size}"
            wrong.append(f"leases: '{shape.name}': {where} counted {value[at]} times")
    return wrong
