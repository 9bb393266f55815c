"""What a caller gives, checked, and made into the ops that carry it: of dense keys and of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from windlass.errors import UsageError, WindlassError
from windlass.trace.spans import Category
from windlass.types import Array, Block
from windlass.worker.arrays import find_not_finite, look
from windlass.worker.entry import Entry
from windlass.worker.filtering import Encoding, unfiltered
from windlass.worker.landing import Landing
from windlass.worker.ops import Op
from windlass.worker.packing import ids_of
from windlass.worker.reserving import Room, needs_room
from windlass.worker.rows import RowLanding, TableEntry
from windlass.worker.split import check_range, split
from windlass.worker.tables import Tables
from windlass.worker.task import Task


class Making(Tables):
    """The part of a store that makes its calls into ops. Each raises UsageError for what does not fit; nothing has left
    then."""

    def _push_op(
        self,
        task: Task,
        entry: Entry,
        value: Any,
        range: tuple[int, int] | None,
        hyper: Mapping[str, float] | None,
        landing: Landing | None = None,
        *,
        may_borrow: bool = False,
    ) -> Op:
        """A push of one key; with a landing, the pull of the same range rides on it."""
        lo, hi = check_range(entry.key, range)
        flat = self._checked(entry, value, lo, hi, is_range=range is not None)
        numbers = entry.hyper(hyper)
        if entry.is_resting:
            self._level(entry)
        pieces = split(entry.key, lo, hi)
        recorder = self._client.recorder
        began = recorder.now() if recorder is not None else 0
        filtering = entry.key.filtering
        owned: list[Block] = []
        if filtering is not None:
            filtering.check(flat)
            parts = unfiltered(pieces)
        else:
            parts, owned = entry.parts(flat, lo, pieces, may_borrow=may_borrow)
        if recorder is not None and owned:
            recorder.note(Category.COPY, f"copy {entry.key.spec.name}", began, {"bytes": flat.nbytes})
        done = task.finish if landing is None else landing.finish
        op = Op(entry.key, parts, None, None, self._freeing(owned, done, entry, task), owner=task)
        if filtering is not None:
            op.encode = Encoding(partial(filtering.dense, lo=lo, pieces=pieces), flat, owned)
        if landing is not None:
            op.pull, op.deliver, op.abandon = pieces, landing.deliver, landing.abandon
        op.hyper = numbers
        return op

    def _freeing(
        self, owned: list[Block], done: Callable[[WindlassError | None], None], entry: Entry, task: Task
    ) -> Callable[[WindlassError | None], None]:
        """What ends a push: its memory is ours again, and if nobody hears of its error, the next call does."""

        def free_and_finish(error: WindlassError | None) -> None:
            # Every server has answered, if only to refuse; after any other failure this memory may still be read.
            if error is None or isinstance(error, UsageError):
                for block in owned:
                    self._client.hub.memory.free(block)
            done(error)
            if error is not None:
                entry.failed.append(task)

        return free_and_finish

    def _push_rows_op(
        self,
        task: Task,
        entry: TableEntry,
        value: Any,
        ids: Any,
        hyper: Mapping[str, float] | None,
        *,
        landing: RowLanding | None = None,
    ) -> Op:
        """A push to one table; with a landing, the pull of the same ids rides on it."""
        if value is None:
            raise UsageError(f"push('{entry.name}'): expected rows, got None; has backward() run?")
        like, flat = entry.ids(ids, "push")
        rows = entry.rows(value, like, flat, check_finite=self.options.check_finite)
        numbers = entry.hyper(hyper)
        if entry.is_resting:
            self._level(entry)
        way = entry.route(flat)
        pieces = entry.pieces(way)
        filtering = entry.key.filtering
        owned: list[Block] = []
        if filtering is not None:
            merged = entry.merged(way, rows)
            filtering.check(merged)
            parts = unfiltered(pieces)
        else:
            packing = entry.packed(way, pieces, rows)
            owned, parts = packing.owned, entry.grouped(pieces, packing.blocks)
        done = task.finish if landing is None else landing.finish
        op = Op(entry.key, parts, None, None, self._freeing(owned, done, entry, task), owner=task)
        if filtering is not None:
            op.encode = Encoding(partial(filtering.rows, way, pieces), merged, owned)
        else:
            op.packing, op.finish = packing, packing.ending(op.finish)
        if landing is not None:
            op.pull, op.deliver, op.abandon = pieces, landing.deliver, landing.abandon
            op.ids = ids_of(packing.blocks, pieces)
        if needs_room(entry.key):
            if filtering is not None:  # what it leaves out is of these ids
                wanted = entry.wanted(way, pieces)
                owned += wanted.owned
                ids_of_shards = wanted.blocks
            else:
                ids_of_shards = ids_of(packing.rest().blocks, pieces)
            op.room = Room(entry.key, pieces, ids_of_shards)
        op.hyper = numbers
        return op

    def _pushpull_rows_ops(
        self, task: Task, entry: TableEntry, value: Any, ids: Any, hyper: Mapping[str, float] | None, out: Any
    ) -> tuple[Op, list[Op], RowLanding]:
        """A push, with the pull riding on it; where filters leave rows out, or only name the ids, it follows."""
        if entry.key.filtering is None:
            like, flat = entry.ids(ids, "pushpull")
            landing = RowLanding(entry, entry.route(flat), like, out)
            landing.task = task
            return self._push_rows_op(task, entry, value, ids, hyper, landing=landing), [], landing
        op = self._push_rows_op(task, entry, value, ids, hyper)
        pull, landing = self._pull_rows_op(task, entry, ids, out)
        task.expect_more()
        return op, [pull], landing

    def _pull_rows_op(self, task: Task, entry: TableEntry, ids: Any, out: Any) -> tuple[Op, RowLanding]:
        like, flat = entry.ids(ids, "pull")
        way = entry.route(flat)
        landing = RowLanding(entry, way, like, out)
        landing.task = task
        pieces = entry.pieces(way)
        wanted = entry.wanted(way, pieces)

        def free_and_finish(error: WindlassError | None) -> None:
            if error is None or isinstance(error, UsageError):
                for block in wanted.owned:
                    self._client.hub.memory.free(block)
            landing.finish(error)

        op = Op(entry.key, None, pieces, landing.deliver, free_and_finish, owner=task)
        op.ids, op.reads_newest, op.abandon = wanted.blocks, self.is_driver, landing.abandon
        if entry.key.filtering is not None:
            op.digests, op.known = entry.key.filtering.name_ids(way, pieces)
        return op, landing

    def _checked(
        self, entry: Entry, value: Any, lo: int, hi: int, *, is_range: bool, verb: str = "push"
    ) -> Array:
        spec = entry.key.spec
        what = f"{verb}('{spec.name}')"
        if value is None:
            hint = "; has backward() run?" if verb == "push" else ""
            raise UsageError(f"{what}: expected a value, got None{hint}")
        like, flat = look(value, what)
        expected = (hi - lo,) if is_range else spec.shape
        if like.shape != expected and not (is_range and flat.size == hi - lo):
            raise UsageError(f"{what}: expected shape {expected}, got {like.shape}")
        if like.dtype != spec.dtype and not (
            like.kind == "numpy" and spec.dtype == "bfloat16" and like.dtype == "uint16"
        ):
            raise UsageError(f"{what}: expected dtype {spec.dtype}, got {like.dtype}")
        where = find_not_finite(flat, spec.dtype) if self.options.check_finite else None
        if where is not None:
            raise UsageError(f"{what}: expected finite values, got NaN or infinity (first at {lo + where})")
        return flat
