"""How a worker's process settles in on a machine that it shares with the other workers."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

KEPT_BYTES = 1 << 30
"""A freed block up to this size is kept for the next allocation."""

_NEVER = 2**31 - 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


# malloc gives large freed blocks back to the kernel, and a training script then pays for fresh pages in every step: a
# quarter to a half of the time of a step of a 20-million-parameter network. A worker's malloc keeps what is freed.
# And without a limit every worker's BLAS would start a thread per core, and they would spend their time on each other.


def environment(num_workers: int) -> dict[str, str]:
    """What a worker's environment should say before its process starts, where the user's own does not."""
    wanted = {}
    if not _has_malloc_settings():
        wanted["MALLOC_MMAP_THRESHOLD_"] = str(KEPT_BYTES)
        wanted["MALLOC_TRIM_THRESHOLD_"] = str(_NEVER)
    if "OMP_NUM_THREADS" not in os.environ:
        wanted["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // num_workers))
    return wanted


def settle(num_workers: int) -> None:
    """The same in a process that runs already, where libraries have read their environment."""
    wanted = environment(num_workers)
    if not _has_malloc_settings():
        with suppress(OSError, AttributeError):  # a C library without mallopt decides for itself
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
            mallopt(_M_TRIM_THRESHOLD, _NEVER)
    threads = wanted.get("OMP_NUM_THREADS")
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = threads
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(int(threads))


def _has_malloc_settings() -> bool:
    return any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
