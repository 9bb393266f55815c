"""A worker that is traced: the same client, which also notes when each push and pull was under way and each wait."""

from __future__ import annotations

from typing import Any

from windlass._transport.base import Hub
from windlass.errors import WindlassError, in_words
from windlass.trace.recorder import Recorder
from windlass.trace.spans import Category, Span
from windlass.types import Bounded, Sequential
from windlass.worker.client import Answer, Client, Waitable
from windlass.worker.ops import KeyInfo, Op, Request
from windlass.worker.options import StoreOptions
from windlass.worker.state import WorkerState


def make_client(
    hub: Hub, state: WorkerState, options: StoreOptions, *, is_eager: bool, recorder: Recorder | None
) -> Client:
    """The client of a store; without a recorder, the plain one."""
    seconds = {"timeout": options.timeout, "warn_seconds": options.warn_seconds}
    if recorder is None:
        return Client(hub, state, is_eager=is_eager, **seconds)
    return TracedClient(hub, state, recorder, is_eager=is_eager, **seconds)


class TracedClient(Client):
    def __init__(self, hub: Hub, state: WorkerState, recorder: Recorder, **options: Any) -> None:
        super().__init__(hub, state, **options)
        self._recorder = recorder
        self.recorder = recorder

    def submit(self, *works: Op | Request, until: Waitable | None = None, timeout: float | None = None) -> None:
        began = self._recorder.now()
        for work in works:
            if isinstance(work, Op):
                self._follow(work, began)
        try:
            super().submit(*works, until=until, timeout=timeout)
        finally:
            if until is not None:
                self._note_wait(until, began)

    def wait(self, task: Waitable, timeout: float | None = None) -> None:
        if task.is_done:
            return
        began = self._recorder.now()
        try:
            super().wait(task, timeout)
        finally:
            self._note_wait(task, began)

    def close(self) -> None:
        super().close()
        self._recorder.close()

    def _follow(self, op: Op, began: int) -> None:
        """Have the operation noted when it is finished, by whichever thread that is."""
        finish, task = op.finish, id(op.owner)

        def note(error: WindlassError | None) -> None:
            category, name = _verb(op)
            args: dict[str, Any] = {"key": op.key.spec.name, "clock": op.clock, "bytes": _num_bytes(op)}
            if error is not None:
                args["error"] = in_words(error)
            link = (op.key.id, op.clock, _delay(op.key), task)
            self._recorder.add(Span(category, name, 0, began, self._recorder.now(), args, link))
            finish(error)

        op.finish = note

    def _note_wait(self, task: Waitable, began: int) -> None:
        args: dict[str, Any] = {"for": task.text}
        name = "wait"
        if isinstance(task, Answer):  # of a request: known without asking anybody
            args["on"] = task.whom(self.state)
            name = f"wait on {args['on']}"
        self._recorder.note(Category.WAIT, name, began, args, (id(task),))


def _verb(op: Op) -> tuple[Category, str]:
    name = op.key.spec.name
    if name == "windlass/barrier":
        return Category.BARRIER, "barrier"
    if op.push is None:
        return Category.PULL, f"pull {name}"
    return (Category.PUSH, f"push {name}") if op.pull is None else (Category.PUSHPULL, f"pushpull {name}")


def _num_bytes(op: Op) -> int:
    """What it sends, or what it reads where it only reads."""
    if op.push is not None:
        return sum(block.array.nbytes for parts in op.push.values() for part in parts for block in part.blocks)
    pieces = op.pull or {}
    return sum((hi - lo) * op.key.itemsize for wanted in pieces.values() for _, lo, hi in wanted)


def _delay(key: KeyInfo) -> int:
    consistency = key.spec.consistency
    if isinstance(consistency, Sequential):
        return 0
    return consistency.delay if isinstance(consistency, Bounded) else -1
