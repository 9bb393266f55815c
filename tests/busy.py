"""Promises in seconds are made for a machine that has nothing else to do; tests may run on one that has."""

from __future__ import annotations

import time
from collections.abc import Callable

SAMPLE_SECONDS = 0.2


def is_within(took: float, seconds: float) -> bool:
    """Whether something took less than that, or as many times that as plain work takes longer at the moment. Looks at
    the machine, for a fifth of a second or more, only when it took too long."""
    return took < seconds or took < seconds * slowness()


def is_soon(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes to hold within that, or within as many times that as the machine is slow when it is over."""
    began = time.monotonic()
    while not (is_so := holds()) and is_within(time.monotonic() - began, seconds):
        time.sleep(0.01)
    return is_so


def slowness() -> float:
    """How many times as long as alone a process works now: 1 on a quiet machine, 2 where two want each core."""
    began, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < SAMPLE_SECONDS:
        pass
    return (time.monotonic() - began) / SAMPLE_SECONDS
