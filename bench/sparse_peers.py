"""The peers of the sparse benchmark, as processes that stay alive, but are stopped, while the others are measured."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.children import START_SECONDS, STOP_SECONDS, Children, popen
from bench.peers import ROOT, MissingPeer

WANTED = {"redis": ("redis", "hiredis"), "rpc": ("torch",), "torch": ("torch",)}
SETTINGS = {
    "redis": "redis-py with hiredis over loopback, `MSET` and `MGET` in one pipeline, nothing saved to disk; rows are "
    "strings of 64 bytes. Redis adds no rows: the worker takes the step of SGD itself and writes the result, and with "
    "two workers some updates are lost",
    "rpc": "`nn.Embedding` with sparse gradients and `optim.SGD` in another process, TensorPipe as it chooses by "
    "itself, one torch thread a process; a step is one call that pushes and pulls",
    "torch": "the same embedding and optimizer in the worker's own process, torch threads on all cores: nothing "
    "travels",
}


class Peer:
    """One peer's worker processes, and its server."""

    def __init__(self, name: str, num_workers: int, num_ids: int) -> None:
        self.name = name
        self._children = Children(name)
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self._start(num_workers, num_ids)
        except BaseException:
            self.close()
            raise

    def _start(self, num_workers: int, num_ids: int) -> None:
        meeting = str(self._children.folder / "meeting")
        if self.name == "redis":
            meeting = str(self._start_redis(self._children.folder))

        def program(rank: int) -> list[str]:
            given = (self._children.address, rank, num_workers, meeting, num_ids)
            return [sys.executable, "-m", "bench.sparse_ranks", self.name, *map(str, given)]

        environment = {
            "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # a server would complain that its workers leave
        }
        if self.name == "rpc":
            self._server = popen(program(num_workers), stdin=subprocess.PIPE, env={**os.environ, **environment})
        for rank in range(num_workers):
            self._children.start(program(rank), environment)
        self._children.gather(num_workers)
        self._send(signal.SIGSTOP)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """While it is measured. Else all its processes are stopped: those of torch.rpc would spin and keep the cores
        from whoever's turn it is."""
        self._send(signal.SIGCONT)
        try:
            yield
        finally:
            self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        self._children.send(number)
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(number)

    def _start_redis(self, folder: Path) -> int:
        """On a port of its own that nobody has; answers when it does."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": folder}
        command = ["redis-server", *(str(each) for pair in options.items() for each in (f"--{pair[0]}", pair[1]))]
        self._server = popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return port
            except OSError:
                if self._server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"redis-server does not answer on port {port}") from None
                time.sleep(0.05)

    def prepare(self, elements: int) -> None:
        with self._awake():
            self._children.ask("check", 0)

    def seconds(self, iterations: int) -> float:
        with self._awake():
            return max(self._children.ask("loop", iterations))

    def drop(self) -> None:
        pass

    def close(self) -> None:
        self._send(signal.SIGCONT)
        self._children.close()
        if self._server is not None:
            if self._server.stdin is not None:
                self._server.stdin.close()
            self._server.terminate()
            try:
                self._server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()


def check_peers(names: list[str]) -> None:
    """Raise MissingPeer, with what to do, for the first of these that cannot run."""
    for name in names:
        missing = [module for module in WANTED[name] if importlib.util.find_spec(module) is None]
        if name == "redis" and shutil.which("redis-server") is None:
            missing.append("redis-server")
        if missing:
            raise MissingPeer(
                f"the peer '{name}' needs {' and '.join(missing)}; install it (`pip install torch -r "
                "bench/requirements.txt`, `apt install redis-server`) or measure without it: "
                f"--without {name}"
            )


def version(name: str) -> str:
    """What the peer calls itself."""
    if name != "redis":
        return f"torch {importlib.metadata.version('torch')}"
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    client = f"redis-py {importlib.metadata.version('redis')}, hiredis {importlib.metadata.version('hiredis')}"
    return f"Redis {said.split('v=')[1].split()[0]}, {client}"
