"""The fork server: forks children that start with everything loaded, and dies with its driver.

A template (`_template`) forks one for each cluster, into a session of its own. It has one thread whenever it forks,
runs nothing parallel and never sees the user's `__main__`. Death travels two ways:

- the driver's: the kernel sends SIGKILL to our whole process group when the lifeline reaches EOF. That needs no watcher
  thread, which could not run while C code holds the GIL, and it reaches the stopped and what children started;
- the parent's: PR_SET_PDEATHSIG kills a server whose template died, and a child whose server did.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import fcntl
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from windlass.engines._channel import Channel, ChannelClosed
from windlass.engines._control import Exited, Failed, Fork, Forked, Signal, Start, Stop

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_libc = ctypes.CDLL(None, use_errno=True)


class Server:
    """One thread, one owner: nothing here is locked."""

    def __init__(self, control: Channel) -> None:
        self._control = control
        self._pids: set[int] = set()
        # SIGCHLD interrupts the wait by writing into this pair.
        self._wakeup, self._wakeup_writer = socket.socketpair()
        self._wakeup.setblocking(False)
        self._wakeup_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until told to stop, or until the driver is gone; no child survives the return."""
        try:
            while self._serve_one():
                pass
        except ChannelClosed:
            pass
        finally:
            self._kill_all()
            self._silence()

    def _serve_one(self) -> bool:
        ready = await_readable(None, self._control.fileno(), self._wakeup.fileno())
        if self._wakeup.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakeup.recv(4096)
            self._reap()
        if self._control.fileno() in ready:
            match self._control.recv():
                case Fork(ticket=ticket, name=name):
                    self._fork(ticket, name, socket.socket(fileno=self._control.recv_fd()))
                case Signal(pid=pid, signum=signum):
                    if pid in self._pids:  # not reaped, so the number is still its own
                        os.kill(pid, signum)
                case Stop():
                    return False
        return True

    def _fork(self, ticket: int, name: str, sock: socket.socket) -> None:
        flush()
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._control.send(Failed(ticket=ticket, reason=f"{error}; free memory or raise the process limit"))
        else:
            if pid == 0:
                self._become_child(server, name, sock)
            self._pids.add(pid)
            self._control.send(Forked(ticket=ticket, pid=pid))
        finally:
            sock.close()  # or the next children would inherit it, and its EOF would never come

    def _reap(self) -> None:
        for pid in list(self._pids):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._pids.remove(pid)
                self._control.send(Exited(pid=pid, code=os.waitstatus_to_exitcode(status)))

    def _kill_all(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            _, status = os.waitpid(pid, 0)
            with suppress(ChannelClosed):
                self._control.send(Exited(pid=pid, code=os.waitstatus_to_exitcode(status)))

    def _silence(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._wakeup.close()
        self._wakeup_writer.close()

    def _become_child(self, server: int, name: str, sock: socket.socket) -> NoReturn:
        code = 1
        try:
            die_with(server)
            _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
            self._silence()
            self._control.close()
            _reseed()
            gc.enable()
            code = _run(Channel(sock))
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                atexit._run_exitfuncs()
            with suppress(BaseException):
                flush()
            os._exit(code)


def _run(channel: Channel) -> int:
    """The whole life of a child; returns its exit code."""
    try:
        start: Start = channel.recv()
        os.environ.update(start.env)
        start.place.enter()
    except ChannelClosed:
        return 0  # the driver gave up before it said what to run
    try:
        resolve(start.target)(channel, start.config)
    except ChannelClosed:
        return 0  # the driver closed the channel: the ordinary way to leave
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return (leave.code or 0) & 0xFF
        print(leave.code, file=sys.stderr)
        return 1
    except BaseException:
        text = f"windlass: {start.name} (pid {os.getpid()}) failed in {start.target}\n{traceback.format_exc()}"
        if sys.stderr is not None:
            sys.stderr.write(text)  # in one piece: other children share the stream
        return 1
    return 0


def resolve(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _reseed() -> None:
    """Generators seeded by the preload would give every child the same numbers; numba's own reseed themselves."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(None)
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def await_readable(seconds: float | None, *fds: int) -> set[int]:
    """Those of the files that have something to read, after waiting up to `seconds` (None: for ever) for one."""
    poller = select.poll()  # not select(), which ends at 1024 files
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(None if seconds is None else seconds * 1e3)}


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which forked it, is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above, which is then never triggered


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()


def arm(lifeline: int) -> None:
    """Have the kernel kill this process group when the last writer of the lifeline, the driver, is gone."""
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
            raise  # a sandbox without signal-driven I/O: the control channel's EOF has to do
    end = select.poll()  # select() takes no file beyond the 1024th, and a driver may have more than that open
    end.register(lifeline, select.POLLIN)
    if end.poll(0):
        os._exit(1)  # it was gone before we were armed
