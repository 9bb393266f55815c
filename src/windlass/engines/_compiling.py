"""Telling whoever waits that kernels are being compiled, which a new install does for each kind of key."""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

NOTICE_SECONDS = 2.0
QUIET_SECONDS = 60.0
"""Whoever was told is not told again for so long, of another kind of key, or by another server."""
SILENCE = "WINDLASS_SILENT_COMPILING"
"""Set in the environment by whoever shows it already: a line of the log would fall into a progress bar."""

log = logging.getLogger("windlass")


@contextmanager
def noticed(seconds: float = NOTICE_SECONDS) -> Iterator[None]:
    """Inside, if kernels are compiled, and not only loaded, for longer than so many seconds, a line of the log says so
    while it goes on. No thread is left behind: a process may be forked afterwards."""
    # Here, because importing numba takes most of a second; and whole before its part: another thread may be importing
    # it, and for a part of it alone Python does not wait.
    import numba  # noqa: F401
    from numba.core import event

    if SILENCE in os.environ:
        yield
        return
    last = _last_told()
    timer = threading.Timer(seconds, _tell, (last,))
    timer.daemon = True

    class Compiling(event.Listener):
        def on_start(self, event: Any) -> None:
            if timer.ident is None:
                timer.start()

        def on_end(self, event: Any) -> None: ...

    with event.install_listener("numba:compile", Compiling()):
        try:
            yield
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()


def _tell(last: mmap.mmap) -> None:
    now = time.monotonic()
    (then,) = struct.unpack("d", last[:8])
    if not then or now - then > QUIET_SECONDS:
        last[:8] = struct.pack("d", now)
        log.warning("compiling kernels, once for each kind of key on a new install: this may take half a minute")


@cache
def _last_told() -> mmap.mmap:
    """When it was told last, by this process or by any that was forked from the same one: they share this memory, and
    whoever forks them has entered `noticed` before."""
    return mmap.mmap(-1, 8)
