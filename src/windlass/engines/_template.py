"""The template: imports once, then forks a fork server for each cluster of its driver, in milliseconds.

It runs as `python -m windlass.engines._template CONTROL LIFELINE DRIVER` in a session of its own, and is killed by the
kernel when its driver is gone. What it starts has to be buried by it: as long as it has not reaped a fork server, the
number of that server's process group is nobody else's, and the group may be killed.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import signal
import socket
import sys
import traceback
import types
import weakref
from contextlib import suppress

from windlass.engines._channel import Channel, ChannelClosed
from windlass.engines._control import Boot, Buried, Bury, Failed, Made, Make, Ready
from windlass.engines._forkserver import Server, arm, await_readable, die_with, flush, resolve

PARENT_CHECK_SECONDS = 0.5


class Template:
    """One thread, one owner: nothing here is locked."""

    def __init__(self, control: Channel, lifeline: int, driver: int) -> None:
        self._control = control
        self._lifeline = lifeline
        self._driver = driver
        self._pids: set[int] = set()  # of fork servers that are not buried

    def serve(self) -> Server | None:
        """Until the driver is gone or lets go. Returns a server in the process that has become one."""
        try:
            # What the driver forked may hold control and lifeline open after the driver died: hence the look at it.
            while os.getppid() == self._driver:
                if not await_readable(PARENT_CHECK_SECONDS, self._control.fileno()):
                    continue
                match self._control.recv():
                    case Make() as order:
                        files = [self._control.recv_fd() for _ in range(4)]
                        if (server := self._make(order, files)) is not None:
                            return server
                    case Bury(ticket=ticket, pid=pid):
                        self._bury(pid)
                        self._control.send(Buried(ticket=ticket))
        except ChannelClosed:
            pass
        for pid in list(self._pids):
            self._bury(pid)
        return None

    def _make(self, order: Make, files: list[int]) -> Server | None:
        flush()
        template = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            reason = f"{error}; free memory or raise the process limit"
            self._control.send(Failed(ticket=order.ticket, reason=reason))
        else:
            if pid == 0:
                return self._become(template, order.env, *files)
            self._pids.add(pid)
            self._control.send(Made(ticket=order.ticket, pid=pid))
        finally:
            if os.getpid() == template:
                for fd in files:
                    os.close(fd)
        return None

    def _become(
        self, template: int, env: dict[str, str], control: int, lifeline: int, stdout: int, stderr: int
    ) -> Server:
        os.setsid()
        die_with(template)
        self._control.close()
        os.close(self._lifeline)
        for ours, theirs in ((1, stdout), (2, stderr)):
            os.dup2(theirs, ours)
            os.close(theirs)
        os.environ.clear()
        os.environ.update(env)
        arm(lifeline)
        return Server(Channel(socket.socket(fileno=control)))

    def _bury(self, pid: int) -> None:
        if pid in self._pids:
            with suppress(ProcessLookupError, PermissionError):  # it has not made its group yet
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._pids.remove(pid)


def _boot(boot: Boot) -> Ready:
    if boot.pythonpath is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = boot.pythonpath
    boot.place.enter()
    for module in boot.preload:
        importlib.import_module(module)
    if boot.warm is not None:
        resolve(boot.warm)()
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # ours, not the children's: torch has a hundred, and they take 30 ms at each exit
    gc.collect()
    gc.freeze()  # children share these pages as long as no collection writes into them
    # OpenBLAS starts its threads when numpy is imported and ends them when its process forks, to start them again
    # in whoever multiplies: so fork once for nothing, and see whether other threads remain.
    flush()
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return Ready(num_threads=len(os.listdir("/proc/self/task")))


def main() -> None:
    if len(sys.argv) != 4 or os.getpgrp() != os.getpid():
        sys.exit("this program is started by windlass.engines._templates, in a session of its own")
    control_fd, lifeline, driver = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    arm(lifeline)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a killed child's last lines are those one wants to read
    for fd in (control_fd, lifeline):
        os.set_inheritable(fd, False)
    # Children are not this program: they get an empty `__main__`, which nobody would re-import or confuse with the
    # user's. Ours stays alive under its own name.
    sys.modules["windlass.engines._template"] = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    control = Channel(socket.socket(fileno=control_fd))
    server: Server | None = None
    try:
        gc.disable()
        control.send(_boot(control.recv()))
        server = Template(control, lifeline, driver).serve()
    except ChannelClosed:
        pass
    except BaseException:
        with suppress(ChannelClosed):
            control.send(Failed(ticket=0, reason=traceback.format_exc()))
    if server is not None:
        server.serve()
        os.killpg(0, signal.SIGKILL)  # this process too, and with it whatever its children started
    os._exit(0)  # it has imported much, and used nothing that would have to be tidied up


if __name__ == "__main__":
    main()
