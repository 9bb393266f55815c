"""How calls on a key that is made for judging are put together, by the steps that `Store` takes: of dense keys and of
tables, with filters and without."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from windlass._transport.base import Hub
from windlass.errors import WindlassError
from windlass.filters import Kept, NeedIds, Receiver, filter_rules
from windlass.filters.rules import chain_of
from windlass.store.reduce import reducer_rule, resolve_reducer
from windlass.store.update import updater_rule
from windlass.testing.history import KeyShape, Marks
from windlass.testing.network import POISON
from windlass.types import STORAGE, Array, Block, KeySpec
from windlass.worker.arrays import Like
from windlass.worker.entry import Entry
from windlass.worker.filtering import KeyFilter
from windlass.worker.landing import Landing
from windlass.worker.ops import KeyInfo, Op, Part
from windlass.worker.packing import ids_of
from windlass.worker.rows import RowLanding, TableEntry
from windlass.worker.split import split

Where = tuple[int, ...]
"""What a call is on: elements (lo, hi) of a dense key, rows of a table, by their numbers."""

SUM, ADD = reducer_rule("sum"), updater_rule("add")


def spec_of(shape: KeyShape) -> KeySpec:
    """The declaration of such a key."""
    itemsize = 8 if shape.dtype == "int64" else 4
    return KeySpec(
        name=shape.name,
        shape=(shape.size,) if shape.table is None else (0, shape.slot_size),
        dtype=shape.dtype,
        reduce=SUM,
        update=ADD,
        consistency=shape.consistency,
        chunk_bytes=shape.slot_size * itemsize,
        table=shape.table,
        filters=filter_rules(shape.filters),
    )


class Pushing(msgspec.Struct, eq=False):
    """A push that is ready to be started; `where` is what it is on in the end. `marks` is what it carries, where that
    is not just its bit."""

    op: Op
    where: Where
    owned: list[Block]
    marks: Marks | None = None


class Pulling(msgspec.Struct, eq=False):
    """A pull that is ready to be started. `landing` has the value, once it has landed."""

    op: Op
    landing: Landing | RowLanding
    owned: list[Block] = []

    def value(self) -> Array:
        self.landing.finish(None)
        found: Array = np.array(self.landing.result).reshape(-1)
        return found


class Calls(Protocol):
    """Calls on one key, in one process. An Op's `finish` is the caller's to set."""

    shape: KeyShape
    key: KeyInfo
    book: Book | None

    @property
    def entry(self) -> Entry: ...

    def whole(self) -> Where: ...

    def some(self, rng: random.Random, *, is_push: bool) -> Where: ...

    def push(self, bits: Sequence[int], where: Where, rng: random.Random) -> Pushing: ...

    def pull(self, where: Where, *, riding: Pushing | None = None) -> Pulling: ...


class Book:
    """What filters have let through so far, and what they keep back: together, all that was given to them."""

    def __init__(self, shape: KeyShape, filtering: KeyFilter) -> None:
        self._shape, self._filtering = shape, filtering
        self._receiver = Receiver(filtering.sender.chain)
        self._rows = {row_id: row for row, row_id in enumerate(shape.ids)}
        self.given, self.sent = np.zeros(shape.size, np.int64), np.zeros(shape.size, np.int64)
        self.num_kept_back = 0  # pushes after which something was kept back
        self.kept: list[Array] = [np.zeros(shape.size, np.int64)]  # what was kept back before each, and after the last

    def enter(self, given: Array, parts: Iterable[Part]) -> Marks:
        """A push: what it was to carry, of the whole key, and what was made of it. Gives what it carries."""
        self.given += given.astype(np.int64)
        carried = np.zeros(self._shape.size, np.int64)
        for part in parts:
            if part.sealed is not None:
                [payload] = part.sealed.payloads
                self._read(part, payload.in_full(), carried)
        self.sent += carried
        self.kept.append(self.given - self.sent)
        self.num_kept_back += int(self.kept[-1].any())
        return marks_of(self._shape, carried)

    def _read(self, part: Part, payload: Any, carried: Array) -> None:
        size = self._shape.slot_size
        if self._shape.table is None:
            [(slot, lo, hi)] = part.pieces
            decoded = self._receiver.decode(payload, size=hi - lo)
            assert not isinstance(decoded, NeedIds)
            carried[slot * size + lo : slot * size + hi] += decoded.values.astype(np.int64)
            return
        decoded = self._receiver.decode(payload)
        assert not isinstance(decoded, NeedIds)
        assert decoded.ids is not None
        for row_id, row in zip(decoded.ids.tolist(), decoded.values, strict=True):
            at = self._rows[row_id] * size
            carried[at : at + size] += row.astype(np.int64)

    def problem(self) -> str:
        """What is wrong with these accounts; nothing, if all is well: sent + residual = given."""
        kept = kept_back(self._shape, self._filtering.sender.dump().residual)
        wrong = np.flatnonzero(self.sent + kept != self.given)
        if not wrong.size:
            return ""
        at = int(wrong[0])
        told = f"{self.given[at]:g} was pushed, {self.sent[at]:g} sent, {kept[at]:g} kept back"
        return f"'{self._shape.name}', element {at}: {told}"


def marks_of(shape: KeyShape, carried: Array) -> Marks:
    """The elements of a whole key that are not 0."""
    marks: Marks = {}
    for at in np.flatnonzero(carried).tolist():
        marks.setdefault(at // shape.slot_size, []).append(at)
    return marks


def kept_back(shape: KeyShape, residual: Iterable[Kept]) -> Array:
    """What a worker's filters keep back of a key, as its value would be."""
    kept = np.zeros(shape.size, np.float64)
    for one in residual:
        if one.ids is None:
            kept[one.lo : one.lo + one.values.size] += one.values[: shape.size - one.lo]
            continue
        for row_id, row in zip(one.ids.tolist(), one.values.reshape(-1, shape.slot_size), strict=True):
            kept.reshape(-1, shape.slot_size)[shape.ids.index(row_id)] += row
    return kept


def calls_of(shape: KeyShape, key: KeyInfo, hub: Hub, seat: int, *, pushes_all: bool = False) -> Calls:
    """Begin to use a key. `seat` is whose calls they are. `pushes_all`: to all rows of a table, not only to some."""
    book: Book | None = None
    if key.spec.filters:
        key.filtering = KeyFilter(key, chain_of(key.spec, {}), hub, seat)
        book = Book(shape, key.filtering)
    if shape.table is None:
        return DenseCalls(shape, key, Entry(key, "numpy", hub), book)
    entry = TableEntry(key, hub, shape.table, resolve_reducer(key.spec.reduce, {}))
    return TableCalls(shape, key, entry, book, seat, pushes_all)


@dataclass(slots=True)
class DenseCalls:
    shape: KeyShape
    key: KeyInfo
    entry: Entry
    book: Book | None

    def whole(self) -> Where:
        return 0, self.shape.size

    def some(self, rng: random.Random, *, is_push: bool) -> Where:
        lo, hi = sorted((rng.randint(0, self.shape.size), rng.randint(0, self.shape.size)))
        return lo, hi

    def push(self, bits: Sequence[int], where: Where, rng: random.Random) -> Pushing:
        lo, hi = where
        value = _marked(self.shape, bits)
        pieces = split(self.key, lo, hi)
        if self.book is None:
            parts, owned = self.entry.parts(value[lo:hi], lo, pieces, may_borrow=False)
            return Pushing(_op(self.key, parts), where, owned)
        assert self.key.filtering is not None
        given = np.zeros_like(value)
        given[lo:hi] = value[lo:hi]
        parts, owned = self.key.filtering.dense(value[lo:hi], lo, pieces)
        value.view(np.uint8).fill(POISON)  # the caller's memory is its own again
        marks = self.book.enter(given, (part for some in parts.values() for part in some))
        return Pushing(_op(self.key, parts), where, owned, marks)

    def pull(self, where: Where, *, riding: Pushing | None = None) -> Pulling:
        lo, hi = where
        flat: Array = np.empty(hi - lo, STORAGE[self.shape.dtype])
        flat.fill(-1)
        landing = Landing(self.entry, (lo, hi), is_range=True, out=flat)
        op = riding.op if riding is not None else _op(self.key, None)
        op.pull, op.deliver = split(self.key, lo, hi), landing.deliver
        return Pulling(op, landing)


@dataclass(slots=True)
class TableCalls:
    shape: KeyShape
    key: KeyInfo
    entry: TableEntry
    book: Book | None
    seat: int
    pushes_all: bool

    def whole(self) -> Where:
        return tuple(range(self.shape.num_slots))

    def some(self, rng: random.Random, *, is_push: bool) -> Where:
        """Rows in any order, some twice, perhaps none. Every worker has rows that it does not push to."""
        rows = list(self.mine()) if is_push else list(range(self.shape.num_slots))
        return tuple(rng.choices(rows, k=rng.randint(0, len(rows))) if rows else ())

    def mine(self) -> Where:
        """The rows that this worker pushes to. Nobody pushes to the last one."""
        last = self.shape.num_slots - 1
        if self.pushes_all:
            return self.whole()
        return tuple(row for row in range(last) if last < 3 or (row + self.seat) % 3)

    def push(self, bits: Sequence[int], where: Where, rng: random.Random) -> Pushing:
        """Rows of the key's that are asked for twice are pushed in two pieces."""
        size, mine = self.shape.slot_size, self.mine()
        asked = tuple(row for row in where if row in mine)
        value = _marked(self.shape, bits).reshape(-1, size)
        rows = np.zeros((len(asked), size), np.float32)
        given = np.zeros((self.shape.num_slots, size), np.float32)
        for position, row in enumerate(asked):
            share = value[row] - given[row] if row not in asked[position + 1 :] else value[row] * rng.randint(-2, 2)
            rows[position] = share
            given[row] += share
        way = self.entry.route(self._ids(asked))
        pieces = self.entry.pieces(way)
        if self.book is not None:
            assert self.key.filtering is not None
            parts, owned = self.key.filtering.rows(way, pieces, self.entry.merged(way, rows))
            rows.view(np.uint8).fill(POISON)  # the caller's memory is its own again
            marks = self.book.enter(given.reshape(-1), (part for some in parts.values() for part in some))
            return Pushing(_op(self.key, parts), asked, owned, marks)
        packing = self.entry.packed(way, pieces, rows).rest()
        rows.view(np.uint8).fill(POISON)
        op = _op(self.key, self.entry.grouped(pieces, packing.blocks))
        op.ids = ids_of(packing.blocks, pieces)
        return Pushing(op, asked, packing.owned, {row: [row * size + bit for bit in bits] for row in set(asked)})

    def pull(self, where: Where, *, riding: Pushing | None = None) -> Pulling:
        ids = self._ids(where)
        way = self.entry.route(ids)
        landing = RowLanding(self.entry, way, Like("numpy", "int64", (ids.size,)))
        pieces = self.entry.pieces(way)
        if riding is not None:
            riding.op.pull, riding.op.deliver = pieces, landing.deliver
            return Pulling(riding.op, landing)
        op = _op(self.key, None)
        op.pull, op.deliver = pieces, landing.deliver
        wanted = self.entry.wanted(way, pieces)
        op.ids = wanted.blocks
        if self.key.filtering is not None:
            op.digests, op.known = self.key.filtering.name_ids(way, pieces)
        return Pulling(op, landing, wanted.owned)

    def _ids(self, rows: Iterable[int]) -> Array:
        return np.array([self.shape.ids[row] for row in rows], np.int64)


def _marked(shape: KeyShape, bits: Sequence[int]) -> Array:
    value = np.zeros(shape.size, STORAGE[shape.dtype])
    if len(bits) == 1:
        value[bits[0] :: shape.slot_size] = 1
        return value
    for bit in bits:
        value[bit :: shape.slot_size] += 1
    return value


def _op(key: KeyInfo, parts: Any) -> Op:
    return Op(key, parts, None, None, _unset)


def _unset(error: WindlassError | None) -> None:
    raise AssertionError("whoever starts an operation sets how it ends")


def lay_out(shape: KeyShape, value: Array, slot: int, arrays: Mapping[str, Array]) -> None:
    """Put what a slot is made of, as its dump has it, where it belongs in the value of the whole key."""
    size = shape.slot_size
    if shape.table is None:
        stretch = arrays["value"].view(shape.dtype)
        value[slot * size : slot * size + stretch.size] = stretch
        return
    rows = arrays["value"].view(np.float32).reshape(-1, size)
    for row_id, row in zip(arrays["ids"].view(np.int64).tolist(), rows, strict=True):
        value.reshape(-1, size)[shape.ids.index(row_id)] = row
