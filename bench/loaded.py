"""A cluster under load: workers push one model in a loop and note down when each push began and was acknowledged."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import windlass as wl
from windlass.testing.havoc import Hand, Havoc

ELEMENTS = 5_000_000  # 20 MB of float32
WORKERS = 4
WARM_PUSHES = 5

Pushes = list[tuple[float, float]]
"""(began, acknowledged) of each push, by the clock that all processes of this machine share."""


def push_until(store: wl.Store, flag: str, elements: int) -> Pushes:
    """What each worker does, until the file is there. All make the same number of pushes, as rounds want it: they
    agree on every tenth whether it was the last."""
    store.create("model", np.zeros(elements, np.float32), update=wl.SGD(lr=0.1))
    gradient = np.full(elements, 1e-3, np.float32)
    made: Pushes = []
    while True:
        for _ in range(10):
            began = time.monotonic()
            store.push("model", gradient).wait()
            made.append((began, time.monotonic()))
        if b"1" in store.exchange(b"1" if os.path.exists(flag) else b"0"):
            return made[WARM_PUSHES:]


class Load:
    """Runs `push_until` in a thread, for as long as a plan is carried out beside it; then has every worker's pushes."""

    def __init__(self, cluster: wl.Cluster, elements: int = ELEMENTS) -> None:
        self._cluster, self._elements = cluster, elements
        self.pushes: list[Pushes] = []

    def during(self, plan: Callable[[Hand], Any]) -> list[Pushes]:
        """Blocks until the plan is over."""
        with tempfile.TemporaryDirectory() as place:
            flag = Path(place) / "over"

            def then_stop(hand: Hand) -> None:
                try:
                    hand.await_version("model", WARM_PUSHES)
                    hand.await_whole(self._cluster._engine.options.replicas + 1)
                    plan(hand)
                    time.sleep(0.3)
                finally:
                    flag.touch()

            with Havoc(self._cluster, then_stop, 0):
                self.pushes = self._cluster.run(push_until, str(flag), self._elements)
        return self.pushes


def first_after(pushes: list[Pushes], moment: float) -> float:
    """Seconds from then until the first push that was begun later is acknowledged."""
    return min(ended for one in pushes for began, ended in one if began > moment) - moment


def longest_within(pushes: list[Pushes], begin: float, end: float) -> float:
    """The longest push that was under way at any moment between these."""
    return max(ended - began for one in pushes for began, ended in one if ended > begin and began < end)


def median_push(pushes: list[Pushes], begin: float, end: float) -> float:
    return statistics.median(ended - began for one in pushes for began, ended in one if ended > begin and began < end)


def rate(pushes: list[Pushes]) -> float:
    """Rounds per second, from the first push of anybody to the last."""
    begin = min(one[0][0] for one in pushes)
    end = max(one[-1][1] for one in pushes)
    return len(pushes[0]) / (end - begin)


def rate_within(pushes: list[Pushes], begin: float, end: float) -> float:
    """Rounds per second that were acknowledged between these moments."""
    return statistics.mean(sum(begin < ended <= end for _, ended in one) for one in pushes) / (end - begin)


def sleeping(seconds: float) -> Callable[[Hand], None]:
    return lambda hand: time.sleep(seconds)
