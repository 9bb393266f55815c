"""One `cluster.run`: a function in every worker, until all have returned, one has failed, or too many are lost."""

from __future__ import annotations

import logging
import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from windlass.engines._children import ChannelClosed, Child
from windlass.engines._finished import Finished
from windlass.engines.nodes import Order
from windlass.errors import ClusterError
from windlass.worker.shield import uninterrupted

log = logging.getLogger("windlass")

LOOK_SECONDS = 0.5
"""How often it is looked whether a worker that still runs has been declared gone."""
MAX_REPLACED = 5
"""How many times a seat is taken again in one run."""


@dataclass(frozen=True, slots=True)
class LostWorker:
    """In the place of a result: this worker was lost, and the run went on without it (`on_worker_loss="continue"`)."""

    name: str
    reason: str


@dataclass(slots=True)
class Crew:
    """What a run needs of its engine."""

    replace: Callable[[str], Child]  # start another worker in this seat, and give it once it has joined
    departed: Callable[[Child], str]  # why a worker that still runs was declared gone; empty if it was not
    died: Callable[[Child], str]  # how one ended, in words
    tell_lost_servers: Callable[[], None]  # log those that have died since it was last called


class Run:
    """Blocks in `finish`; `add` may be called from another thread meanwhile."""

    def __init__(self, order: Order, workers: list[Child], on_loss: str, crew: Crew) -> None:
        self.order = order
        self._on_loss = on_loss
        self._crew = crew
        self._names = [child.name for child in workers]
        self.waiting: dict[int, Child] = {}  # by the fd of their channel
        self._results: dict[str, Any] = {}
        self._num_replaced: dict[str, int] = {}
        self._poll = select.poll()
        self._added: deque[Child] = deque()
        with uninterrupted():
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._close_wake = weakref.finalize(self, os.close, self._wake)  # once, and with us if we are cut short
        self._lock = threading.Lock()
        self._is_over = False
        self._poll.register(self._wake, select.POLLIN)
        for child in workers:
            self._begin(child)

    def _begin(self, child: Child) -> None:
        try:
            child.channel.send(self.order)
        except ChannelClosed:
            reason = f"{self._crew.died(child)} before the run began"
            if self._on_loss == "fail":
                raise ClusterError(f"{reason}; the next run starts new workers") from None
            self._lose(child, reason)
            return
        self.waiting[child.channel.fileno()] = child
        self._poll.register(child.channel.fileno(), select.POLLIN)

    def add(self, child: Child) -> bool:
        """Let one more worker take part; whether it does: the run may be over."""
        with self._lock:
            if self._is_over:
                return False
            self._added.append(child)
            os.eventfd_write(self._wake, 1)
            return True

    def finish(self) -> list[Any]:
        """The results in rank order."""
        try:
            while self.waiting:
                for fd, _ in self._poll.poll(LOOK_SECONDS * 1000):
                    if fd == self._wake:
                        self._take_in()
                    elif fd in self.waiting:
                        self._on_readable(fd)
                self._look_for_departed()
                self._crew.tell_lost_servers()
            return [self._results[name] for name in self._names]
        finally:
            with self._lock:
                self._is_over = True
                self._close_wake()

    def _take_in(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._added:
            child = self._added.popleft()
            self.order = msgspec.structs.replace(self.order, members=())
            self._names.append(child.name)
            self._begin(child)

    def _on_readable(self, fd: int) -> None:
        child = self._forget(fd)
        answer = None
        with suppress(EOFError):
            answer = child.channel.recv()
        if answer is None:
            self._lose(child, f"{self._crew.died(child)} during the run")
            return
        _, result, error, trace, tally = answer
        if error is not None:
            error.add_note(f"raised in {child.name} (pid {child.pid}):\n{trace}")
            raise error
        if trace:
            raise ClusterError(f"{child.name} (pid {child.pid}) failed:\n{trace}")
        self._results[child.name] = result
        for other in self.waiting.values():
            with suppress(ChannelClosed):  # it died: its own end will tell
                other.channel.send(Finished(int(child.name.removeprefix("worker-")), tally))

    def _forget(self, fd: int) -> Child:
        self._poll.unregister(fd)
        return self.waiting.pop(fd)

    def _look_for_departed(self) -> None:
        """A worker that is silent, stopped, say, is declared gone while its process lives: it ends now."""
        for fd, child in list(self.waiting.items()):
            reason = self._crew.departed(child)
            if reason and not child.channel.readable(0):
                self._forget(fd)
                child.kill()
                self._lose(child, reason)

    def _lose(self, child: Child, reason: str) -> None:
        if self._on_loss == "continue":
            log.warning("%s; the run goes on without it", reason)
            self._results[child.name] = LostWorker(child.name, reason)
            if not self.waiting and all(isinstance(one, LostWorker) for one in self._results.values()):
                raise ClusterError(f"{reason}, and it was the last worker")
            return
        count = self._num_replaced[child.name] = self._num_replaced.get(child.name, 0) + 1
        if self._on_loss == "wait" and count <= MAX_REPLACED:
            log.warning("%s; another one takes its seat, and the others wait for it", reason)
            self.order = msgspec.structs.replace(self.order, members=())
            self._begin(self._crew.replace(child.name))
            return
        if self._on_loss == "wait":
            raise ClusterError(f"{reason}, and {MAX_REPLACED} others in its seat before it")
        raise ClusterError(f"{reason}; with wl.Cluster(on_worker_loss='continue') or 'wait' a run goes on")
