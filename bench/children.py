"""Processes that the benchmark starts: each calls back on a private socket, and none outlives the block."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
STOP_SECONDS = 3.0

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one ends, in whatever way: one that is stopped hears of nothing
    else."""
    return subprocess.Popen(
        list(command), preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), **options
    )


class Children:
    """Starts commands and waits for `expected` of their processes to call back with their rank.

    Leaving the block closes the connections, which is how a child learns that it is over, and kills whoever has not
    heard. They end with their driver, too, however that ends.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._key = secrets.token_hex(16)
        self._folder = tempfile.TemporaryDirectory(prefix="windlass-bench-")
        self.folder = Path(self._folder.name)
        self.address = str(self.folder / "driver")
        self._listener = Listener(self.address, authkey=bytes.fromhex(self._key))
        self._processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[Connection[Any, Any]] = []

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._processes.append(
            popen(
                command,
                env={**os.environ, **environment, "BENCH_KEY": self._key, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                start_new_session=True,  # Ctrl-C is the driver's to handle
            )
        )

    def gather(self, expected: int) -> None:
        """Wait for everyone's call. Raises when a process ends, or time is up, before."""
        by_rank: dict[int, Connection[Any, Any]] = {}
        until = time.monotonic() + START_SECONDS
        raw = self._listener._listener._socket  # type: ignore[attr-defined]
        raw.settimeout(0.2)
        while len(by_rank) < expected:
            try:
                connection = self._listener.accept()
            except TimeoutError:
                ended = [process.returncode for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > until:
                    why = f"a process ended with code {ended[0]}" if ended else f"it took over {START_SECONDS:.0f} s"
                    raise RuntimeError(f"{self.name} did not start: {why}; its own words are above") from None
                continue
            by_rank[connection.recv()] = connection
        self.connections = [by_rank[rank] for rank in sorted(by_rank)]

    def ask(self, *command: object) -> list[Any]:
        """Send everybody the same and wait for everybody's answer."""
        try:
            for connection in self.connections:
                connection.send(command)
            return [connection.recv() for connection in self.connections]
        except (EOFError, OSError) as error:
            raise RuntimeError(f"a process of {self.name} died; its own words are above") from error

    def send(self, number: signal.Signals) -> None:
        """Send this signal to all processes, and to what they have started."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def close(self) -> None:
        self.send(signal.SIGCONT)
        for connection in self.connections:
            connection.close()
        self._listener.close()
        until = time.monotonic() + STOP_SECONDS
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.poll() is None:
                process.terminate()  # mpirun takes its ranks with it
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
