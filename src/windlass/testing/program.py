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
from windlass.store.reduce import reducer_rule
from windlass.store.update import updater_rule
from windlass.testing.history import NEWEST, KeyShape, Pulled, Pushed, WorkerLog
from windlass.testing.network import PoisonedHeap
from windlass.types import MANAGER, Array, Block, Bytes, Generation, Incarnation, KeySpec
from windlass.worker.entry import Entry
from windlass.worker.landing import Landing
from windlass.worker.ops import KeyInfo, Op, Request
from windlass.worker.split import split

Condition = Callable[[], bool]
SUM, ADD = reducer_rule("sum"), updater_rule("add")


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

    def run(self) -> Iterator[Condition]:
        try:
            entries = []
            for shape in self.plan.keys:
                entries.append((yield from self._open(shape)))
            self.is_ready = True
            yield from self._play(list(zip(self.plan.keys, entries, strict=True)))
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
        yield lambda: bool(answers)
        self._check()
        return answers[0]

    def _open(self, shape: KeyShape) -> Any:
        """As Store.create, step by step."""
        spec = KeySpec(
            name=shape.name, shape=(shape.size,), dtype="int64", reduce=SUM, update=ADD,
            consistency=shape.consistency, chunk_bytes=shape.slot_size * 8,
        )  # fmt: skip
        declared = yield from self._ask(MANAGER, lambda n: m.Declare(request=n, spec=spec))
        key = self._use(declared)
        entry = Entry(key, "numpy", _Edge(self.memory, self.is_shared))  # type: ignore[arg-type]
        if self.rank() == 0:
            yield from self._give_first(entry)
        attached = yield from self._ask((key, 0), self._attach(key, 0, -1))
        while int(attached.detail) < 0:  # whose task it was has died
            yield from self._give_first(entry)
            attached = yield from self._ask((key, 0), self._attach(key, 0, -1))
        key.clock = key.since = int(attached.detail)
        for shard in range(1, len(key.chains)):
            yield from self._ask((key, shard), self._attach(key, shard, key.since))
        self.log.since[shape.name] = key.since
        if self.is_joiner:
            self.log.entered[shape.name] = self.now()
        return entry

    def _give_first(self, entry: Entry) -> Any:
        key = entry.key
        first = np.zeros(key.size, np.int64)
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

    def _attach(self, key: KeyInfo, shard: int, clock: int) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Attach(request=n, key=key.id, shard=shard, clock=clock)

    def _check(self) -> None:
        if self.error is not None:
            raise Gone

    # --- pushing and pulling ------------------------------------------------------------------------------------------

    def _play(self, keys: list[tuple[KeyShape, Entry]]) -> Iterator[Condition]:
        rng = self.rng
        issued = [0] * len(keys)
        for number in self.plan.order:
            shape, entry = keys[number]
            issued[number] += 1
            if issued[number] <= entry.key.since:
                continue  # deemed made: the worker joined later
            kind = rng.random()
            done = self._push(shape, entry, issued[number], pulls=kind < 0.4)
            yield from self._maybe(done)
            if kind > 0.5:
                other = rng.randrange(len(keys))
                shape, entry = keys[other]
                clock = max(issued[other], entry.key.since)
                yield from self._maybe(self._pull(shape, entry, clock, self._range(shape)))
        for shape, entry in keys:
            self._pull(shape, entry, self.plan.clock, (0, shape.size))
        yield lambda: self.under_way == 0
        self._check()

    def _maybe(self, done: Condition) -> Iterator[Condition]:
        """Wait for a call, or leave it under way."""
        yield done if self.rng.random() < self.plan.waits else lambda: True
        self._check()

    def _range(self, shape: KeyShape) -> tuple[int, int]:
        if self.rng.random() >= self.plan.ranges:
            return 0, shape.size
        lo, hi = sorted((self.rng.randint(0, shape.size), self.rng.randint(0, shape.size)))
        return lo, hi

    def _push(self, shape: KeyShape, entry: Entry, clock: int, *, pulls: bool) -> Condition:
        lo, hi = self._range(shape)
        bit = self.seat * self.plan.clock + clock - 1
        pieces = split(entry.key, lo, hi)
        parts, owned = entry.parts(shape.mark(bit)[lo:hi], lo, pieces, may_borrow=False)
        pushed = Pushed(shape.name, clock, bit, lo, hi, self.now())
        self.log.events.append(pushed)

        def acked() -> None:
            pushed.acked = self.now()
            for block in owned:
                self.memory.free(block)

        if not pulls:
            return self._start(Op(entry.key, parts, None, None, self._finish(acked)))
        return self._pull(shape, entry, clock, (lo, hi), parts, acked)

    def _pull(
        self, shape: KeyShape, entry: Entry, clock: int, range: tuple[int, int], parts: Any = None, also: Any = None
    ) -> Condition:
        """Start a pull, or a push and pull; a clock of NEWEST makes it a driver's read."""
        lo, hi = range
        flat: Array = np.full(hi - lo, -1, np.int64)
        landing = Landing(entry, (lo, hi), is_range=True, out=flat)
        pulled = Pulled(shape.name, clock, lo, hi, flat, self.now(), 0.0)
        at = len(self.log.events)
        self.log.events.append(pulled)

        def here() -> None:
            pulled.responded = self.now()
            if also is not None:
                also()

        def lost() -> None:
            self.log.events[at] = Pulled(shape.name, clock, lo, lo, flat[:0], pulled.invoked, self.now())

        op = Op(entry.key, parts, split(entry.key, lo, hi), landing.deliver, self._finish(here, lost))
        op.reads_newest = clock == NEWEST
        return self._start(op)

    def _finish(self, good: Callable[[], None], bad: Callable[[], None] = lambda: None) -> Any:
        def finish(error: WindlassError | None) -> None:
            self.under_way -= 1
            self.error = self.error or error
            if error is None:
                good()
            else:
                bad()

        return finish

    def _start(self, op: Op) -> Condition:
        self.under_way += 1
        done: list[bool] = []
        inner = op.finish

        def finish(error: WindlassError | None) -> None:
            inner(error)
            done.append(True)

        op.finish = finish
        self.submit(op)
        return lambda: bool(done)


class Reader(Program):
    """A driver's handle: it takes part in no round and reads the newest one, now and then."""

    def run(self) -> Iterator[Condition]:
        try:
            entries = []
            for shape in self.plan.keys:
                key = yield from self._find(shape)
                entries.append(Entry(key, "numpy", _Edge(self.memory, self.is_shared)))  # type: ignore[arg-type]
            for _ in range(self.rng.randint(1, max(1, 2 * self.plan.clock))):
                number = self.rng.randrange(len(entries))
                shape = self.plan.keys[number]
                yield self._pull(shape, entries[number], NEWEST, self._range(shape))
                self._check()
        except Gone:
            return

    def _find(self, shape: KeyShape) -> Any:
        declared = yield from self._ask(MANAGER, self._lookup(shape))
        return self._use(declared)

    def _lookup(self, shape: KeyShape) -> Callable[[int], m.AnyMessage]:
        return lambda n: m.Lookup(request=n, name=shape.name)
