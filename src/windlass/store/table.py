"""A slot of a table: the rows of those ids whose hash falls to it, made when they are first pushed to.

What an update is made of is a *batch*: different ids, and one reduced row for each. Slots that take the same batches,
with the same numbers and times, hold the same rows, bit for bit, those that went included. So the head of a chain
reduces, and all of the chain update with what it made, as with dense keys. Pulling changes nothing.

A table is cut into a fixed number of slots by the hash of the id, so that what concerns a whole slot, to make its index
larger or to look for old rows, stays short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from windlass.errors import UsageError
from windlass.store.ageing import Ageing
from windlass.store.batch import address, decoded, expand_rows, merge_rows, reduce_rows, route
from windlass.store.index import Entries, Floor, Found, Index
from windlass.store.reduce import Op, Reducer, check_reducer, divide
from windlass.store.rows import RowRule, Rows, storage_of
from windlass.store.table_options import TableOptions
from windlass.store.update import Updater
from windlass.types import Array, Bytes, Heap, Memory

_CANDIDATE = 0xFFFF0000
_NO_ROWS = np.empty(0, np.int64)


class Contribution(NamedTuple):
    """What one worker pushed to a slot: ids, and a row for each. Both are only read, and may be bytes; the rows are of
    the table's type. `is_unique` promises that no id comes twice."""

    ids: Array
    rows: Array
    is_unique: bool = False


class Batch(NamedTuple):
    """What an update is made of: different ids, and one reduced float32 row for each; either may be bytes."""

    ids: Array
    rows: Array


class Asked(NamedTuple):
    """Rows of one slot: the address of so many ids; and of their gradients, float32, or of where their values go. All
    addresses are aligned."""

    slot: TableSlot
    ids: int
    num_ids: int
    data: int


class Page(NamedTuple):
    """Some rows, and what to ask the next page with; None after the last."""

    ids: Array
    rows: Array
    after: int | None


class TableSlot:
    """One slot of a table. One owner: not thread-safe. Different slots may be worked on by different threads at once,
    and the kernels run without the interpreter lock. A UsageError, or a user's reducer or updater that raises, leaves
    the slot as it was."""

    def __init__(self, options: TableOptions, *, reducer: Reducer, updater: Updater, memory: Memory) -> None:
        """A slot without rows. `options` are its own: a share of the table's."""
        options.check()
        check_reducer(reducer, options.dtype)
        updater.check_table(options.dtype, reducer)
        self.options, self.reducer, self.updater, self._memory = options, reducer, updater, memory
        self._storage = storage_of(options.dtype)
        self._rule = RowRule(options.dim, options.dtype, options.init, reducer, updater)
        self._rows, self._index, self._ageing = Rows(self._rule, memory), Index(memory), Ageing(options.limits)
        self._tuned: tuple[Mapping[str, float], Updater] = ({}, updater)
        self._counts_pushes = options.limits.is_any or options.admit_after > 1
        self.num_rows = 0
        self.num_lacked = 0  # ids of the last update that were not there yet

    def __repr__(self) -> str:
        shape = f"{self.num_rows} rows of {self.options.dim} x {self.options.dtype}"
        return f"<TableSlot {shape} | {self.reducer.name}, {self.updater}>"

    @property
    def num_candidates(self) -> int:
        """Ids that have been pushed to, and have no row yet."""
        return self._index.size - self.num_rows

    @property
    def nbytes(self) -> int:
        """All memory that it has, room for more rows included."""
        return self._rows.arena.nbytes + self._index.nbytes

    @property
    def latest(self) -> float:
        """When it was last updated, where rows age by the clock; else 0."""
        return self._ageing.latest

    # --- reading ------------------------------------------------------------------------------------------------------

    def pull(self, ids: Array, out: Array | None = None) -> Array:
        """The row of each id, one after the other, in the table's type; of an id without one, what it would start as.
        `out` may be bytes; it must be contiguous. Changes nothing: a row that is only pulled is never made."""
        ids = self._ids(ids)
        shape = (ids.size, self.options.dim)
        rows: Array = np.empty(shape, self._storage) if out is None else out.reshape(-1).view(self._storage)
        if rows.size != ids.size * self.options.dim:
            raise UsageError(f"{ids.size} rows of {self.options.dim} do not fit into {rows.size} elements")
        pull_rows([Asked(self, address(ids), ids.size, address(rows))])
        return rows.reshape(shape)

    def threshold(self, ids: Array) -> Array | float | None:
        """The updater's, of the rows of these ids, flat; as they would start, where there are none."""
        ids = self._ids(ids)
        return self.updater.threshold(self._rows.state(self._index.find(address(ids), ids.size).rows))

    def ids_between(self, lo: int, hi: int) -> Array:
        """The ids from lo up to, without, hi that have a row, rising."""
        if hi <= lo:
            return _NO_ROWS
        if hi - lo <= self.num_rows // 8:
            ids = np.arange(hi - lo, dtype=np.int64) + lo
            return ids[self._index.find(address(ids), ids.size).rows >= 0]
        entries = self._index.entries()
        ids = self._unmixed(entries.hashes[entries.tags < _CANDIDATE])
        return np.sort(ids[(ids >= lo) & (ids <= hi - 1)])  # hi itself may be too large for an int64

    def page(self, after: int = -1, limit: int = 4096) -> Page:
        """At most `limit` rows, after the page that ended with `after`. Rows may be pushed to in between: those
        that are there from the first page to the last come exactly once."""
        entries = self._index.entries(after, limit)
        is_row = entries.tags < _CANDIDATE
        rows = entries.tags[is_row].astype(np.int64) - 1
        ids, found = self._unmixed(entries.hashes[is_row]), np.empty((rows.size, self.options.dim), self._storage)
        self._rows.pull(self._rows.named(rows, address(found), found.strides[0]))
        return Page(ids, found, int(entries.hashes[-1]) if entries.hashes.size == limit else None)

    def pages(self, limit: int = 4096) -> Iterator[Page]:
        """All rows, page by page."""
        after: int | None = -1
        while after is not None:
            page = self.page(after, limit)
            yield page
            after = page.after

    # --- updating -----------------------------------------------------------------------------------------------------

    def apply(
        self, contributions: Sequence[Contribution], *, divisor: int, hyper: Mapping[str, float] | None, now: float
    ) -> None:
        """Reduce the contributions, id by id in the order given, and update once. Rows that nobody contributed to do
        not change in any way, but for those that have to go. `divisor` is what mean divides by; `hyper` overrides the
        updater's numbers this once; `now` is in seconds, and never falls."""
        is_plain = len(contributions) == 1 and contributions[0].is_unique and self.options.dtype == "float32"
        if is_plain and (divisor == 1 or self.reducer.op is not Op.MEAN):
            self.update(Batch(*contributions[0][:2]), hyper=hyper, now=now)
        else:
            self.update(self.reduce(contributions, divisor=divisor), hyper=hyper, now=now)

    def reduce(
        self,
        contributions: Sequence[Contribution],
        *,
        divisor: int,
        room: Callable[[int], Bytes] = lambda nbytes: np.empty(nbytes, np.uint8),
    ) -> Batch:
        """What `apply` would update with, in so many bytes of `room`: the ids, and after them the rows. `update` with
        it has the same outcome, bit for bit."""
        if divisor < 1:
            raise UsageError(f"divisor must be at least 1, got {divisor}")
        dim = self.options.dim
        given = [(self._ids(each.ids), each.rows) for each in contributions]
        is_wide = self._storage.itemsize == 2 and any(ids.size and self._is_wide(ids, each) for ids, each in given)
        rows = [self._wide(ids, each) if is_wide else self._elements(len(ids), each) for ids, each in given]
        ids = given[0][0] if len(given) == 1 else np.concatenate([_NO_ROWS, *(each for each, _ in given)])
        if len(given) == 1 and contributions[0].is_unique:
            unique, inverse = ids, np.arange(ids.size, dtype=np.int32)
        else:
            way = route(ids, 1)
            unique, inverse = way.ids, way.inverse
        data, cut = room((8 + 4 * dim) * unique.size), 8 * unique.size
        batch = Batch(data[:cut].view(np.int64), data[cut:].view(np.float32))
        batch.ids[:] = unique
        ends = np.cumsum([0, *(len(each) for each, _ in given)])
        parts = [(inverse[lo:hi], each) for lo, hi, each in zip(ends[:-1], ends[1:], rows, strict=True)]
        total = batch.rows.reshape(unique.size, dim)
        reduce_rows(total, parts, dtype="float32" if is_wide else self.options.dtype, reducer=self.reducer)
        if self.reducer.op is Op.MEAN and divisor != 1:
            total[:] = divide(total, np.float32(divisor))
        return batch

    def update(self, batch: Batch, *, hyper: Mapping[str, float] | None, now: float) -> None:
        """Update once, with what `reduce` gave, here or on another server. An id that comes twice all the same takes
        two steps."""
        updater = self._tune(hyper) if hyper else self.updater
        if batch.rows.dtype != np.float32 and batch.rows.dtype != np.uint8:
            raise UsageError(f"the rows of a batch are bytes or float32 elements, got {batch.rows.dtype}")
        ids, grads = self._ids(batch.ids), _aligned(batch.rows, np.dtype(np.float32))
        if grads.size != ids.size * self.options.dim:
            expected = f"a batch of {ids.size} ids needs as many rows of {self.options.dim}"
            raise UsageError(f"{expected}, got {grads.size} numbers")
        if not ids.size:
            return
        if self._rows.is_fused:
            update_rows([Asked(self, address(ids), ids.size, address(grads))], hyper=hyper, now=now)
            return
        found = self._index.find(address(ids), ids.size)
        proposed = self._rows.propose(found.rows, ids, grads.reshape(ids.size, -1).copy(), updater)
        self._admit(found, address(ids), now, self.options.admit_after)
        self._rows.write(found.rows, proposed)
        self._age(now)

    @property
    def is_fused(self) -> bool:
        """Whether a kernel updates it."""
        return self._rows.is_fused

    def _admitted(self, ids: int, count: int, data: int, now: float) -> Array:
        """The records of these ids, each that is due a row given one."""
        found = self._index.find(ids, count)
        self._admit(found, ids, now, self.options.admit_after)
        return self._rows.named(found.rows, data, 4 * self.options.dim)

    def refusal(
        self, ids: Sequence[Array], *, admit_after: int | None = None, promised: Sequence[Array] = ()
    ) -> str:
        """Why an update of all of these ids, or one of each list of them, would be refused; empty if it would not be.
        Changes nothing. With `admit_after` as if the table had been declared so: `write` admits at once. What is
        `promised`, lists of ids of other updates that are still to come, keeps its room."""
        if self.options.max_bytes is None:
            return ""
        admit_after = admit_after or self.options.admit_after
        unique = np.unique(np.concatenate([_NO_ROWS, *(self._ids(some) for some in ids)]))
        often = _NO_ROWS  # what comes more than once: it may be due a row by then
        if promised:
            unique, times = np.unique(np.concatenate([unique, *map(self._ids, promised)]), return_counts=True)
            often = unique[times > 1]
        num_rows, num_entries = self._sizes(self._index.find(address(unique), unique.size), admit_after)
        if often.size and admit_after > 1:
            found = self._index.find(address(often), often.size)
            num_rows += self._sizes(found, 1)[0] - self._sizes(found, admit_after)[0]
        try:
            self._check_bytes(num_rows, num_entries)
        except UsageError as error:
            return str(error)
        return ""

    def write(self, ids: Array, rows: Array, *, now: float) -> None:
        """Set the value of these rows, which are made if need be, admitted or not; optimizer state stays."""
        ids = self._ids(ids)
        value = decoded(self._elements(ids.size, rows), self.options.dtype).reshape(ids.size, self.options.dim)
        if ids.size:
            found = self._index.find(address(ids), ids.size)
            self._admit(found, address(ids), now, 1)
            self._rows.write(found.rows, {"value": value})
            self._age(now)

    def expire(self, now: float) -> None:
        """Let go of what is too old, without an update. Like one, it is a change: all of a chain must do it."""
        self._age(now)

    def _admit(self, found: Found, ids: int, now: float, admit_after: int) -> None:
        """Give a row to each id that is due one. Of the others, `found.rows` stays -1."""
        if not found.missing and not self._counts_pushes:
            return
        num_rows, num_entries = self._sizes(found, admit_after)
        self._check_bytes(num_rows, num_entries)
        due = num_rows - self.num_rows
        free = self._rows.arena.offer(due) if due else _NO_ROWS
        made = self._index.count(found, free, self._ageing.next(now), admit_after)
        if made.size:
            self._rows.arena.take(made.size)
            self.num_rows += made.size
            self._rows.make(found.rows, made, ids)

    def _sizes(self, found: Found, admit_after: int) -> tuple[int, int]:
        """How many rows, and entries of the index, there would be with these ids."""
        due = found.missing if admit_after == 1 else 0
        if self.num_candidates:
            due += self._index.num_due(found, admit_after)
        return self.num_rows + due, self._index.size + found.missing

    def _check_bytes(self, num_rows: int, num_entries: int) -> None:
        most, allowed = self.options.limits.max_rows, self.options.max_bytes
        if allowed is None or (num_rows == self.num_rows and num_entries == self._index.size):
            return
        if most is not None:
            num_entries -= max(0, num_rows - most)
            num_rows = min(num_rows, most)
        needed = num_rows * self._rows.row_bytes + Index.bytes_for(num_entries)
        if needed > allowed:
            raise UsageError(
                f"the table would outgrow max_bytes: {num_rows} rows in one of its slots need {needed} bytes, its "
                f"share is {allowed}. Raise max_bytes, or let rows go: max_rows, ttl_updates, ttl_seconds"
            )

    def _age(self, now: float) -> None:
        if not self.options.limits.is_any:
            return
        floor = self._ageing.floor(now)
        if floor:
            self._sweep((floor, 0), (floor, 0))
        rows, candidates = self._ageing.surplus(self.num_rows), self._ageing.surplus(self.num_candidates)
        if rows or candidates:
            self._sweep(
                self._index.oldest(rows, self.num_rows, are_candidates=False),
                self._index.oldest(candidates, self.num_candidates, are_candidates=True),
            )
        if self._ageing.must_renumber():
            entries = self._index.entries()
            self._index.refill(entries._replace(used=self._ageing.renumber(entries.used)))

    def _sweep(self, rows: Floor, candidates: Floor) -> None:
        freed = self._index.sweep(rows, candidates)
        self._rows.arena.give(freed)
        self.num_rows -= freed.size

    def _tune(self, hyper: Mapping[str, float]) -> Updater:
        if self._tuned[0] != hyper:
            self._tuned = (dict(hyper), self._rows.tune(hyper))
        return self._tuned[1]

    # --- keeping and bringing back ------------------------------------------------------------------------------------

    def dump(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Everything that later updates depend on: arrays by name, and plain values. Every array has an element, or a
        row, for each id, in the order of their hashes; those of candidates likewise. Equal slots have equal dumps,
        whatever their histories; one that restores them goes on bit for bit as this one does."""
        entries = self._index.entries()
        is_row = entries.tags < _CANDIDATE
        arrays = {"ids": self._unmixed(entries.hashes[is_row])}
        arrays |= self._rows.read(entries.tags[is_row].astype(np.int64) - 1)
        if self.options.limits.is_any:
            arrays["used"] = entries.used[is_row].astype(np.uint32)
        if self.options.admit_after > 1:
            arrays["candidate.ids"] = self._unmixed(entries.hashes[~is_row])
            arrays["candidate.pushes"] = (entries.tags[~is_row] - np.uint64(_CANDIDATE)).astype(np.uint16)
            arrays["candidate.used"] = entries.used[~is_row].astype(np.uint32)
        return arrays, {"dim": self.options.dim, "dtype": self.options.dtype, "ageing": self._ageing.dump()}

    def restore(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        """Become what `dump` gave; its arrays may have come as bytes."""
        if (meta["dim"], meta["dtype"]) != (self.options.dim, self.options.dtype):
            raise UsageError(
                f"the dump is of rows of {meta['dim']} x {meta['dtype']}, "
                f"this slot holds {self.options.dim} x {self.options.dtype}"
            )
        ids, waiting = (_column(arrays, name, np.int64) for name in ("ids", "candidate.ids"))
        rows = Rows(self._rule, self._memory)
        found = rows.checked(arrays, ids.size)
        pushes = _column(arrays, "candidate.pushes", np.uint16, waiting.size)
        used = [
            _column(arrays, "used", np.uint32, ids.size),
            _column(arrays, "candidate.used", np.uint32, waiting.size),
        ]
        hashes = self._mixed(np.concatenate([ids, waiting]))
        tags = np.concatenate([np.arange(1, ids.size + 1, dtype=np.uint64), pushes + np.uint64(_CANDIDATE)])
        order, index = np.argsort(hashes, kind="stable"), Index(self._memory)
        if not index.refill(Entries(hashes[order], np.concatenate(used)[order], tags[order])):
            index.close()
            raise UsageError("the dump has an id twice")
        numbers = rows.arena.offer(ids.size)
        rows.arena.take(ids.size)
        rows.write(numbers, found)
        self._ageing.restore(meta["ageing"])
        self.close()
        self._rows, self._index, self.num_rows = rows, index, ids.size

    def close(self) -> None:
        """Give its memory back. Safe to repeat; nothing else may be done with it afterwards."""
        self._rows.arena.close()
        self._index.close()

    # --- what came ----------------------------------------------------------------------------------------------------

    def _ids(self, ids: Array) -> Array:
        if ids.dtype != np.int64 and ids.dtype != np.uint8:
            raise UsageError(f"ids must be int64, got {ids.dtype}")
        return _aligned(ids, np.dtype(np.int64))

    def _elements(self, count: int, rows: Array) -> Array:
        """Rows as elements of the table's type; UsageError if they are not so many of its width."""
        if rows.dtype != self._storage and rows.dtype != np.uint8:
            expected = f"a table of {self.options.dtype} takes bytes or {self._storage} elements"
            raise UsageError(f"{expected}, got {rows.dtype}")
        needed = count * self.options.dim * self._storage.itemsize
        if rows.nbytes != needed:
            expected = f"{count} rows of {self.options.dim} x {self.options.dtype} are {needed} bytes"
            raise UsageError(f"{expected}, got {rows.nbytes}")
        return _aligned(rows, self._storage)

    def _is_wide(self, ids: Array, rows: Array) -> bool:
        return rows.nbytes == 4 * ids.size * self.options.dim

    def _wide(self, ids: Array, rows: Array) -> Array:
        """Rows of float32, which is what filters make of those of a 16-bit table: all of a round alike."""
        if not self._is_wide(ids, rows):
            raise UsageError(f"{ids.size} rows of {self.options.dim} x float32 expected, got {rows.nbytes} bytes")
        return _aligned(rows, np.dtype(np.float32))

    def _unmixed(self, hashes: Array) -> Array:
        from windlass.store import table_kernels

        ids = np.empty(hashes.size, np.int64)
        table_kernels.unmix_all(np.ascontiguousarray(hashes), ids)
        return ids

    def _mixed(self, ids: Array) -> Array:
        from windlass.store import table_kernels

        hashes = np.empty(ids.size, np.uint64)
        table_kernels.mix_all(ids, hashes)
        return hashes


# --- several slots of one table at once -------------------------------------------------------------------------------


def pull_rows(asked: Sequence[Asked]) -> None:
    """Write the values of rows, in the table's type, to where they go; of an id without a row, what it would start as.
    Changes nothing."""
    rows = asked[0].slot._rows
    records = _located(asked, rows.value_bytes)[0]
    if rows.pull(records):
        begin = 0
        for one in asked:
            rows.pull_missing(records[begin : begin + one.num_ids], one.ids)
            begin += one.num_ids


def update_rows(asked: Sequence[Asked], *, hyper: Mapping[str, float] | None, now: float) -> None:
    """Update each of these slots once, where `is_fused`. What may be refused, by `max_bytes`, comes alone: else some
    slots could have taken their part when another refuses."""
    first = asked[0].slot
    updater = first._tune(hyper) if hyper else first.updater
    if first._counts_pushes:
        for slot, ids, count, data in asked:
            slot._rows.update(slot._admitted(ids, count, data, now), updater)
            slot._age(now)
        return
    records, missing = _located(asked, 4 * first.options.dim)
    begin = 0
    for (slot, ids, count, data), lacks in zip(asked, missing, strict=True):
        slot.num_lacked = lacks
        if lacks:
            records[begin : begin + count] = slot._admitted(ids, count, data, now)
        begin += count
    first._rows.update(records, updater)


def _located(asked: Sequence[Asked], row_bytes: int) -> tuple[Array, list[int]]:
    """The records of all ids, slot by slot; and of each slot, how many ids have no entry."""
    plan = np.array([
        (*slot._index.place, *slot._rows.arena.place, ids, count, data, 0) for slot, ids, count, data in asked
    ])
    records = asked[0].slot._rows.located(plan, sum([one.num_ids for one in asked]), row_bytes)
    return records, plan[:, -1].tolist()


def _aligned(data: Array, dtype: np.dtype[Any]) -> Array:
    """Elements of this type, one after the other, where a machine likes them to be."""
    flat = np.ascontiguousarray(data).reshape(-1).view(dtype)
    return flat if flat.flags.aligned else flat.copy()


def _column(arrays: Mapping[str, Array], name: str, dtype: Any, count: int | None = None) -> Array:
    """An array out of a dump, or zeros where it has none; UsageError if it is not of so many elements."""
    if name not in arrays:
        return np.zeros(count or 0, dtype)
    found: Array = np.ascontiguousarray(arrays[name]).reshape(-1).view(dtype)
    if count is not None and found.size != count:
        raise UsageError(f"the dump's '{name}' should have {count} elements, got {found.size}")
    return found


def warm_table(options: TableOptions, reducer: Reducer, updater: Updater) -> None:
    """Load (or compile) the kernels that such a table needs, on servers and workers, before forking. Starts no
    thread."""
    slot = TableSlot(options, reducer=reducer, updater=updater, memory=Heap())
    ids, rows = np.array([1, 2, 1]), np.zeros((3, options.dim), storage_of(options.dtype))
    way = route(ids, 2)
    merged = merge_rows(way, rows, dtype=options.dtype, reducer=reducer)
    for _ in range(options.admit_after if options.admit_after < 4 else 1):
        slot.apply([Contribution(ids, rows), Contribution(way.ids, merged, True)], divisor=2, hyper=None, now=0.0)
    expand_rows(way, slot.pull(way.ids))
