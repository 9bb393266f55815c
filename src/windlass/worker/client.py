"""The edge of a worker: its hub, its clock, its waits. All decisions are WorkerState's."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np

from windlass._transport.base import Hub
from windlass._wire import messages as m
from windlass._wire.effects import Dial, Effect, Log, Received, Recycle, Send, Tick
from windlass.errors import ClusterError, TimeoutError, UsageError, WindlassError
from windlass.trace.recorder import Recorder
from windlass.types import MANAGER, Bytes, Generation, Incarnation
from windlass.worker.ops import KeyInfo, Op, Request
from windlass.worker.shield import Shield, let_in
from windlass.worker.state import Call, Submit, WorkerState
from windlass.worker.task import Task, in_words
from windlass.worker.turn import Turn

log = logging.getLogger("windlass")

Found = TypeVar("Found")

TICK_SECONDS = 0.1
BACKGROUND_AFTER_SECONDS = 0.001
"""How long a caller may be away, with work under way, before the background thread takes the links over."""

IDLE_SECONDS = 0.25
"""How often the background thread looks at the links while nobody calls: a manager that comes back waits for us."""

EXPLAIN_SECONDS = 0.5
"""How long to ask the servers for the reason before a wait that is over says what it knows."""

SILENT = "which does not answer"

MAKING_SECONDS = 60.0
"""For so long a wait gives no warning while servers make room for keys: on a new install that means to compile, and a
line of the log says so."""


class Waitable(Protocol):
    @property
    def text(self) -> str: ...

    @property
    def is_done(self) -> bool: ...


class Client:
    """Thread-safe. Calls that wait do their I/O in the caller's own thread."""

    recorder: Recorder | None = None  # of a client that is traced
    doubt: Callable[[Waitable], WindlassError | None] | None = None
    """Asked now and then, with the turn, whether a wait is in vain; what it returns ends the wait, and the store."""

    finished: Mapping[int, Generation] = MappingProxyType({})
    """The workers whose function of this run has returned, and the last generation that each of them knew."""

    witness: Callable[[Op], None] | None = None
    """Sees every operation before it starts, with the turn; of a cluster whose books are kept."""

    def __init__(self, hub: Hub, state: WorkerState, *, timeout: float, warn_seconds: float, is_eager: bool) -> None:
        self.state = state
        self.hub = hub
        self.timeout = timeout
        self.is_closed = False
        self._pid = os.getpid()
        self._warn_seconds = warn_seconds
        self._is_eager = is_eager  # an embedded store: nothing else runs, so finish at once what can be
        self._turn = Turn(hub.wake)
        self._shield = Shield(hub.wake, self._on_cut)
        self._next_tick = 0.0
        self.snapshot_numbers = itertools.count(1)  # a saver never uses one twice
        self.write_numbers = itertools.count(1)  # nor does one who assigns
        self.writing = threading.Lock()  # a server keeps one write of each driver
        self._held: set[KeyInfo] = set()  # keys whose queue waits for tasks of other keys, or for room
        self._background: threading.Thread | None = None
        self._has_work = threading.Event()

    # --- asking -----------------------------------------------------------------------------------------------------

    def submit(self, *works: Op | Request, until: Waitable | None = None, timeout: float | None = None) -> None:
        """Start work. Does not block on the network, unless it is to wait `until` something is done."""
        if not self.is_usable:
            self._check_open(_called(works))
        began = time.monotonic()
        deadline = began + self._seconds(timeout)
        with self._shield:
            self._turn.take()
            try:
                for work in works:
                    if self.witness is not None and isinstance(work, Op):
                        self.witness(work)
                    self._perform(self.state.handle(Submit(work), began))
                    if isinstance(work, Op) and work.encode is not None and until is None:
                        work.encode.own()  # it waits for its turn, and the caller does not wait for it
                    if isinstance(work, Op) and work.packing is not None:
                        work.packing.rest()
                    if isinstance(work, Op) and (work.after or work.room) and work.key.queue:
                        self._held.add(work.key)
                if self._is_eager:
                    self._step(0)
                elif until is None:
                    self.hub.flush()
                else:  # the usual end of a wait: no second turn, and the first poll flushes
                    self._lead(until, deadline, began + self._warn_seconds, began)
            finally:
                self._leave()
        if until is not None and not until.is_done:
            self._wait(until, began, deadline)

    def request(
        self,
        to: Incarnation | tuple[KeyInfo, int],
        make: Callable[[int], m.AnyMessage],
        text: str,
        *,
        data: Any = (),
        answers: int = 1,
    ) -> tuple[Any, tuple[Bytes, ...]]:
        """Ask one node, or the head of a shard, and wait for its answer: the message and copies of the buffers that
        came with it. With `answers` above 1 so many shards answer the same request, and the last answer is given."""
        answer = Answer(text, to)
        self._check_open(text)
        self.submit(Request(to, make, answer.finish, data, answers=answers))
        self.wait(answer)
        if answer.error is not None:
            try:
                raise answer.error
            finally:
                del answer  # the error knows this frame: a circle would keep all that our callers hold
        return answer.message, answer.data

    def settle(self, key: KeyInfo) -> None:
        """Wait until every push that was made on this key is acknowledged."""
        self.wait(Settling(self.state, key))

    def post(self, send: Send) -> None:
        """Send one message that nobody answers."""
        with self._shield:
            self._turn.take()
            try:
                self.hub.send(send)
                self.hub.flush()
            finally:
                self._leave()

    def use(self, key: KeyInfo, generation: Generation) -> None:
        """A key will be used; its chains are those of this generation."""
        self.undisturbed(lambda: self.state.use(key, generation))

    def disuse(self, key: KeyInfo) -> None:
        """A key is no longer used."""
        with self._shield:
            self._turn.take()
            try:
                self._perform(self.state.disuse(key))
                self.hub.flush()
            finally:
                self._leave()

    def undisturbed(self, look: Callable[[], Found]) -> Found:
        """What `look` finds while nothing moves. It must not block."""
        with self._shield:
            self._turn.take()
            try:
                return look()
            finally:
                self._leave()

    # --- waiting ----------------------------------------------------------------------------------------------------

    def wait(self, task: Waitable, timeout: float | None = None) -> None:
        """Block until the task is done; raise TimeoutError, naming whom it waits for, when the time is over."""
        if not task.is_done:
            began = time.monotonic()
            self._wait(task, began, began + self._seconds(timeout))

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.timeout
        if not timeout >= 0:
            raise UsageError(f"timeout expects seconds, 0 or more, got {timeout!r}")
        return timeout

    def _wait(self, task: Waitable, began: float, deadline: float) -> None:
        warn_at = began + self._warn_seconds
        try:
            while not task.is_done:
                if not self.is_usable:
                    self._check_open(task.text)
                now = time.monotonic()
                if now >= deadline:
                    raise TimeoutError(f"{task.text} did not finish within {now - began:.1f} s: {self._why(task)}")
                with self._shield:
                    if self._turn.take_or(lambda: task.is_done, deadline - now):
                        try:
                            warn_at = self._lead(task, deadline, warn_at, began)
                        finally:
                            self._leave()
        except BaseException:
            self._disown(task)
            raise

    def _lead(self, task: Waitable, deadline: float, warn_at: float, began: float) -> float:
        """Poll until the task is done, the time is over, Ctrl-C was pressed, or another thread asks for the turn."""
        while not task.is_done and not self._turn.requests and not self._shield.is_struck:
            now = time.monotonic()
            if now >= deadline:
                break
            if self.doubt is not None and (error := self.doubt(task)) is not None:
                self._perform(self.state.fail_all(error))
                break
            if now >= warn_at and self.state.makers and now - began < MAKING_SECONDS:
                warn_at = now + self._warn_seconds
            if now >= warn_at:
                warn_at = now + 2 * (now - began)
                log.warning("%s has taken %.0f s so far: %s", task.text, now - began, self._ask_why(task))
            self._step(min(deadline - now, max(0.0, warn_at - now), TICK_SECONDS))
        return warn_at

    def _on_cut(self, error: BaseException) -> None:
        """Work that must not be cut short was, by a signal handler that raises, say: the store is broken. From now on
        it says so instead of waiting for what it has lost."""
        text = f"the store was cut short in the middle of its work by {type(error).__name__}; open a new one"
        self.state.failure = self.state.failure or ClusterError(text)

    def _disown(self, task: Waitable) -> None:
        """The caller leaves before the end and has its memory back: what is still to be sent of it is copied."""
        self._turn.take()
        try:
            for op in self.state.all_ops():
                if op.owner is task:
                    op.disown()
            self.hub.own_unsent()
        finally:
            self._leave()

    def _why(self, task: Waitable) -> str:
        with self._shield:
            self._turn.take()
            try:
                return self._ask_why(task)
            finally:
                self._leave()

    def _ask_why(self, task: Waitable) -> str:
        """Whom a task waits for, on which key, and what the servers say about it. Takes a moment; needs the turn."""
        op = next((op for op in self.state.ops.values() if op.owner is task), None)
        if op is None:
            if isinstance(task, Answer):
                asked = task.of_key()
                said = self._inspect(*asked) if asked is not None else {}
                told = "".join(f", which says: {why}" for why in said.values() if why != SILENT)
                return f"no answer from {task.whom(self.state)}{in_words(told)}"
            return "it waits for tasks that come before it"
        said = self._inspect(op.key, op.waits_for_servers())
        verb = "push" if op.pull is None else "pull"
        told = "; ".join(f"{name}: {why}" for name, why in sorted(said.items()))
        key = f"'{op.key.spec.name}'"
        what = f"{verb} {op.clock} of {key}" if in_words(key) == key else "it"
        return f"{what} waits for {in_words(told)}"

    def _inspect(self, key: KeyInfo, peers: Iterable[Incarnation]) -> dict[str, str]:
        """What each of these servers says about our waits on a key, by its name."""
        said: dict[str, str] = {}
        for peer in peers:
            name = self.state.name(peer)
            said[name] = SILENT

            def hear(answer: Any, data: tuple[Bytes, ...], error: WindlassError | None, name: str = name) -> None:
                said[name] = str(answer.detail if answer is not None else error)

            ask = Request(peer, lambda n, key=key.id: m.Inspect(request=n, key=key), hear)  # type: ignore[misc]
            self._perform(self.state.handle(Submit(ask), time.monotonic()))
        until = time.monotonic() + EXPLAIN_SECONDS
        while SILENT in said.values() and time.monotonic() < until:
            self._step(0.05)
        return said

    # --- doing ------------------------------------------------------------------------------------------------------

    def _step(self, timeout: float) -> None:
        for event in self.hub.poll(timeout):
            try:
                effects = self.state.handle(event, time.monotonic())
            except Exception:
                if not isinstance(event, Received):
                    raise
                self._hang_up(event)
            else:
                self._perform(effects)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS / 2
            self._perform(self.state.handle(Tick(), now))
        if self._held:
            self._pump_held()
        self._turn.tell()
        if self.hub.has_unsent:
            self.hub.flush()

    def _hang_up(self, event: Received) -> None:
        """A message that nobody foresaw must not take the store down with it: its sender loses the link, and is dialled
        again. As nodes do in their loop."""
        kind, name = type(event.message).__name__, self.state.name(event.peer)
        log.exception("a worker could not handle %s from %s", kind, name)
        if event.peer != MANAGER:
            self.hub.hangup(event.peer, f"worker-{self.state.rank} could not handle {kind}")

    def _pump_held(self) -> None:
        for key in list(self._held):
            self._perform(self.state.pump(key))
            if not key.queue:
                self._held.discard(key)

    def _perform(self, effects: list[Effect | Call]) -> None:
        for effect in effects:
            if isinstance(effect, Call):
                effect.function()
            elif isinstance(effect, Send):
                self.hub.send(effect)
            elif isinstance(effect, Recycle):
                self.hub.recycle(effect.data)
            elif isinstance(effect, Dial):
                self.hub.dial(effect.peer, effect.addresses)
            elif isinstance(effect, Log):
                log.log(logging.getLevelNamesMapping()[effect.level.upper()], "%s", effect.text)

    # --- in the background ------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Give the turn away; see to it that what is under way goes on."""
        is_busy = not self._is_eager and (self.state.has_work or self.hub.has_unsent) and not self.is_closed
        if not is_busy and self._has_work.is_set():
            self._has_work.clear()
        self._turn.give()
        if is_busy and not self._has_work.is_set():
            self._has_work.set()
            self._start_background()

    def _start_background(self) -> None:
        if self._background is None:
            self._background = threading.Thread(target=self._run_background, name="windlass-io", daemon=True)
            self._background.start()

    def _run_background(self) -> None:
        while not self.is_closed:
            is_idle = not self._has_work.wait(IDLE_SECONDS)
            time.sleep(BACKGROUND_AFTER_SECONDS)
            if not (is_idle or self._has_work.is_set()) or not self._turn.try_background():
                continue
            try:
                self._work_in_background()
            except Exception as error:  # nobody would hear of it here: everybody who waits does
                log.exception("the background thread of a store failed")
                self._perform(self.state.fail_all(ClusterError(f"the store's own thread failed: {error}")))
            finally:
                self._turn.give()

    def _work_in_background(self) -> None:
        if not self.state.has_work and not self.is_closed:
            self._step(0)
        while not self.state.is_linked(MANAGER) and self.state.failure is None and not self._must_give_way():
            self._step(TICK_SECONDS)
        while (self.state.has_work or self.hub.has_unsent) and not self._must_give_way():
            self._step(TICK_SECONDS)
        if not (self.state.has_work or self.hub.has_unsent):
            self._has_work.clear()

    def _must_give_way(self) -> bool:
        return bool(self._turn.requests) or self.is_closed

    # --- beginning and end ------------------------------------------------------------------------------------------

    def join(self, manager: tuple[str, ...], timeout: float) -> None:
        """Dial the manager and wait until the generation has everyone, and every server is linked."""
        self._turn.take()
        try:
            self.hub.dial(MANAGER, manager)
            deadline = time.monotonic() + timeout
            while not self.state.is_joined:
                if self.state.failure is not None:
                    raise self.state.failure
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the cluster was not complete within {timeout:.0f} s; is the manager running?")
                let_in()
                os.close(os.open(os.devnull, os.O_RDONLY))  # where no file can be opened, no link can
                self._step(TICK_SECONDS)
        finally:
            self._turn.give()
        if not self._is_eager:
            self._start_background()

    def fail(self, error: WindlassError) -> None:
        """Everything under way ends with this error, and so does everything that comes."""
        with self._shield:
            self._turn.take()
            try:
                self._perform(self.state.fail_all(error))
                self._turn.tell()
            finally:
                self._leave()

    def meet(self, workers: Collection[Incarnation], timeout: float) -> None:
        """Wait until the generation's workers are these: not some of those who sat here before, nobody missing, and
        none of them late any more. Who does not come within `timeout` is not waited for: what the run does with the
        others will tell."""
        state = self.state

        def are_all_here() -> bool:
            here = state.workers
            return here == set(workers) and not any(state.nodes[who].is_late for who in here)

        self._step_until(are_all_here, timeout)

    def arrive(self) -> None:
        """A worker that came to a run under way begins the next one with everybody else."""
        if self.state.is_late:
            self.post(self.state.arrive())

    def await_workers(self, number: int, timeout: float) -> None:
        """Wait until the generation has so many workers; not for longer than `timeout`."""
        self._step_until(lambda: len(self.state.workers) >= number, timeout)

    def _step_until(self, is_so: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not is_so() and self.state.failure is None and time.monotonic() < deadline:
            with self._shield:
                self._turn.take()
                try:
                    self._step(TICK_SECONDS)
                finally:
                    self._leave()

    @property
    def is_usable(self) -> bool:
        return not self.is_closed and os.getpid() == self._pid

    def _check_open(self, what: str = "") -> None:
        """UsageError, which names what was called, if nothing can be done any more."""
        if os.getpid() != self._pid:
            raise UsageError("this store is another process's: after a fork, the child needs one of its own")
        if self.is_closed:
            text = "the store is closed; nothing can be pushed, pulled or waited for any more"
            raise UsageError(f"{what}: expected an open store, but {text}" if what else text)

    def close(self) -> None:
        """Fail what is under way and close every link. Safe to repeat."""
        if self.is_closed:
            return
        if os.getpid() != self._pid:  # a forked copy: the links are the parent's
            self.is_closed = True
            return
        self._turn.take()
        self.is_closed = True
        try:
            self._perform(self.state.fail_all(UsageError("the store was closed while this was under way")))
            self._pump_held()
            self.hub.close()
        finally:
            self._turn.give()
        self._has_work.set()


class Settling:
    """The wait for the own pushes on a key."""

    def __init__(self, state: WorkerState, key: KeyInfo) -> None:
        self.text = f"the wait for the own pushes on '{key.spec.name}'"
        self._state, self._key = state, key

    @property
    def is_done(self) -> bool:
        return not self._state.is_pushing(self._key)


def _called(works: Sequence[Op | Request]) -> str:
    """The call that this work was made of, as its caller wrote it."""
    owners = (work.owner for work in works if isinstance(work, Op))
    return next((owner.text for owner in owners if isinstance(owner, Task)), "")


class Answer:
    """The wait for one request."""

    def __init__(
        self, text: str, to: Incarnation | tuple[KeyInfo, int], copy: Callable[[Bytes], Bytes] = np.copy
    ) -> None:
        """`copy` makes an own copy of what comes with the answer."""
        self.text = text
        self._to = to
        self._copy = copy
        self.is_done = False
        self.message: Any = None
        self.data: tuple[Bytes, ...] = ()
        self.error: WindlassError | None = None

    def whom(self, state: WorkerState) -> str:
        head = self._to[0].head(self._to[1]) if isinstance(self._to, tuple) else self._to
        return state.name(head) if head is not None else "anyone: the shard is lost"

    def of_key(self) -> tuple[KeyInfo, tuple[Incarnation, ...]] | None:
        """The key that was asked about and the server that was asked; None if it was about no key."""
        if not isinstance(self._to, tuple):
            return None
        key, shard = self._to
        head = key.head(shard)
        return key, () if head is None else (head,)

    def finish(self, message: Any, data: tuple[Bytes, ...], error: WindlassError | None) -> None:
        self.message, self.error = message, error
        self.data = tuple(self._copy(part) for part in data)
        self.is_done = True  # last: another thread may be looking
