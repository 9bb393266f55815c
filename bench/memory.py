"""What a server's memory holds, against what it must hold. `python -m bench.memory`.

Counted: the server's private memory and the shared segments that it made itself, as far as they grew since the cluster
was ready; not the workers' segments, which it only sees. A server maps its own segments writable and others' read-only,
which is how the two are told apart.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import windlass as wl
from bench.table import Extra, Report, show
from bench.targets import Verdict
from windlass.types import Role

MAX_OVERHEAD = 0.15
WORKERS = 4
UPDATES: dict[str, tuple[Any, int]] = {"assign": ("assign", 0), "Adam": (wl.Adam(lr=0.001), 2)}
"""What updates the value, and how many arrays of state it keeps for each value."""


def measure_memory(*, elements: int = 25_000_000, rounds: int = 5) -> list[Extra]:
    """One server, by transport and update; the highest reading while the workers push and pull."""
    return [
        _measure(transport, update, elements, rounds) for transport in ("shm", "tcp") for update in UPDATES
    ]


def _measure(transport: str, update: str, elements: int, rounds: int) -> Extra:
    rule, states = UPDATES[update]
    with wl.Cluster(servers=1, workers=WORKERS, transport=transport) as cluster:
        pid = next(node.pid for node in cluster.nodes() if node.role is Role.SERVER)
        before = held_bytes(pid)
        with Watch(pid) as watch:
            cluster.run(_work, elements, rounds, rule)
        after = held_bytes(pid)
    staged = WORKERS if transport == "tcp" else 0
    needed = 4 * elements * (1 + states + staged)
    peak, rest = watch.peak - before, after - before
    overhead = peak / needed - 1
    found = f"{peak / 1e6:.0f} MB at most, {rest / 1e6:.0f} MB at rest, {needed / 1e6:.0f} MB needed ({overhead:+.0%})"
    what = f"server memory, {4 * elements / 1e6:.0f} MB {update}, {WORKERS} workers, {transport}"
    return Extra(what, found, Verdict(f"≤ +{MAX_OVERHEAD:.0%}", overhead <= MAX_OVERHEAD))


def held_bytes(pid: int) -> int:
    """Private memory and own shared segments of a process, in bytes that are really there."""
    total, is_own_segment = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "Anonymous" or (name == "Rss" and is_own_segment):
            total += int(rest.split()[0]) << 10
        elif "-" in name.split(" ")[0]:  # a mapping's first line: addresses, permissions, ..., file
            is_own_segment = line.split()[1].startswith("rw-s") and "memfd:windlass" in line
    return total


class Watch:
    """Reads a process's memory again and again for as long as the block lasts."""

    def __init__(self, pid: int, every_seconds: float = 0.02) -> None:
        self.peak = 0
        self._pid, self._every = pid, every_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.peak = max(self.peak, held_bytes(self._pid))
            time.sleep(self._every)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()


def _work(store: wl.Store, elements: int, rounds: int, update: Any) -> None:
    given = np.ones(elements, np.float32)
    store.create("w", np.zeros(elements, np.float32), update=update)
    out = np.empty(elements, np.float32)
    for _ in range(rounds):
        store.pushpull("w", given, out=out)


if __name__ == "__main__":
    show(Report("python -m bench.memory", extras=measure_memory()), Console())
