"""The store as its user sees it: create, push, pull, wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from windlass._wire import messages as m
from windlass.errors import ClusterError, LostRange, TimeoutError, UsageError, options_checked
from windlass.trace.recorder import NOTHING, Tracing, check_category
from windlass.types import MANAGER, RESERVED, Block, Role, Sequential
from windlass.worker import checkpoint
from windlass.worker.arguments import (
    check_ahead,
    check_batches,
    ids_by_key,
    items_of,
    no_ids,
    no_range,
    outs_of,
    tasks_of,
)
from windlass.worker.arrays import wrap
from windlass.worker.batches import Batch, Batches, Leased, lease_of, workload_name
from windlass.worker.client import Client
from windlass.worker.landing import Landing
from windlass.worker.making import Making
from windlass.worker.ops import Op, give_up
from windlass.worker.options import StoreOptions
from windlass.worker.rows import RowLanding, TableEntry
from windlass.worker.split import Pieces, check_range, split
from windlass.worker.task import Task

BARRIER = f"{RESERVED}barrier"
EXCHANGE = f"{RESERVED}exchange"


class Store(Making):
    """A key-value store whose writes are reduced: many workers push, everyone pulls.

    Thread-safe. `push` returns once it has copied the value; `pull` and `pushpull` block unless `wait=False`. Every
    wait ends: with the answer, with the error that the cluster gives as its reason, or after `timeout` seconds.
    """

    def __init__(self, client: Client, options: StoreOptions, local: dict[str, object] | None = None) -> None:
        super().__init__(client, options, local)
        self._leased = Leased()
        self._came: Task | None = None  # to a barrier, where not everybody has yet
        self.num_barriers = 0  # passed before the run, and of a later worker those that it has passed; -1: unknown
        self._saver = checkpoint.Saver(client)

    # --- push and pull ----------------------------------------------------------------------------------------------

    def push(
        self,
        key: str | Mapping[str, Any],
        value: Any = None,
        *,
        ids: Any = None,
        range: tuple[int, int] | None = None,
        after: Iterable[Task] = (),
        hyper: Mapping[str, float] | None = None,
        completes: Batch | Sequence[Batch] | None = None,
    ) -> Task:
        """Contribute a value, or many: `push({key: value, ...})`. Returns at once; the task is done when the push is
        applied. `range=(lo, hi)` gives elements lo to hi of the flattened value. To a table, the value is a row for
        each of `ids`, and those of the same id are reduced first; with many keys, `ids` is a mapping, too.

        `hyper` sets the updater's numbers for this round, e.g. {"lr": 0.01}; the members of a round must agree on it.
        With `completes=batch`, of `batches`, it counts only where no other push that completes the same batch has been
        counted."""
        items, wanted = items_of(key, value), ids_by_key(key, ids)
        task = Task(self._client, "push", items)
        lease = lease_of(completes)
        ops: list[Op] = []
        try:
            for name, given in items.items():
                entry = self._entry(name)
                if isinstance(entry, TableEntry):
                    no_range(name, range)
                    ops.append(self._push_rows_op(task, entry, given, wanted.get(name), hyper))
                else:
                    no_ids(name, wanted)
                    ops.append(self._push_op(task, entry, given, range, hyper))
            waits = tasks_of(after)
        except BaseException:
            give_up(task, ops)
            raise
        for op in ops:
            op.after, op.completes = waits, lease
        if completes is not None:
            self._leased.note(completes, task, list(items))
        self._client.submit(*ops)
        return task

    def pull(
        self,
        key: str | Sequence[str],
        *,
        ids: Any = None,
        range: tuple[int, int] | None = None,
        out: Any = None,
        view: bool = False,
        after: Iterable[Task] = (),
        ahead: int = 0,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Any:
        """Read a value, as the key's consistency allows, after all own pushes; `pull([k1, k2])` gives a list.

        The result is of the kind that `create` was given, in `out` if there is one, else in memory that nobody
        references any more. `view=True` (sequential keys) gives a read-only array, where possible the servers' own
        memory, valid until the own next push on the key. `wait=False` gives the task instead.

        Of a table, it is a row for each of `ids` (a mapping, with many keys), of their kind; what nobody has pushed to
        is read as it would start. `range=(lo, hi)` gives (ids, rows) of those ids that have a row, and always waits.

        `ahead=n` is for reading early what is used after n more own pushes: it misses those, and of the others' no more
        than a pull at that time might. A bounded key must allow for n; a sequential one allows none.
        """
        if not isinstance(key, str | Sequence):
            raise UsageError(f"a key is a string, got {type(key).__name__}")
        if isinstance(key, str) and range is not None and isinstance(entry := self._entry(key), TableEntry):
            if ids is not None:
                raise UsageError(f"pull('{key}'): range= and ids= exclude each other")
            return self._pull_span(entry, range)
        names = [key] if isinstance(key, str) else list(key)
        wanted = ids_by_key(key, ids)
        outs = [out] if isinstance(key, str) else outs_of(out, names)
        task = Task(self._client, "pull", names)
        waits = tasks_of(after)
        landings: list[Landing | RowLanding] = []
        ops: list[Op] = []
        for name, one_out in zip(names, outs, strict=True):
            entry = self._entry(name)
            if isinstance(entry, TableEntry):
                no_range(name, range)
                op, rows = self._pull_rows_op(task, entry, wanted.get(name), one_out)
                op.after = waits
                landings.append(rows)
                ops.append(op)
                continue
            no_ids(name, wanted)
            span = check_range(entry.key, range)
            landing = Landing(entry, span, is_range=range is not None, out=one_out, view=view)
            landing.task = task
            landings.append(landing)
            op = Op(entry.key, None, split(entry.key, *span), landing.deliver, landing.finish, None, waits, owner=task)
            op.reads_newest, op.abandon = self.is_driver, landing.abandon
            ops.append(op)
        if ahead:
            for op in ops:
                check_ahead(op.key.spec, ahead)
                op.ahead = ahead
        is_one = isinstance(key, str)
        task.shape_result(landings[0].take if is_one else lambda: [landing.result for landing in landings])
        return self._go(task, ops, wait, timeout)

    def pushpull(
        self,
        key: str | Mapping[str, Any],
        value: Any = None,
        *,
        ids: Any = None,
        range: tuple[int, int] | None = None,
        hyper: Mapping[str, float] | None = None,
        out: Any = None,
        view: bool = False,
        after: Iterable[Task] = (),
        wait: bool = True,
        timeout: float | None = None,
        completes: Batch | Sequence[Batch] | None = None,
    ) -> Any:
        """Push, and pull the same range, or the same ids, in one round trip. `pushpull({key: value, ...})` gives a
        dictionary; `out` is then one, too."""
        items, wanted = items_of(key, value), ids_by_key(key, ids)
        task = Task(self._client, "pushpull", items)
        lease = lease_of(completes)
        landings: dict[str, Landing | RowLanding] = {}
        pulls: list[Op] = []
        ops: list[Op] = []
        is_one = isinstance(key, str)
        try:
            for name, given in items.items():
                entry = self._entry(name)
                one_out = out if is_one else (out or {}).get(name)
                if isinstance(entry, TableEntry):
                    no_range(name, range)
                    op, pull, rows = self._pushpull_rows_ops(task, entry, given, wanted.get(name), hyper, one_out)
                    landings[name] = rows
                    pulls += pull
                else:
                    no_ids(name, wanted)
                    landing = landings[name] = Landing(
                        entry, check_range(entry.key, range), is_range=range is not None, out=one_out, view=view
                    )
                    landing.task = task
                    op = self._push_op(task, entry, given, range, hyper, landing, may_borrow=wait)
                ops.append(op)
                op.after, op.completes = tasks_of(after), lease
        except BaseException:
            give_up(task, ops)
            raise
        if completes is not None:
            self._leased.note(completes, task, list(items))
        if is_one:
            task.shape_result(landings[key].take)  # type: ignore[index]
        else:
            task.shape_result(lambda: {name: landing.result for name, landing in landings.items()})
        return self._go(task, ops + pulls, wait, timeout)

    def _go(self, task: Task, ops: list[Op], wait: bool, timeout: float | None) -> Any:
        self._client.submit(*ops, until=task if wait else None, timeout=timeout)
        return task.wait(timeout) if wait else task

    # --- leased work ------------------------------------------------------------------------------------------------

    @options_checked
    def batches(
        self,
        dataset_size: int,
        *,
        batch_size: int,
        epochs: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        global_batch: int | None = None,
        name: str | None = None,
    ) -> Batches:
        """Work, leased batch by batch: `for batch in store.batches(len(X), batch_size=64, epochs=3): ...`. Iterates
        until all of it is done, by whomever.

        Every worker calls it alike. A batch goes to whoever asks next. Push with `completes=batch`, and every sample
        counts exactly once an epoch, on every element of every key, whatever happens to workers and servers: what a
        worker held that died is given to another, and what two have done counts once.

        With `global_batch`, a multiple of batch_size, all workers together take so many samples for a step, however
        many workers there are: each gets some batches of it, and pushes at the last one (`batch.is_last`) the sum of
        its gradients, each times `batch.weight`.

        Work with a `name` is the same work wherever it is named: what is done of it is done, in a later run and after
        `load`, where what the checkpoint counts is done. Without one each call in each run is work of its own.
        """
        if self.is_driver:
            raise UsageError("the driver is no worker and takes no batches; call it in the function given to run()")
        step_batches = check_batches(dataset_size, batch_size, epochs, global_batch)
        workload = m.Workload(
            name=workload_name(name, self._leased.run, len(self._leased.workloads)),
            size=dataset_size,
            batch_size=batch_size,
            epochs=epochs,
            step_batches=step_batches,
        )
        batches = Batches(self, workload, shuffle=shuffle, seed=seed)
        self._leased.workloads.append(batches)
        return batches

    @property
    def begun_batches(self) -> list[Batch]:
        """Batches that this worker has been given and has not pushed for: what the next step completes."""
        return self._leased.begun

    # --- memory and waiting -----------------------------------------------------------------------------------------

    def buffer(self, key: str) -> Any:
        """An array of the key's shape in memory shared with the servers: what is pushed from it is not copied. After
        `push` it is the store's until the task is done; calls give two arrays by turns. Of a key of jax arrays, which
        cannot be filled, it is numpy's."""
        entry = self._entry(key)
        if isinstance(entry, TableEntry):
            raise UsageError(f"'{key}' is a table: only dense keys have buffers")
        return wrap(entry.buffer(), entry.like.fillable)

    def wait(self, *tasks: Task, timeout: float | None = None) -> None:
        """Wait for all of these; raises the first one's error."""
        deadline = time.monotonic() + (self.options.timeout if timeout is None else timeout)
        for task in tasks:
            task.wait(max(0.0, deadline - time.monotonic()))

    def assign(self, key: str, value: Any, *, ids: Any = None, range: tuple[int, int] | None = None) -> None:
        """Only the driver's handle, `cluster.store()`, and an embedded store can set a value between two rounds."""
        raise UsageError("only the driver can assign: a worker's writes are pushes")

    def barrier(self, timeout: float | None = None) -> None:
        """Return when every worker has come here: an empty round on a key of its own. Who came to a run under way goes
        past those barriers of the run at once that the others had passed before. After a TimeoutError the next call
        goes on with the same barrier."""
        if BARRIER not in self._entries:
            self._create(BARRIER, np.empty(0, np.float32), consistency=Sequential())
        if self._client.state.is_late and 0 <= self.num_barriers < self._entries[BARRIER].key.since:
            self.num_barriers += 1
            return
        came, self._came = self._came or self.push(BARRIER, np.empty(0, np.float32)), None
        try:
            came.wait(timeout)
        except TimeoutError:
            self._came = came
            raise

    def exchange(self, mine: bytes, timeout: float | None = None) -> list[bytes]:
        """Every worker's bytes, in rank order: a round on a key of its own, for what workers must tell each other
        before they can meet elsewhere. All workers call it, with equally many bytes."""
        state = self._client.state
        if state.is_late:
            raise UsageError(
                f"worker-{self.rank} came to a run under way: what needs every worker at its beginning, a Group or an "
                "optimizer with mode='allreduce', it cannot take part in; push, pull and mode='store' with "
                "store.batches() it can"
            )
        count, missing = state.num_founders, state.empty_seats()
        if missing:
            raise ClusterError(f"{', '.join(missing)} left: what needs every worker cannot be begun; start again")
        key, size = f"{EXCHANGE}-{count}-{len(mine)}", 1 + len(mine)
        if key not in self._entries:
            self._create(key, np.zeros(count * size, np.float32), consistency=Sequential())
        # Twice, if need be: in the first round what another said may be counted, too, who had this rank in a run that
        # failed. All find the same, so all try again.
        for _ in range(2):
            mark = 1 + self._entries[key].key.clock % 255  # of this round: who leaves before it left another
            # Each byte as a float32 number: every server has those kernels ready, others take it seconds to compile.
            said = np.frombuffer(bytes([mark]) + mine, np.uint8).astype(np.float32)
            self.push(key, said, range=(self.rank * size, (self.rank + 1) * size)).wait(timeout)
            found = self.pull(key, timeout=timeout).astype(np.uint8).tobytes()
            gone = [f"worker-{rank}" for rank in range(count) if found[rank * size] != mark]
            if not gone:
                return [found[lo + 1 : lo + size] for lo in range(0, len(found), size)]
        raise ClusterError(f"{', '.join(gone)} left before it came to where every worker is needed; start again")

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
        """The workers whose function of this `cluster.run` has returned, as far as it is known here. One may have
        returned for what a generation told it, that a server is lost, say: it is not named before that is known here,
        too, so that the cluster's reason is given first."""
        known = self._client.state.generation
        return frozenset(rank for rank, generation in self._client.finished.items() if generation <= known)

    @property
    def _loss(self) -> LostRange | None:
        """A range that no living server holds, of a key that is used here; if there is none, None."""
        return self._client.state.loss

    def keys(self) -> list[str]:
        """The names of all keys of this namespace, whoever made them."""
        return [name for name in self._every_name() if not name.startswith(RESERVED)]

    def _every_name(self) -> list[str]:
        keys = self._manager_says()["keys"].values()
        return sorted(key["name"] for key in keys if key["namespace"] == self.namespace)

    def version(self, key: str) -> int:
        """How many updates the key has taken; does not wait for anybody's push."""
        entry = self._entry(key)
        task = Task(self._client, "version", (key,))
        landing = Landing(entry, (0, 0), is_range=True)
        landing.task = task
        pieces: Pieces = {0: ((0, 0, 0),)}
        op = Op(entry.key, None, pieces, landing.deliver, landing.finish, reads_newest=True, owner=task)
        if isinstance(entry, TableEntry):
            op.ids = {0: (Block(np.empty(0, np.uint8)),)}
        self._go(task, [op], True, None)
        return landing.version

    def status(self) -> dict[str, Any]:
        """The whole cluster as plain data: nodes, generation, keys, what each server holds and waits for, and what this
        worker's own filters have sent and kept back."""
        said = self._manager_says()
        filtered = {name: entry.key.filtering for name, entry in self._entries.items()}
        said["filters"] = {name: each.status() for name, each in filtered.items() if each is not None}
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

    @options_checked
    def save(self, path: str | PathLike[str], *, name: str | None = None, keep: int | None = None) -> str:
        """Write every key, with its optimizer state, as a new checkpoint in the directory `path`; gives its path. One
        worker calls it, or the driver; the others go on pushing.

        Sequential keys that are pushed together are saved after one and the same round. A bounded or eventual key is
        saved with every push that was acknowledged before the call.

        A path is local or what else fsspec knows (`s3://...`). The checkpoint is whole or it is not there. It is called
        step-000042 after 42 rounds, unless it gets a name; one of the same name is replaced. `keep=3` then removes
        all but the three newest numbered ones.
        """
        return self._saver.save(self._every_name, path, name=name, keep=keep)

    def load(self, path: str | PathLike[str]) -> None:
        """Give the keys of this store the values and optimizer state they had. Each must be declared as it was.

        `path` is a checkpoint, or a directory of them, whose newest is meant. Where bytes are not as they were written
        it raises DamagedCheckpoint; keys loaded before it came upon them keep what they got. Leased work that has a
        name, `batches(..., name=)`, goes on with what was not counted then.
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
