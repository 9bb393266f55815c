"""The smallest useful call: one worker pushes and pulls 64 bytes. `python -m bench.round_trip`."""

from __future__ import annotations

import statistics
from contextlib import ExitStack

import numpy as np
from rich.console import Console

import windlass as wl
from bench.ranks import timed
from bench.table import Extra, Report, show
from bench.targets import Verdict

ELEMENTS = 16
MAX_MILLISECONDS = 0.15


def measure_round_trip(*, alternations: int = 9, iterations: int = 1000) -> list[Extra]:
    """Over TCP and shared memory by turns; the target is TCP's."""
    seconds: dict[str, list[float]] = {"tcp": [], "shm": []}
    with ExitStack() as stack:
        clusters = {one: stack.enter_context(wl.Cluster(servers=1, workers=1, transport=one)) for one in seconds}
        for _ in range(alternations):
            for transport, cluster in clusters.items():
                seconds[transport] += cluster.run(_loop, iterations)
    extras = []
    for transport, found in seconds.items():
        median = statistics.median(found) * 1e3
        target = f"≤ {MAX_MILLISECONDS} ms" if transport == "tcp" else ""
        verdict = Verdict(target, median <= MAX_MILLISECONDS) if target else Verdict("", None)
        extras.append(Extra(f"64 B push + pull of one worker, {transport}", f"{median:.3f} ms", verdict))
    return extras


def _loop(store: wl.Store, iterations: int) -> float:
    given, out = np.ones(ELEMENTS, np.float32), np.empty(ELEMENTS, np.float32)
    store.create("w", given)
    for _ in range(50):
        store.pushpull("w", given, out=out)
    return timed(lambda: store.pushpull("w", given, out=out), store.barrier, iterations)


if __name__ == "__main__":
    show(Report("python -m bench.round_trip", extras=measure_round_trip()), Console())
