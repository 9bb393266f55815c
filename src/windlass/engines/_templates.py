"""The driver's side of templates: processes with the imports behind them, from which fork servers are forked.

Importing and loading kernels takes a second or two, forking a server 20 ms. So a template outlives the server that it
was started for by LINGER_SECONDS: whoever opens one cluster after the other pays once. It is used again only by a
driver whose imports, environment and limits are what they were.
"""

from __future__ import annotations

import atexit
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from windlass.engines._channel import Channel, ChannelClosed
from windlass.engines._control import Boot, Buried, Bury, Failed, Made, Make, Place, Ready
from windlass.engines._launch import above_stdio, is_inheritable, launch
from windlass.errors import ClusterError, TimeoutError, UsageError
from windlass.worker.shield import let_in, uninterrupted

START_SECONDS = 120.0
"""For the preload. Raise it if torch is imported from a slow network disk."""
MAKE_SECONDS = 30.0
REUSE_SECONDS = 5.0
"""How long a template that lingered may take to fork a server before another is started in its place."""
BURY_SECONDS = 1.0
SLICE_SECONDS = 0.05
"""How often a wait looks whether Ctrl-C was pressed."""
LINGER_SECONDS = 1.5
"""How long a template waits for the next server. Nothing is left of a driver's clusters 2 s after their end."""
PASSING = frozenset({"PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "_", "COLUMNS", "LINES"})
"""Variables that no import reads: servers get the driver's own, and templates need not be started anew for them."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a process takes over from its parent, or reads once, and cannot be told later."""

    preload: tuple[str, ...]
    warm: str | None
    path: tuple[str, ...]
    env: frozenset[tuple[str, str]]
    limits: tuple[object, ...]

    @classmethod
    def here(cls, preload: tuple[str, ...], warm: str | None) -> Self:
        env = frozenset(item for item in os.environ.items() if item[0] not in PASSING)
        kinds = [name for name in sorted(dir(resource)) if name.startswith("RLIMIT_")]
        limits = [resource.getrlimit(getattr(resource, kind)) for kind in kinds]
        nature = (os.nice(0), frozenset(os.sched_getaffinity(0)), tuple(sys.warnoptions), *limits)
        return cls(preload, warm, tuple(Place.here().path), env, nature)


class Template:
    """One process of `_template`. Blocks until it is ready, raises UsageError when the preload fails. Any thread may
    use it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.num_users = self.num_made = 0
        self._owner = os.getpid()
        self._lock = threading.Lock()  # a request and its answer are one
        self._closing = threading.Lock()
        self._tickets = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        with above_stdio(), ExitStack() as opened:
            ours, theirs = (opened.enter_context(end) for end in socket.socketpair())
            lifeline, self._lifeline = os.pipe()
            opened.pop_all()
        self._channel = Channel(ours)
        try:
            try:
                self._process = launch(theirs.fileno(), lifeline)
            finally:
                theirs.close()
                os.close(lifeline)
            self._boot()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return f"the template of the fork servers (pid {self._process.pid if self._process else '?'})"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None and self._channel.fileno() >= 0

    def make(self, control: int, lifeline: int, seconds: float) -> int:
        """Fork a server that has these two files and the driver's stdout, stderr and environment; its pid."""
        with open(os.devnull, "wb") as nothing:
            files = [control, lifeline, *(fd if is_inheritable(fd) else nothing.fileno() for fd in (1, 2))]
            order = Make(ticket=next(self._tickets), env=dict(os.environ))
            answer = self._ask(order, files, seconds, "fork a server")
        if isinstance(answer, Failed):
            raise ClusterError(f"no fork server could be forked: {answer.reason}")
        assert isinstance(answer, Made)
        return answer.pid

    def bury(self, pid: int) -> None:
        """Kill the server that `make` gave, its children and what they started, and reap it. Raises ClusterError if the
        template is dead, and TimeoutError if it has not done so yet."""
        if pid >= 0:
            self._ask(Bury(ticket=next(self._tickets), pid=pid), [], BURY_SECONDS, "bury a server")

    def close(self) -> None:
        """Kill and reap it. Safe to repeat; a forked copy of the driver only lets go of its copies."""
        with self._closing:
            self._channel.close()
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1
            if self._process is not None and os.getpid() == self._owner:
                self._process.kill()
                self._process.wait()

    def _boot(self) -> None:
        preload, warm = self.key.preload, self.key.warm
        what = f"preload {', '.join(preload) or 'nothing'}" + (f" and warm {warm}" if warm else "")
        boot = Boot(preload=preload, warm=warm, place=Place.here(), pythonpath=os.environ.get("PYTHONPATH"))
        answer = self._ask(boot, [], START_SECONDS, what)
        if isinstance(answer, Failed):
            raise UsageError(f"the fork server could not {what}: {answer.reason}")
        if isinstance(answer, Ready) and answer.num_threads > 1:
            message = f"asked to {what}, the fork server now runs {answer.num_threads} threads; its children could hang"
            warnings.warn(f"{message}: preload only what starts no thread", RuntimeWarning, stacklevel=5)

    def _ask(self, message: Boot | Make | Bury, files: list[int], seconds: float, what: str) -> object:
        deadline = time.monotonic() + seconds
        if self._lock.acquire(timeout=seconds):
            try:
                self._channel.send(message)
                for fd in files:
                    self._channel.send_fd(fd)
                try:
                    answer = self._answer(message, deadline, lets_in=not isinstance(message, Bury))
                except BaseException:
                    if isinstance(message, Make):
                        self._unmake(message)
                    raise
                if answer is not None:
                    return answer
            except ChannelClosed:
                self.close()
                raise ClusterError(f"{self} died before it could {what}") from None
            finally:
                self._lock.release()
        raise TimeoutError(f"{self} did not {what} within {seconds:g} s")

    def _unmake(self, order: Make) -> None:
        """Whoever ordered a server was interrupted as it waited. The server comes all the same: it is buried now, or
        it would lie unburied until the next one is ordered. Inside `_lock`."""
        deadline = time.monotonic() + BURY_SECONDS
        with suppress(ChannelClosed):  # a dead template leaves nothing to bury
            made = self._answer(order, deadline, lets_in=False)
            if isinstance(made, Made):
                bury = Bury(ticket=next(self._tickets), pid=made.pid)
                self._channel.send(bury)
                self._answer(bury, deadline, lets_in=False)

    def _answer(
        self, message: Boot | Make | Bury, deadline: float, *, lets_in: bool
    ) -> Ready | Made | Buried | Failed | None:
        ticket = 0 if isinstance(message, Boot) else message.ticket
        while True:
            left = deadline - time.monotonic()
            if self._channel.readable(min(left, SLICE_SECONDS)):
                answer: Ready | Made | Buried | Failed = self._channel.recv()
                if answer.ticket == ticket:
                    return answer
                if isinstance(answer, Made):  # for somebody who was interrupted while it waited
                    self._channel.send(Bury(ticket=-1, pid=answer.pid))
            elif left <= 0:
                return None
            elif lets_in:
                let_in()


class Kept:
    """The template that this process uses again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._template: Template | None = None
        atexit.register(self._leave, os.getpid())

    def take(self, key: Key) -> tuple[Template, bool]:
        """One that fits, and whether it is new."""
        with self._lock:
            template = self._template
            is_new = template is None or template.key != key or not template.is_alive
            if template is None or is_new:
                self._template = None
                if template is not None and not template.num_users:
                    template.close()
                template = self._template = Template(key)
            template.num_users += 1
            template.num_made += 1
            return template, is_new

    def retire(self, template: Template) -> None:
        """Nobody is to take it any more. When its last user gives it back it is killed, and the kernel kills what it
        has forked; until then it lives, because others' servers would die with it."""
        with self._lock:
            if self._template is template:
                self._template = None

    def give_back(self, template: Template) -> None:
        with self._lock:
            template.num_users -= 1
            if template.num_users:
                return
            if template is not self._template or not template.is_alive:
                self._drop(template)
                return
            num_made = template.num_made  # here: once the lock is open, somebody may take it
        timer = threading.Timer(LINGER_SECONDS, self._expire, (template, num_made))
        timer.daemon = True
        timer.start()

    def _expire(self, template: Template, num_made: int) -> None:
        with self._lock:
            if template.num_made == num_made:  # nobody has taken it meanwhile
                self._drop(template)

    def _drop(self, template: Template) -> None:
        if self._template is template:
            self._template = None
        template.close()

    def _leave(self, owner: int) -> None:
        if os.getpid() != owner:
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one more Ctrl-C could only cut this short
        if self._lock.acquire(timeout=1.0):  # a daemon thread may hold it for ever now
            if self._template is not None and not self._template.num_users:
                self._template.close()
            self._lock.release()
        if before is not None:
            signal.signal(signal.SIGINT, before)


_kept: dict[int, Kept] = {}
"""By process: what a fork copied is its parent's."""


def fork_server(preload: tuple[str, ...], warm: str | None, control: int, lifeline: int) -> tuple[Template, int]:
    """A server that has these two files, forked by the template that was used last if it fits, else by a new one. Both
    are to be given back."""
    kept = _kept.get(os.getpid()) or _kept.setdefault(os.getpid(), Kept())
    while True:
        template, is_new = kept.take(Key.here(preload, warm))
        try:
            return template, template.make(control, lifeline, MAKE_SECONDS if is_new else REUSE_SECONDS)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                kept.retire(template)
            kept.give_back(template)
            # One that lingered may have died meanwhile, or was stuck and is killed by now: another is started.
            if is_new or template.is_alive or not isinstance(error, ClusterError):
                raise


def give_back(template: Template, pid: int) -> None:
    """Have this server of the template buried, and let go of the template. Nothing interrupts it. A template that
    cannot bury in time is used no more."""
    kept = _kept[os.getpid()]
    with uninterrupted():
        try:
            template.bury(pid)
        except (ClusterError, TimeoutError):
            kept.retire(template)
        finally:
            kept.give_back(template)
