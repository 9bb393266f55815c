"""The workers of one `windlass run`: N copies of a script, from their start to the last one's end."""

from __future__ import annotations

import os
import selectors
import signal
import time
from dataclasses import dataclass

import msgspec

from windlass._words import count
from windlass.cli.output import Lines, Output, Stream
from windlass.cli.script import TARGET, Script
from windlass.engines import _settling
from windlass.engines._children import ChannelClosed, Child
from windlass.engines._run import MAX_REPLACED
from windlass.engines.config import environment
from windlass.engines.look import Looker
from windlass.engines.processes import ProcessEngine
from windlass.errors import WindlassError
from windlass.types import Role

TERM_SECONDS = 1.0
"""After SIGTERM: how long a worker may take to leave before SIGKILL."""
CHECK_SECONDS = 0.5
"""How often the manager is asked whether the others wait for a worker that left without connecting."""
ANSWER_SECONDS = 0.5
LAST_ANSWER_SECONDS = 5.0
"""When all have ended: how long the manager may take to say whether any of them had connected."""
READ_BYTES = 64 << 10


@dataclass(slots=True)
class _Pipe:
    stream: Stream
    number: int
    lines: Lines


class Crew:
    """Starts and watches the workers of an open engine. One thread; `stop` ends them in any state."""

    def __init__(
        self,
        engine: ProcessEngine,
        num_workers: int,
        script: Script,
        output: Output,
        *,
        is_return: bool = False,
        goes_back: bool = False,
    ) -> None:
        """With `is_return` the cluster is there already: a crew before it was stopped, or a checkpoint was loaded.
        Then nobody begins before all are there. With `goes_back` the loss of a server takes the run back to its last
        checkpoint."""
        self._goes_back = goes_back
        self._engine = engine
        self._num_workers = num_workers
        self._script = script
        self._num_awaited = num_workers if is_return else 0
        self._output = output
        self._running: dict[str, Child] = {}
        self.lost_servers: list[str] = []
        self.is_alone = False  # all have ended, and none of them had joined the cluster
        self._unconnected: set[str] = set()  # left with status 0, and the manager has not said that it saw them
        self._looker: Looker | None = None
        self._num_replaced: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(engine.forks.fileno(), selectors.EVENT_READ)

    def start(self) -> None:
        for rank in range(self._num_workers):
            self._start(rank)

    def _start(self, rank: int, *, is_late: bool = False) -> None:
        name = f"worker-{rank}"
        config = msgspec.structs.replace(
            self._engine.config(Role.WORKER, rank), is_late=is_late, num_awaited=self._num_awaited
        )
        env = environment(config) | {"PYTHONUNBUFFERED": "1"}
        env |= _settling.environment(self._num_workers)
        child = self._engine.forks.spawn(name, TARGET, config=msgspec.msgpack.encode(self._script), env=env)
        self._running[name] = child
        for fd in (1, 2):
            ours, theirs = os.pipe()
            try:
                child.channel.send_fd(theirs)
            except ChannelClosed:
                pass  # it is dead already, and its status will say so
            finally:
                os.close(theirs)
            os.set_blocking(ours, False)
            pipe = _Pipe(Stream(name, fd), rank, Lines())
            self._selector.register(ours, selectors.EVENT_READ, pipe)

    # --- watching -----------------------------------------------------------------------------------------------------

    def watch(self) -> int:
        """Pass on what the workers print until all have ended or one has failed; the exit status of the run."""
        check_at = 0.0
        while self._running:
            self._turn(CHECK_SECONDS if self._unconnected else None)
            for child in self._engine.forks.collect():
                status = self._on_end(child)
                if status:
                    return status
            if self._unconnected and self._running and time.monotonic() >= check_at:
                check_at = time.monotonic() + CHECK_SECONDS
                if self._is_waited_for():
                    return 1
        self._drain()
        if len(self._unconnected) == self._num_workers and not self._have_some_connected():
            self.is_alone = True
            number = self._num_workers
            ran = "once, on its own" if number == 1 else f"{number:,} times, each time on its own"
            self._output.say(
                f"no worker called wl.connect(): the script ran {ran}; to share values, begin it with store = "
                "wl.connect(); a script that opens its own wl.Cluster is started by `python`, without windlass run",
                is_error=True,
            )
        return 0

    def _turn(self, seconds: float | None) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                self._pass_on(key.fd, key.data)

    def _pass_on(self, fd: int, pipe: _Pipe) -> bool:
        """Print what came; whether there may be more."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        lines = pipe.lines.feed(data, time.monotonic()) if data else pipe.lines.end()
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
        for line in lines:
            self._output.line(pipe.stream, pipe.number, line)
        return bool(data)

    def _drain(self, worker: str | None = None) -> None:
        """Print what has been written so far, by one worker or by all, without waiting for more."""
        for key in list(self._selector.get_map().values()):
            pipe = key.data
            if pipe is None or (worker is not None and pipe.stream.worker != worker):
                continue
            while self._pass_on(key.fd, pipe):
                pass
            for line in pipe.lines.end():
                self._output.line(pipe.stream, pipe.number, line)

    def _on_end(self, child: Child) -> int:
        code = child.exitcode or 0
        if self._running.pop(child.name, None) is None:
            if child.name.startswith("server-"):
                self.lost_servers.append(child.name)
            then = "workers that need it will get a ClusterError"
            if self._goes_back and child.name.startswith("server-"):
                then = "if what only it held is needed, the run goes back to the last checkpoint"
            if self._engine.has_replicas and child.name != "manager":
                then = "others have what it held, and go on"
            if child.name == "manager" and not self._engine.has_failed:
                return 0  # it is told by whoever starts another
            self._output.say(f"{ending(child)}; {then}", is_error=True)
            return 0
        self._drain(child.name)
        if code < 0 and self._is_made_up_for(child):
            return 0
        if code == 0:
            is_last_hope = len(self._unconnected) == self._num_workers - 1  # none of those before it has connected
            if (self._running or is_last_hope) and not self._has_connected(child.name):
                self._unconnected.add(child.name)
            return 0
        others = f"; stopping the other {len(self._running)}" if self._running else ""
        self._output.say(f"{ending(child)}{others}", is_error=True)
        return 128 - code if code < 0 else code

    def _is_made_up_for(self, child: Child) -> bool:
        """A worker was killed: whether the run goes on, without it or with another in its seat."""
        on_loss = self._engine.on_worker_loss
        if on_loss == "continue" and self._running:
            left = count(len(self._running), "worker")
            self._output.say(f"{ending(child)}; the run goes on with {left}", is_error=True)
            return True
        times = self._num_replaced[child.name] = self._num_replaced.get(child.name, 0) + 1
        if on_loss != "wait" or times > MAX_REPLACED:
            return False
        self._output.say(f"{ending(child)}; another one takes its seat, and the others wait for it", is_error=True)
        self._start(int(child.name.removeprefix("worker-")), is_late=True)
        return True

    # --- workers that never connect -----------------------------------------------------------------------------------

    def _has_connected(self, name: str) -> bool:
        """Whether the manager says so; if it is silent just now, it is asked again later."""
        nodes, _ = self._ask_manager()
        return nodes is not None and name in nodes

    def _have_some_connected(self) -> bool:
        nodes, _ = self._ask_manager(LAST_ANSWER_SECONDS)
        return nodes is None or not self._unconnected.isdisjoint(nodes)

    def _is_waited_for(self) -> bool:
        """Whether somebody waits in connect() for those who have left; if so it is said."""
        nodes, generation = self._ask_manager()
        self._unconnected -= nodes or set()
        waiting = sorted(name for name in self._running if name in (nodes or ()))
        is_under_way = generation != 0 and not self._num_awaited  # those who await all others have not begun either
        if is_under_way or not waiting or not self._unconnected:
            return False
        gone, here = ", ".join(sorted(self._unconnected)), ", ".join(waiting)
        verb = "waits" if len(waiting) == 1 else "wait"
        self._output.say(
            f"{gone} exited before it connected, and {here} {verb} for it in connect(); stopping the run: "
            "every worker has to call wl.connect()",
            is_error=True,
        )
        return True

    def _ask_manager(self, seconds: float = ANSWER_SECONDS) -> tuple[set[str] | None, int | None]:
        """The names of all nodes there have been, and the generation's number; None where the manager is silent."""
        try:
            if self._looker is None:
                self._looker = Looker(self._engine.config(Role.DRIVER, -1))
            said = self._looker.manager(seconds)
        except WindlassError:
            return None, None
        return {node["name"] for node in said["nodes"]}, int(said["generation"].partition(".")[2])

    # --- the end ------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End whoever still runs, SIGTERM first, printing what they still say. Blocks for a second at most."""
        for child in self._running.values():
            child.kill(signal.SIGTERM)
        deadline = time.monotonic() + TERM_SECONDS
        while self._running and (left := deadline - time.monotonic()) > 0:
            self._turn(left)
            self._reap()
        for child in self._running.values():
            child.kill(signal.SIGKILL)
        for child in self._running.values():
            child.wait(TERM_SECONDS)
        self._drain()
        if self._looker is not None:
            self._looker.__exit__()

    def _reap(self) -> None:
        for child in self._engine.forks.collect():
            self._running.pop(child.name, None)


def ending(child: Child) -> str:
    """How a child ended, as a sentence without its full stop."""
    code = child.exitcode or 0
    who = f"{child.name} (pid {child.pid})"
    if code < 0:
        return f"{who} was killed by {signal.Signals(-code).name}"
    return f"{who} exited with status {code}"
