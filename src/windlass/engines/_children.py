"""The driver's side of the fork server: start it, spawn children from it, learn how they ended.

    driver ──control──> fork server ──fork──> child
       ├──────────────channel──────────────────┘      a socketpair per child, made by the driver: objects, both ways
       └──lifeline──> fork server and children        a pipe that nobody writes to: its EOF is the driver's death

The fork server itself is forked by a template (`_templates`), which has the imports behind it. Closing a channel is how
a child is asked to leave.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from typing import Self

from windlass.engines._channel import Channel, ChannelClosed
from windlass.engines._control import Exited, Failed, Fork, Forked, Place, Signal, Start, Stop
from windlass.engines._launch import above_stdio
from windlass.engines._templates import Template, fork_server, give_back
from windlass.errors import ClusterError, TimeoutError, UsageError
from windlass.worker.shield import let_in, uninterrupted

__all__ = ["Channel", "ChannelClosed", "Child", "ForkServer"]

FORK_SECONDS = 30.0
STOP_SECONDS = 0.8
"""How long a fork server that was told to stop may kill and reap before it is killed itself."""
SLICE_SECONDS = 0.03


class State(Enum):
    OPEN = "open"
    LOST = "lost"  # the fork server died under us, and its children with it
    CLOSED = "closed"


class Child:
    """A process forked by the fork server. Its methods may be called from any thread, and after `close` too."""

    def __init__(self, server: ForkServer, name: str, channel: Channel) -> None:
        self.name, self.channel = name, channel
        self.pid = -1
        self.exitcode: int | None = None
        self._server = server

    def __repr__(self) -> str:
        state = "running" if self.exitcode is None else f"exited {self.exitcode}"
        return f"<Child {self.name} pid={self.pid} | {state}>"

    def poll(self) -> int | None:
        """The exit code, -n for death by signal n, None while it runs. Does not block."""
        return self.wait(0.0)

    def wait(self, timeout: float | None) -> int | None:
        """As `poll`, after waiting up to `timeout` seconds (None: for ever) for the end."""
        self._server._await(lambda: self.exitcode is not None, timeout)
        return self.exitcode

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """Send a signal by way of the fork server, which knows whether the pid is still this child's. Does not wait;
        nothing happens when the child has ended."""
        self._server._command(Signal(pid=self.pid, signum=signum))


class ForkServer:
    """A process that has the heavy imports behind it, from which children are forked in milliseconds.

    Blocks until the preload is done, unless a server that preloaded the same was closed a moment ago; raises UsageError
    when it fails. `warm`, a "module:function", is called once after it. Neither may start a thread or run anything
    parallel, or children could hang; a RuntimeWarning says so. Any thread may use it. When this process ends, in
    whatever way, the server and all children are killed.
    """

    def __init__(self, *, preload: Sequence[str], warm: str | None = None) -> None:
        self._owner = os.getpid()
        self._state = State.OPEN
        self._lock = threading.Lock()  # over receiving on the control channel and over the five fields below
        self._answers: dict[int, Forked | Failed] = {}
        self._forking: dict[int, Child] = {}
        self._running: dict[int, Child] = {}
        self._ended: list[Child] = []
        self._children: list[Child] = []
        self._commanding = threading.Lock()  # a Fork and the file that follows it are one
        self._closing = threading.Lock()
        self._tickets = itertools.count(1)
        self.pid = -1
        self._template: Template | None = None
        with uninterrupted():
            with above_stdio(), ExitStack() as opened:  # all of them, or none
                ours, theirs = (opened.enter_context(end) for end in socket.socketpair())
                self._news = opened.enter_context(select.epoll())
                self._uncollected = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                opened.callback(os.close, self._uncollected)
                lifeline, self._lifeline = os.pipe()
                opened.pop_all()
            self._control = Channel(ours)
            self._news.register(ours.fileno(), select.EPOLLIN)
            self._news.register(self._uncollected, select.EPOLLIN)
            try:
                self._template, self.pid = fork_server(tuple(preload), warm, theirs.fileno(), lifeline)
            except BaseException:
                self.close(0.0)
                raise
            finally:
                theirs.close()
                os.close(lifeline)

    def __repr__(self) -> str:
        return f"<ForkServer pid={self.pid} {self._state.value} | {len(self._running)} children>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def spawn(self, name: str, target: str, *, config: bytes = b"", env: Mapping[str, str] = {}) -> Child:
        """Fork a child that calls `target`, a "module:function", as `function(channel, config)` and ends when it
        returns. Blocks for the fork only: an error inside `target`, a missing module included, is the child's
        status. `env` is set before `target` is imported, but after the preload has read its own variables."""
        with above_stdio():
            ours, theirs = socket.socketpair()
        child = Child(self, name, Channel(ours))
        try:
            self._fork(child, theirs.fileno())
            with suppress(ChannelClosed):  # a child that is already dead has a status that says so
                child.channel.send(Start(name=name, target=target, config=config, env=dict(env), place=Place.here()))
        except BaseException:
            child.channel.close()
            raise
        finally:
            theirs.close()
        return child

    def fileno(self) -> int:
        """Readable when `collect` may have something to return; -1 once closed."""
        return self._news.fileno() if not self._news.closed else -1

    def collect(self) -> list[Child]:
        """The children that ended since the last call, each once, in order. Does not block."""
        self._drain()
        with self._lock:
            if self._state is not State.CLOSED:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._uncollected)
            ended, self._ended = self._ended, []
            return ended

    def close(self, grace_seconds: float = 1.0) -> None:
        """Close every channel, wait up to `grace_seconds` for the children to leave, SIGKILL the rest and whatever
        they started, and reap. Blocks for at most a second more than the grace. Safe to repeat; an interrupt cuts
        the grace short, not the killing. In a forked copy of the driver it only lets go of the copies."""
        with uninterrupted(), self._closing:
            if self._state is State.CLOSED:
                return
            is_owner = os.getpid() == self._owner
            try:
                for child in list(self._children):
                    child.channel.close()
                if is_owner:
                    self._await(lambda: not self._running, grace_seconds)
            finally:
                try:
                    if is_owner:
                        self._stop()
                finally:
                    self._let_go()

    def _fork(self, child: Child, fd: int) -> None:
        if self._state is State.CLOSED:
            raise UsageError(f"cannot spawn '{child.name}': this fork server was closed")
        ticket = next(self._tickets)
        with self._lock:
            self._forking[ticket] = child
            self._children.append(child)
        try:
            self._command(Fork(ticket=ticket, name=child.name), fd)
            answer = self._answer(ticket, FORK_SECONDS, f"fork '{child.name}'")
        finally:
            with self._lock:  # an answer that comes after we gave up is for nobody
                self._forking.pop(ticket, None)
        if isinstance(answer, Failed):
            raise ClusterError(f"the fork server could not fork '{child.name}': {answer.reason}")

    def _answer(self, ticket: int, seconds: float, what: str) -> Forked | Failed:
        self._await(lambda: ticket in self._answers or self._state is not State.OPEN, seconds)
        with self._lock:
            answer = self._answers.pop(ticket, None)
        if answer is not None:
            return answer
        if self._state is State.OPEN:
            raise TimeoutError(f"the fork server (pid {self.pid}) did not {what} within {seconds:g} s")
        raise ClusterError(f"the fork server (pid {self.pid}) died before it could {what}; close it and start another")

    def _command(self, message: Fork | Signal | Stop, fd: int | None = None) -> None:
        self._drain()  # so that the server is never stuck telling us while we are stuck telling it
        with uninterrupted(), self._commanding, suppress(ChannelClosed):  # a lost server shows in the state, not here
            self._control.send(message)
            if fd is not None:
                self._control.send_fd(fd)

    def _await(self, is_done: Callable[[], bool], seconds: float | None) -> None:
        """Take in news until `is_done()` or until the time is up."""
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while True:
            self._drain()
            left = deadline - time.monotonic()
            if is_done() or left <= 0 or self._state is not State.OPEN:
                return
            let_in()
            # Another thread may take in our news between the look above and the wait below, and nothing would wake
            # us: hence slices.
            with suppress(ChannelClosed):
                self._control.readable(min(left, SLICE_SECONDS))

    def _drain(self) -> None:
        with uninterrupted(), self._lock:
            try:
                while self._state is State.OPEN and self._control.readable(0):
                    self._take(self._control.recv())
            except ChannelClosed:
                self._lose()

    def _take(self, message: Forked | Failed | Exited) -> None:
        match message:
            case Exited(pid=pid, code=code):
                if child := self._running.pop(pid, None):
                    self._end(child, code)
            case Forked(ticket=ticket, pid=pid):
                if child := self._forking.pop(ticket, None):
                    child.pid = pid
                    self._running[pid] = child
                    self._answers[ticket] = message
            case Failed(ticket=ticket):
                self._answers[ticket] = message

    def _end(self, child: Child, code: int) -> None:
        child.exitcode = code
        child.channel.shut()  # something that the child started may still hold its end open
        self._ended.append(child)
        os.eventfd_write(self._uncollected, 1)

    def _lose(self) -> None:
        """The server is gone, and the kernel kills its children with it (PR_SET_PDEATHSIG)."""
        self._state = State.LOST
        self._news.unregister(self._control.fileno())  # it would stay readable for ever
        for child in self._running.values():
            self._end(child, -signal.SIGKILL)
        self._running.clear()

    def _stop(self) -> None:
        try:
            self._command(Stop())
            self._await(lambda: False, STOP_SECONDS)  # until the server leaves
        finally:
            if self._template is not None:
                give_back(self._template, self.pid)

    def _let_go(self) -> None:
        with self._lock:
            if self._state is State.OPEN and os.getpid() == self._owner:  # epoll and eventfd are one for all copies
                self._lose()
            self._state = State.CLOSED
            for child in self._children:  # one that was spawned while we closed is among them
                child.channel.close()
            self._control.close()
            self._news.close()
            os.close(self._uncollected)
            os.close(self._lifeline)
