"""The store as its user sees it: create, push, pull, wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from windlass._wire import messages as m
from windlass.errors import ClusterError, UsageError, WindlassError
from windlass.store.reduce import Reducer, reducer_rule
from windlass.store.update import Updater, updater_rule
from windlass.trace.recorder import NOTHING, Tracing, check_category
from windlass.trace.spans import Category
from windlass.types import (
    MANAGER,
    Array,
    Consistency,
    Generation,
    KeyId,
    KeySpec,
    Role,
    Sequential,
)
from windlass.worker import checkpoint
from windlass.worker.arguments import check_declaration, items_of, numbers_of, outs_of, tasks_of
from windlass.worker.arrays import is_finite, look, wrap
from windlass.worker.client import Client
from windlass.worker.entry import Entry
from windlass.worker.landing import Landing
from windlass.worker.ops import KeyInfo, Op
from windlass.worker.options import StoreOptions
from windlass.worker.split import Pieces, check_range, split
from windlass.worker.task import Task

RESERVED = "windlass/"
BARRIER = f"{RESERVED}barrier"
EXCHANGE = f"{RESERVED}exchange"


class Store:
    """A key-value store whose writes are reduced: many workers push, everyone pulls.

    Thread-safe. `push` returns once it has copied the value; `pull` and `pushpull` block unless `wait=False`. Every
    wait ends: with the answer, with the error that the cluster gives as its reason, or after `timeout` seconds.
    """

    def __init__(self, client: Client, options: StoreOptions, local: dict[str, object] | None = None) -> None:
        self.options = options
        self._client = client
        self._local = local  # where reducers and updaters without an import path go; None where they cannot
        self._entries: dict[str, Entry] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._saver = checkpoint.Saver(client)

    # --- declaring --------------------------------------------------------------------------------------------------

    def create(
        self,
        key: str,
        value: Any,
        *,
        reduce: str | Reducer = "sum",
        update: str | Updater = "assign",
        consistency: Consistency | None = None,
        priority: int = 0,
    ) -> None:
        """Declare a key with its first value, which is rank 0's; a key that exists keeps its own.

        Every worker calls it, with the same declaration (else UsageError); it returns when the first value is in
        place. Repeating it is harmless. On a link that is too slow for everything at once, keys of higher `priority`
        travel first.
        """
        if isinstance(key, str) and key.startswith(RESERVED):
            raise UsageError(f"'{key}': names that begin with '{RESERVED}' are the store's own")
        self._create(key, value, reduce=reduce, update=update, consistency=consistency, priority=priority)

    def _create(
        self,
        key: str,
        value: Any,
        *,
        reduce: str | Reducer = "sum",
        update: str | Updater = "assign",
        consistency: Consistency | None = None,
        priority: int = 0,
    ) -> None:
        like, flat = look(value, f"create('{key}')")
        policy = consistency or self.options.consistency
        check_declaration(key, update, policy, self.options.deterministic)
        spec = KeySpec(
            name=key,
            shape=like.shape,
            dtype=like.dtype,
            reduce=reducer_rule(reduce, self._local),
            update=updater_rule(update, self._local),
            consistency=policy,
            chunk_bytes=self.options.chunk_bytes,
            priority=priority,
        )
        spec.check()
        with self._opening(key):
            declared, _ = self._client.request(MANAGER, lambda n: m.Declare(request=n, spec=spec), f"create('{key}')")
            known = self._entries.get(key)
            if known is None or known.key.id != declared.key:
                if known is not None:
                    self._client.disuse(known.key)
                self._open(declared, like.kind, flat)

    def _open(self, declared: m.Declared, kind: str, first: Array | None) -> Entry:
        """Begin to use a declared key; rank 0, or the driver, gives it its first value."""
        name = declared.spec.name
        key = KeyInfo(declared.key, declared.spec, list(declared.chains))
        self._client.use(key, Generation(declared.term, declared.number))
        lost = self._client.state.lost_range(key)
        if lost is not None:
            raise lost
        entry = Entry(key, kind, self._client.hub)
        if first is not None and (self.is_driver or self._client.state.is_lowest):
            self._give_first(entry, first)
        if not self.is_driver:
            what = f"create('{name}'), which waits for rank 0's value,"
            while (clock := self._attach(key, what)) < 0:
                if first is None:
                    raise UsageError(f"'{name}' has no value yet; the lowest rank gives it, by create()")
                self._give_first(entry, first)
            key.clock = key.since = clock
            for shard in range(1, len(key.chains)):
                self._client.request(
                    (key, shard),
                    lambda n, shard=shard: m.Attach(request=n, key=key.id, shard=shard, clock=key.since),  # type: ignore[misc]
                    f"create('{name}')",
                )
        self._entries[name] = entry
        return entry

    def _attach(self, key: KeyInfo, what: str) -> int:
        done, _ = self._client.request((key, 0), lambda n: m.Attach(request=n, key=key.id, shard=0), what)
        return int(done.detail)

    def _give_first(self, entry: Entry, first: Array) -> None:
        """Give the key its first value; the keeper last: when it has its part, everybody has."""
        key = entry.key
        for shard in reversed(key.whole):
            self._give(entry, shard, first, 0, m.Init, f"the first value of '{key.spec.name}'")

    def _give(
        self, entry: Entry, shard: int, flat: Array, lo: int, kind: Callable[..., m.AnyMessage], what: str
    ) -> None:
        """Hand a shard its pieces of an array that begins at element lo, one message for each; one without any if
        it holds none, so that it knows. Blocks."""
        pieces = split(entry.key, lo, lo + flat.size)[shard]
        single: list[tuple[m.Piece, ...]] = [(piece,) for piece in pieces]
        for wanted in single or [()]:
            parts, owned = entry.parts(flat, lo, {shard: wanted}, may_borrow=True)
            [(_, blocks)] = parts[shard]
            self._client.request(
                (entry.key, shard),
                lambda n, wanted=wanted: kind(request=n, key=entry.key.id, shard=shard, pieces=wanted),  # type: ignore[misc]
                what,
                data=blocks,
            )
            for block in owned:
                self._client.hub.memory.free(block)

    def delete(self, key: str) -> None:
        """Forget a key, for everybody. Deleting what does not exist is harmless."""
        known = self._entries.pop(key, None)
        key_id = known.key.id if known is not None else KeyId(0)
        if known is not None:
            self._client.disuse(known.key)
        self._client.request(MANAGER, lambda n: m.Forget(request=n, name=key, key=key_id), f"delete('{key}')")

    def _entry(self, key: str) -> Entry:
        """The key, ready to be used. A push on it that failed, and that nobody waited for, is raised here."""
        entry = self._entries.get(key)
        if entry is not None and entry.failed:
            self.raise_unseen(entry)
        if entry is None:
            if not isinstance(key, str):
                raise UsageError(f"a key is a string, got {type(key).__name__}")
            with self._opening(key):
                entry = self._entries.get(key)
                if entry is None:
                    what = f"looking for '{key}'"
                    declared, _ = self._client.request(MANAGER, lambda n: m.Lookup(request=n, name=key), what)
                    entry = self._open(declared, "numpy", None)
        return entry

    def raise_unseen(self, *entries: Entry) -> None:
        """Raise the error of a push that failed and that nobody has waited for, of these keys or of any."""
        for entry in entries or list(self._entries.values()):
            failed, entry.failed = entry.failed, []
            for task in failed:
                if not task.is_seen and task.error is not None:
                    task.is_seen = True
                    task.error.add_note(f"raised by an earlier {task.text} that nobody waited for")
                    raise task.error

    def _opening(self, key: str) -> threading.Lock:
        """Held while a key is opened: two threads that both began to count its pushes would take each other's for
        ones sent twice."""
        return self._locks.setdefault(key, threading.Lock())

    # --- push and pull ----------------------------------------------------------------------------------------------

    def push(
        self,
        key: str | Mapping[str, Any],
        value: Any = None,
        *,
        range: tuple[int, int] | None = None,
        after: Iterable[Task] = (),
        hyper: Mapping[str, float] | None = None,
    ) -> Task:
        """Contribute a value, or many: `push({key: value, ...})`. Returns at once; the task is done when the push is
        applied. `range=(lo, hi)` gives elements lo to hi of the flattened value. `hyper` sets the updater's numbers
        for this round, e.g. {"lr": 0.01}; the members of a round must agree on it."""
        items = items_of(key, value)
        task = Task(self._client, "push", items)
        ops = [self._push_op(task, self._entry(name), given, range, hyper) for name, given in items.items()]
        waits = tasks_of(after)
        for op in ops:
            op.after = waits
        self._client.submit(*ops)
        return task

    def pull(
        self,
        key: str | Sequence[str],
        *,
        range: tuple[int, int] | None = None,
        out: Any = None,
        view: bool = False,
        after: Iterable[Task] = (),
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Read a value, as the key's consistency allows, after all own pushes; `pull([k1, k2])` gives a list.

        The result is of the kind that `create` was given, in `out` if there is one, else in memory that nobody
        references any more. `view=True` (sequential keys) gives a read-only array, where possible the servers' own
        memory, valid until the own next push on the key. `wait=False` gives the task instead.
        """
        if not isinstance(key, str | Sequence):
            raise UsageError(f"a key is a string, got {type(key).__name__}")
        names = [key] if isinstance(key, str) else list(key)
        outs = [out] if isinstance(key, str) else outs_of(out, names)
        task = Task(self._client, "pull", names)
        waits = tasks_of(after)
        landings: list[Landing] = []
        ops: list[Op] = []
        for name, one_out in zip(names, outs, strict=True):
            entry = self._entry(name)
            span = check_range(entry.key, range)
            landing = Landing(entry, span, is_range=range is not None, out=one_out, view=view)
            landing.task = task
            landings.append(landing)
            op = Op(entry.key, None, split(entry.key, *span), landing.deliver, landing.finish, None, waits, owner=task)
            op.reads_newest, op.abandon = self.is_driver, landing.abandon
            ops.append(op)
        is_one = isinstance(key, str)
        task.shape_result(landings[0].take if is_one else lambda: [landing.result for landing in landings])
        return self._go(task, ops, wait, timeout)

    def pushpull(
        self,
        key: str | Mapping[str, Any],
        value: Any = None,
        *,
        range: tuple[int, int] | None = None,
        hyper: Mapping[str, float] | None = None,
        out: Any = None,
        view: bool = False,
        after: Iterable[Task] = (),
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Push, and pull the same range, in one round trip. `pushpull({key: value, ...})` gives a dictionary; `out`
        is then one, too."""
        items = items_of(key, value)
        task = Task(self._client, "pushpull", items)
        landings: dict[str, Landing] = {}
        ops: list[Op] = []
        is_one = isinstance(key, str)
        for name, given in items.items():
            entry = self._entry(name)
            one_out = out if is_one else (out or {}).get(name)
            landing = landings[name] = Landing(
                entry, check_range(entry.key, range), is_range=range is not None, out=one_out, view=view
            )
            landing.task = task
            op = self._push_op(task, entry, given, range, hyper, landing, may_borrow=wait)
            op.after = tasks_of(after)
            ops.append(op)
        if is_one:
            task.shape_result(landing.take)
        else:
            task.shape_result(lambda: {name: landing.result for name, landing in landings.items()})
        return self._go(task, ops, wait, timeout)

    def _go(self, task: Task, ops: list[Op], wait: bool, timeout: float | None) -> Any:
        self._client.submit(*ops, until=task if wait else None, timeout=timeout)
        return task.wait(timeout) if wait else task

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
        pieces = split(entry.key, lo, hi)
        recorder = self._client.recorder
        began = recorder.now() if recorder is not None else 0
        parts, owned = entry.parts(flat, lo, pieces, may_borrow=may_borrow)
        if recorder is not None and owned:
            recorder.note(Category.COPY, f"copy {entry.key.spec.name}", began, {"bytes": flat.nbytes})
        done = task.finish if landing is None else landing.finish

        def free_and_finish(error: WindlassError | None) -> None:
            # Every server has answered, if only to refuse; after any other failure this memory may still be read.
            if error is None or isinstance(error, UsageError):
                for block in owned:
                    self._client.hub.memory.free(block)
            done(error)
            if error is not None:
                entry.failed.append(task)

        op = Op(entry.key, parts, None, None, free_and_finish, owner=task)
        if landing is not None:
            op.pull, op.deliver, op.abandon = pieces, landing.deliver, landing.abandon
        if hyper:
            op.hyper = numbers_of(hyper)
        return op

    def _checked(self, entry: Entry, value: Any, lo: int, hi: int, *, is_range: bool) -> Array:
        spec = entry.key.spec
        if value is None:
            raise UsageError(f"push('{spec.name}'): expected a value, got None; has backward() run?")
        like, flat = look(value, f"push('{spec.name}')")
        expected = (hi - lo,) if is_range else spec.shape
        if like.shape != expected and not (is_range and flat.size == hi - lo):
            raise UsageError(f"push('{spec.name}'): expected shape {expected}, got {like.shape}")
        if like.dtype != spec.dtype and not (
            like.kind == "numpy" and spec.dtype == "bfloat16" and like.dtype == "uint16"
        ):
            raise UsageError(f"push('{spec.name}'): expected dtype {spec.dtype}, got {like.dtype}")
        if self.options.check_finite and not is_finite(flat, spec.dtype):
            where = int(np.flatnonzero(~np.isfinite(flat))[0]) if flat.dtype.kind == "f" else 0
            raise UsageError(
                f"push('{spec.name}'): expected finite values, got NaN or infinity (first at {lo + where})"
            )
        return flat

    # --- memory and waiting -----------------------------------------------------------------------------------------

    def buffer(self, key: str) -> Any:
        """An array of the key's shape in memory shared with the servers: what is pushed from it is not copied. After
        `push` it is the store's until the task is done; calls give two arrays by turns."""
        entry = self._entry(key)
        return wrap(entry.buffer(), entry.like)

    def wait(self, *tasks: Task, timeout: float | None = None) -> None:
        """Wait for all of these; raises the first one's error."""
        deadline = time.monotonic() + (self.options.timeout if timeout is None else timeout)
        for task in tasks:
            task.wait(max(0.0, deadline - time.monotonic()))

    def assign(self, key: str, value: Any, *, range: tuple[int, int] | None = None) -> None:
        """Only the driver's handle, `cluster.store()`, can set a value between two rounds."""
        raise UsageError("only the driver can assign: a worker's writes are pushes")

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every worker has come here: an empty round on a key of its own."""
        if BARRIER not in self._entries:
            self._create(BARRIER, np.empty(0, np.float32), consistency=Sequential())
        self.push(BARRIER, np.empty(0, np.float32)).wait(timeout)

    def exchange(self, mine: bytes, timeout: float | None = None) -> list[bytes]:
        """Every worker's bytes, in rank order: a round on a key of its own, for what workers must tell each other
        before they can meet elsewhere. All workers call it, with equally many bytes."""
        state = self._client.state
        count, missing = self.num_workers, state.empty_seats()
        if missing:
            raise ClusterError(f"{', '.join(missing)} left: what needs every worker cannot be begun; start again")
        key, size = f"{EXCHANGE}-{count}-{len(mine)}", 1 + len(mine)
        if key not in self._entries:
            self._create(key, np.zeros(count * size, np.float32), consistency=Sequential())
        mark = 1 + self._entries[key].key.clock % 255  # of this round: who leaves before it left another
        # Each byte as a float32 number: every server has those kernels ready, others take it seconds to compile.
        said = np.frombuffer(bytes([mark]) + mine, np.uint8).astype(np.float32)
        self.push(key, said, range=(self.rank * size, (self.rank + 1) * size)).wait(timeout)
        found = self.pull(key, timeout=timeout).astype(np.uint8).tobytes()
        gone = [f"worker-{rank}" for rank in range(count) if found[rank * size] != mark]
        if gone:
            raise ClusterError(f"{', '.join(gone)} left before it came to where every worker is needed; start again")
        return [found[lo + 1 : lo + size] for lo in range(0, len(found), size)]

    # --- looking ----------------------------------------------------------------------------------------------------

    def trace(self, name: str, *, category: str = "compute", **args: Any) -> Tracing:
        """Show in the trace what this thread does inside the block: `with store.trace("forward"): ...`. Category
        "compute" is what communication can hide behind, "step" marks a step; any other is only shown, as `args` are.
        Does nothing, in half a microsecond, where nothing is traced."""
        check_category(category)
        recorder = self._client.recorder
        return NOTHING if recorder is None else recorder.trace(name, category, args)

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and this process's own."""
        return self._client.is_usable

    @property
    def is_driver(self) -> bool:
        return self._client.state.role is Role.DRIVER

    @property
    def rank(self) -> int:
        """This worker's seat among the workers."""
        return self._client.state.rank

    @property
    def num_workers(self) -> int:
        return self._client.state.num_workers

    @property
    def is_lowest(self) -> bool:
        """Whether no live worker has a lower rank: what one does for all is this one's to do."""
        return self._client.state.is_lowest

    @property
    def finished_ranks(self) -> frozenset[int]:
        """The workers whose function of this `cluster.run` has returned, as far as it is known here."""
        return self._client.finished_ranks

    def keys(self) -> list[str]:
        """The names of all keys, whoever made them."""
        return sorted(name for name in self._manager_says()["keys"] if not name.startswith(RESERVED))

    def version(self, key: str) -> int:
        """How many updates the key has taken; does not wait for anybody's push."""
        entry = self._entry(key)
        task = Task(self._client, "version", (key,))
        landing = Landing(entry, (0, 0), is_range=True)
        landing.task = task
        pieces: Pieces = {0: ((0, 0, 0),)}
        op = Op(entry.key, None, pieces, landing.deliver, landing.finish, reads_newest=True, owner=task)
        self._go(task, [op], True, None)
        return landing.version

    def status(self) -> dict[str, Any]:
        """The whole cluster as plain data: nodes, generation, keys, and what each server holds and waits for."""
        said = self._manager_says()
        said["servers"] = {
            node.name: self._client.request(
                node.incarnation, lambda n: m.Inspect(request=n), f"the status of {node.name}"
            )[0].detail
            for node in self._client.state.nodes.values()
            if node.role is Role.SERVER
        }
        return said

    def _manager_says(self) -> dict[str, Any]:
        answer, _ = self._client.request(MANAGER, lambda n: m.Inspect(request=n), "the manager's status")
        detail: dict[str, Any] = answer.detail
        return detail

    def save(self, path: str | PathLike[str], *, name: str | None = None, keep: int | None = None) -> str:
        """Write every key, with its optimizer state, as a new checkpoint in the directory `path`; gives its path. One
        worker calls it, or the driver; the others go on pushing.

        Sequential keys that are pushed together are saved after one and the same round. A bounded or eventual key is
        saved with every push that was acknowledged before the call.

        A path is local or what else fsspec knows (`s3://...`). The checkpoint is whole or it is not there. It is called
        step-000042 after 42 rounds, unless it gets a name; one of the same name is replaced. `keep=3` then removes
        all but the three newest numbered ones.
        """
        return self._saver.save(lambda: self._manager_says()["keys"], path, name=name, keep=keep)

    def load(self, path: str | PathLike[str]) -> None:
        """Give the keys of this store the values and optimizer state they had. Each must be declared as it was.

        `path` is a checkpoint, or a directory of them, whose newest is meant. Where bytes are not as they were written
        it raises DamagedCheckpoint; keys loaded before it came upon them keep what they got.
        """
        checkpoint.load(self._client, path)

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything. Safe to repeat; any later call is a UsageError."""
        self._client.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UsageError("a store cannot be pickled; the function given to run() gets one, a script has wl.connect()")

    def __repr__(self) -> str:
        state = self._client.state
        who = "driver" if self.is_driver else f"worker-{state.rank}"
        what = "closed" if self._client.is_closed else f"{len(state.ops)} in flight"
        return f"<Store {who} generation={state.generation} | {what}>"
