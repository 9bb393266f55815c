"""What the tests of tables share: a slot in one line, and the model: a dict in which every row is a small dense key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.store.slots import make_slot
from windlass.store.ageing import GRAIN
from windlass.store.dense import DenseSlot, Reduced
from windlass.store.reduce import Reducer, resolve_reducer
from windlass.store.table import Contribution, TableSlot
from windlass.store.table_options import TableOptions
from windlass.store.update import Assign, RowwiseAdagrad, Updater, resolve_updater
from windlass.types import STORAGE, Array, Heap, Memory, Rule


def make_table(
    options: TableOptions, reduce: str | Reducer = "sum", update: str | Updater = "add", memory: Memory | None = None
) -> TableSlot:
    """A slot in one line; names are resolved as a server does it."""
    reducer = reduce if isinstance(reduce, Reducer) else resolve_reducer(Rule(reduce), {})
    updater = update if isinstance(update, Updater) else resolve_updater(Rule(update), {})
    return TableSlot(options, reducer=reducer, updater=updater, memory=memory or Heap())


def push(
    table: TableSlot, ids: Sequence[int], rows: Array | float = 1.0, *, now: float = 0.0,
    hyper: Mapping[str, float] | None = None,
) -> None:  # fmt: skip
    """One worker's push; a number is a row of it for each id."""
    given = np.array(ids, np.int64)
    data = np.full((given.size, table.options.dim), rows, np.float32) if np.isscalar(rows) else np.asarray(rows)
    table.apply([Contribution(given, data)], divisor=1, hyper=hyper, now=now)


def pull(table: TableSlot, ids: Sequence[int]) -> Array:
    return table.pull(np.array(ids, np.int64))


def bits(table: TableSlot) -> dict[str, object]:
    """All that a slot is."""
    arrays, meta = table.dump()
    return {name: (each.dtype.str, each.shape, each.tobytes()) for name, each in arrays.items()} | meta


def mixed(number: int) -> int:
    """The hash of an id, in Python's own numbers."""
    mask = (1 << 64) - 1
    number &= mask
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor & mask
    return number ^ number >> 33


class Model:
    """A table as one would write it without a thought for speed."""

    def __init__(self, options: TableOptions, reduce: str | Reducer, update: str | Updater) -> None:
        like = make_table(options, reduce, update)
        self.options, self.reducer, self.update = options, like.reducer, like.updater
        self.rows: dict[int, DenseSlot] = {}
        self.sums: dict[int, np.float32] = {}  # of row-wise Adagrad
        self.waiting: dict[int, int] = {}  # pushes of ids without a row
        self.used: dict[int, int] = {}
        self.tick = self.floor = 0
        self.times: list[tuple[float, int]] = []  # of the updates: when, and which

    def apply(self, ids: Array, rows: Array, hyper: Mapping[str, float] | None, now: float) -> None:
        """Different ids and a reduced row for each."""
        if not ids.size:
            return
        self.tick += 1
        self.times.append((now, self.tick))
        for number, row in zip(ids.tolist(), rows, strict=True):
            self.used[number] = self.tick
            if number not in self.rows:
                self.waiting[number] = self.waiting.get(number, 0) + 1
                if self.waiting[number] < self.options.admit_after:
                    continue
                del self.waiting[number]
                self.rows[number] = self._begin(number)
            self._step(number, row, hyper)
        self._expire(now)
        for held in (self.rows, self.waiting):
            self._evict(held)

    def value(self, number: int) -> Array:
        """The bits of a row's value."""
        row = self.rows.get(number) or self._begin(number)
        return row.block.array.view(STORAGE[self.options.dtype])

    def _begin(self, number: int) -> DenseSlot:
        options = self.options
        update = Assign() if isinstance(self.update, RowwiseAdagrad) else self.update
        row = DenseSlot(
            size=options.dim, dtype=options.dtype, reducer=self.reducer, updater=update, memory=Heap()
        )  # fmt: skip
        first = options.init.rows(np.array([number]), options.dim)[0]
        if options.dtype == "float32":
            row.write(0, options.dim, first)
            return row
        arrays, meta = row.dump()
        published = make_slot(options.dim, options.dtype, "sum", "assign")  # to round by
        published.update([Reduced(0, options.dim, first.view(np.uint8))], hyper=None, is_pinned=False)
        arrays |= {"value": published.dump()[0]["value"], "master": first}
        row.restore(arrays, meta)
        return row

    def _step(self, number: int, grad: Array, hyper: Mapping[str, float] | None) -> None:
        row = self.rows[number]
        if isinstance(self.update, RowwiseAdagrad):
            total = np.float32(0)
            for each in grad:
                total += each * each
            seen = self.sums.get(number, np.float32(0)) + total / np.float32(grad.size)
            self.sums[number] = seen
            tuned = self.update.with_hyper(hyper or {})
            rate = np.float32(tuned.lr) / (np.sqrt(seen) + np.float32(tuned.eps))
            grad, hyper = row.block.array.view(np.float32) + -rate * grad, None
        reduced = Reduced(0, self.options.dim, np.ascontiguousarray(grad).view(np.uint8))
        row.update([reduced], hyper=hyper, is_pinned=False)

    def _expire(self, now: float) -> None:
        limits, floor = self.options.limits, 0
        if limits.ttl_updates is not None:
            reached = self.tick - limits.ttl_updates
            if reached - self.floor >= max(1, limits.ttl_updates // GRAIN):
                floor = reached
        if limits.ttl_seconds is not None:
            floor = max([floor, *(tick + 1 for tick in self._past(now, limits.ttl_seconds))])
        self.floor = max(self.floor, floor)
        self._forget([number for number, used in self.used.items() if used < floor])

    def _past(self, now: float, ttl_seconds: float) -> list[int]:
        """Updates that are too long ago: those of a sixteenth of the time count as one, its last."""
        groups: list[list[tuple[float, int]]] = []
        for time, tick in self.times:
            if not groups or time - groups[-1][0][0] >= ttl_seconds / GRAIN:
                groups.append([])
            groups[-1].append((time, tick))
        return [tick for group in groups if group[-1][0] <= now - ttl_seconds for _, tick in group]

    def _evict(self, held: Mapping[int, object]) -> None:
        most = self.options.limits.max_rows
        if most is not None and len(held) > most:
            oldest = sorted(held, key=lambda number: (self.used[number], mixed(number)))
            self._forget(oldest[: len(held) - (most - most // GRAIN)])

    def _forget(self, ids: list[int]) -> None:
        for number in ids:
            for held in (self.rows, self.sums, self.waiting, self.used):
                held.pop(number, None)


