"""What a worker does in an explored run: declares its keys, then pushes and pulls at random, and writes its log.

A program is a generator. It yields a condition when it must wait, as the caller of a blocking call would; the explorer
goes on with it some time after the condition has come true.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Send
from windlass.errors import WindlassError
from windlass.testing.calls import Calls, Pushing, Where, calls_of, spec_of
from windlass.testing.history import NEWEST, KeyShape, Pulled, Pushed, WorkerLog
from windlass.testing.network import PoisonedHeap
from windlass.types import MANAGER, NO_GENERATION, Block, Bytes, Generation, Incarnation, KeySpec
from windlass.worker.ops import KeyInfo, Op, Request

Condition = Callable[[], object]
"""Comes true when what it gives does."""


NOTHING = np.empty(0)


class Gone(Exception):
    """The cluster told this worker that its calls have no future."""


@dataclass(slots=True)
class Plan:
    """What every worker of a run does: `clock` pushes on each key, with pulls between them. All push in the same
    order of keys (`order`, by number), as workers that wait for each other must."""

    keys: list[KeyShape]
    order: list[int]
    clock: int
    num_seats: int  # workers that may ever be there, joiners included
    ranges: float  # how often a call is on a range
    waits: float  # how often a call is waited for at once
    leased: m.Workload | None = None  # the work, where it is leased
    id_list_bytes: int = 1 << 20  # how much each server keeps of lists of ids
    at_once_bytes: int = 0  # how much of several slots it does in one go
    specs: dict[str, KeySpec] = field(default_factory=dict)

    def spec(self, shape: KeyShape) -> KeySpec:
        """How this key is declared, by everybody."""
        found = self.specs.get(shape.name)
        if found is None:
            found = self.specs[shape.name] = spec_of(shape)
        return found


@dataclass(slots=True)
class _Edge:
    """The part of a hub that cutting an array into messages needs."""

    memory: PoisonedHeap
    is_shared: bool
    copied_bytes: int = -1

    def shares_memory_with(self, peer: Incarnation) -> bool:
        return self.is_shared

    def contiguous(self, arrays: Sequence[Bytes]) -> None:
        return None


@dataclass
class Program:
    """One worker's calls. `submit` hands work to its state machine; `now` stamps the log."""

    plan: Plan
    seat: int
    log: WorkerLog
    rng: random.Random
    submit: Callable[[Op | Request], None]
    use: Callable[[KeyInfo, Generation], None]
    is_pushing: Callable[[KeyInfo], bool]
    holdings: dict[str, m.Holding]
    now: Callable[[], float]
    rank: Callable[[], int]
    is_shared: bool
    is_joiner: bool = False
    is_ready: bool = False
    post: Callable[[Send], None] = lambda send: None  # send what nobody answers
    memory: PoisonedHeap = field(default_factory=PoisonedHeap)
    under_way: int = 0
    error: WindlassError | None = None
    keys: list[Calls] = field(default_factory=list)

    def run(self) -> Iterator[Condition]:
        try:
            for shape in self.plan.keys:
                self.keys.append((yield from self._open(shape)))
            self.is_ready = True
            yield from self._play(self.keys)
        except Gone:
            return

    # --- declaring ----------------------------------------------------------------------------------------------------

    def _ask(
        self, to: Incarnation | tuple[KeyInfo, int], make: Callable[[int], m.AnyMessage], data: tuple[Block, ...] = ()
    ) -> Any:
        answers: list[Any] = []

        def finish(answer: Any, buffers: tuple[Bytes, ...], error: WindlassError | None) -> None:
            self.error = self.error or error
            answers.append(answer)

        self.submit(Request(to, make, finish, data))
        yield answers.__len__
        self._check()
        return answers[0]

    def _open(self, shape: KeyShape) -> Any:
        """As Store.create, step by step."""
        spec = self.plan.spec(shape)
        declared = yield from self._ask(MANAGER, lambda n: m.Declare(request=n, spec=spec))
        key = self._use(declared)
        calls = self._calls(shape, key)
        if self.rank() == 0:
            yield from self._give_first(calls)
        attached = yield from self._ask((key, 0), self._attach(key, 0, -1))
        while int(attached.detail) < 0:  # whose task it was has died
            yield from self._give_first(calls)
            attached = yield from self._ask((key, 0), self._attach(key, 0, -1))
        key.clock = key.since = int(attached.detail)
        for shard in range(1, len(key.chains)):
            yield from self._ask((key, shard), self._attach(key, shard, key.since))
        self.log.since[shape.name] = key.since
        if self.is_joiner:
            self.log.entered[shape.name] = self.now()
        return calls

    def _calls(self, shape: KeyShape, key: KeyInfo) -> Calls:
        edge: Any = _Edge(self.memory, self.is_shared)
        return calls_of(shape, key, edge, self.seat, pushes_all=self.plan.leased is not None)

    def _give_first(self, calls: Calls) -> Any:
        if calls.shape.table is not None:
            return  # its rows start as they are declared to
        key, entry = calls.key, calls.entry
        first = np.zeros(key.size, calls.shape.dtype)
        for shard in reversed(key.whole):
            parts, owned = entry.parts(first, 0, {shard: key.whole[shard]}, may_borrow=True)
            for part in parts[shard]:
                yield from self._ask((key, shard), self._init(key, shard, part.pieces), part.blocks)
            for block in owned:
                self.memory.free(block)

    def _use(self, declared: m.Declared) -> KeyInfo:
        key = KeyInfo(declared.key, declared.spec, list(declared.chains))
        self.use(key, Generation(declared.term, declared.number))
        return key

    def _init(self, key: KeyInfo, shard: int, pieces: tuple[m.Piece, ...]) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Init(request=n, key=key.id, shard=shard, pieces=pieces)

    def _attach(
        self, key: KeyInfo, shard: int, clock: int, since: Generation = NO_GENERATION
    ) -> Callable[[int], m.AnyMessage]:
        term, number = since
        return lambda n: m.Attach(request=n, key=key.id, shard=shard, clock=clock, term=term, number=number)

    def _check(self) -> None:
        if self.error is not None:
            raise Gone

    # --- pushing and pulling ------------------------------------------------------------------------------------------

    def _play(self, keys: list[Calls]) -> Iterator[Condition]:
        rng = self.rng
        issued = [0] * len(keys)
        for number in self.plan.order:
            calls = keys[number]
            issued[number] += 1
            if issued[number] <= calls.key.since:
                continue  # deemed made: the worker joined later
            kind = rng.random()
            done = self._push(calls, issued[number], pulls=kind < 0.4)
            yield from self._maybe(done)
            if kind > 0.5:
                other = rng.randrange(len(keys))
                calls = keys[other]
                clock = max(issued[other], calls.key.since)
                yield from self._maybe(self._pull(calls, clock, self._where(calls)))
        awaited_from = self.now()
        for calls in keys:
            self._pull(calls, self.plan.clock, calls.whole())
        yield lambda: self.under_way == 0
        self._check()
        for calls in keys:
            if calls.shape.table is not None and rng.random() < 0.3:
                yield from self._scan(calls, awaited_from)

    def _maybe(self, done: Condition) -> Iterator[Condition]:
        """Wait for a call, or leave it under way."""
        yield done if self.rng.random() < self.plan.waits else _at_once
        self._check()

    def _where(self, calls: Calls, *, is_push: bool = False) -> Where:
        if self.rng.random() >= self.plan.ranges:
            return calls.whole()
        return calls.some(self.rng, is_push=is_push)

    def _push(self, calls: Calls, clock: int, *, pulls: bool) -> Condition:
        shape, where = calls.shape, self._where(calls, is_push=True)
        bit = self.seat * self.plan.clock + clock - 1
        pushing = calls.push((bit,), where, self.rng)
        lo, hi = where if shape.table is None else (0, shape.size)
        if pushing.marks is not None:
            lo, hi = 0, shape.size
        pushed = Pushed(shape.name, clock, bit, lo, hi, self.now(), marks=pushing.marks)
        self.log.events.append(pushed)

        def acked() -> None:
            pushed.acked = self.now()
            self._free(pushing.owned)

        if not pulls:
            return self._start(pushing.op, acked)
        if shape.table is not None and calls.book is not None:  # filters leave rows out: it follows
            self._start(pushing.op, acked)
            return self._pull(calls, clock, where)
        return self._pull(calls, clock, pushing.where, pushing, acked)

    def _free(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.memory.free(block)

    def _pull(
        self, calls: Calls, clock: int, where: Where, riding: Pushing | None = None, also: Any = None
    ) -> Condition:
        """Start a pull, or a push and pull; a clock of NEWEST makes it a driver's read."""
        pulling = calls.pull(where, riding=riding)
        name, is_table = calls.shape.name, calls.shape.table is not None
        lo, hi = (0, 0) if is_table else where
        pulled = Pulled(name, clock, lo, hi, NOTHING, self.now(), 0.0, where if is_table else None)
        at = len(self.log.events)
        self.log.events.append(pulled)

        def here() -> None:
            pulled.value, pulled.responded = pulling.value(), self.now()
            self._free(pulling.owned)
            if also is not None:
                also()

        def lost() -> None:
            self.log.events[at] = Pulled(name, clock, lo, lo, NOTHING, pulled.invoked, self.now())

        pulling.op.reads_newest = clock == NEWEST
        return self._start(pulling.op, here, lost)

    def _scan(self, calls: Calls, awaited_from: float) -> Iterator[Condition]:
        """As a pull of all rows of a table, by pages, after everything else of this worker; the last pull has waited
        for the others."""
        shape, key, clock = calls.shape, calls.key, self.plan.clock
        value = np.zeros((shape.num_slots, shape.slot_size), np.float32)
        at = len(self.log.events)
        rows = tuple(range(shape.num_slots))
        pulled = Pulled(shape.name, clock, 0, 0, value, self.now(), 0.0, rows, awaited_from)
        self.log.events.append(pulled)
        for slot in range(key.num_slots):
            after: int | None = None
            while True:
                after, found = yield from self._page(key, slot, after, shape)
                for row_id, row in found:
                    value[shape.ids.index(row_id)] = row
                if after is None:
                    break
        pulled.value, pulled.responded = value.reshape(-1), self.now()
        self.log.events[at] = pulled

    def _page(self, key: KeyInfo, slot: int, after: int | None, shape: KeyShape) -> Any:
        shard, span = key.shard_of(slot), (min(shape.ids), max(shape.ids) + 1) if self.seat % 2 else None
        pages: list[Any] = []

        def finish(answer: Any, data: tuple[Bytes, ...], error: WindlassError | None) -> None:
            self.error = self.error or error
            pages.append((answer, [part.copy() for part in data]))

        def make(request: int) -> m.Scan:
            return m.Scan(request=request, key=key.id, shard=shard, slot=slot, limit=2, after=after, span=span)

        self.submit(Request((key, shard), make, finish))
        yield pages.__len__
        self._check()
        [(scanned, [data])] = pages
        cut = data.nbytes // (8 + key.itemsize) * 8
        rows = data[cut:].view(np.float32).reshape(-1, shape.slot_size)
        return scanned.after, list(zip(data[:cut].view(np.int64).tolist(), rows, strict=True))

    def _start(self, op: Op, good: Callable[[], None], bad: Callable[[], None] | None = None) -> Condition:
        """Start a call; at its end do what is to be done when all went well, or what else."""
        self.under_way += 1
        done: list[bool] = []

        def finish(error: WindlassError | None) -> None:
            op.finish = _finished  # which knows of nobody: a ring of references would live until a garbage collection
            self.under_way -= 1
            self.error = self.error or error
            if error is None:
                good()
            elif bad is not None:
                bad()
            done.append(True)

        op.finish = finish
        self.submit(op)
        return done.__len__


def _at_once() -> bool:
    return True


def _finished(error: WindlassError | None) -> None:
    raise AssertionError("an operation has ended twice")


class Reader(Program):
    """A driver's handle: it takes part in no round and reads the newest one, now and then."""

    def run(self) -> Iterator[Condition]:
        try:
            for shape in self.plan.keys:
                key = yield from self._find(shape)
                self.keys.append(self._calls(shape, key))
            for _ in range(self.rng.randint(1, max(1, 2 * self.plan.clock))):
                calls = self.keys[self.rng.randrange(len(self.keys))]
                yield self._pull(calls, NEWEST, self._where(calls))
                self._check()
        except Gone:
            return

    def _find(self, shape: KeyShape) -> Any:
        declared = yield from self._ask(MANAGER, self._lookup(shape))
        return self._use(declared)

    def _lookup(self, shape: KeyShape) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Lookup(request=n, name=shape.name)
