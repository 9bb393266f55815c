"""Watches the manager's process, and starts another when it dies."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from windlass.engines._channel import ChannelClosed
from windlass.engines._children import Child
from windlass.errors import WindlassError

log = logging.getLogger("windlass")

MAX_RESTARTS = 5
WINDOW_SECONDS = 60.0
"""A manager that dies more than MAX_RESTARTS times within this time is not started again."""
START_SECONDS = 10.0


class Revival:
    """A daemon thread for as long as the cluster is open. `start` starts a manager and gives its process, which says on
    its channel that it listens; `ended` gives the words for how one ended. When it keeps dying, `give_up` is called,
    in that thread, with the reason."""

    def __init__(
        self,
        manager: Child,
        start: Callable[[], Child],
        ended: Callable[[Child], str],
        give_up: Callable[[str], None],
    ) -> None:
        self.num_restarts = 0
        self._manager = manager
        self._start = start
        self._ended = ended
        self._give_up = give_up
        self._owner = os.getpid()
        self._is_over = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="windlass-revival", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """From now on nothing is started; does not wait for long. Safe to repeat."""
        if self._is_over or os.getpid() != self._owner:
            return
        self._is_over = True
        os.eventfd_write(self._stop, 1)
        self._thread.join(START_SECONDS)
        os.close(self._stop)

    def _run(self) -> None:
        deaths: deque[float] = deque(maxlen=MAX_RESTARTS)
        while self._is_gone(self._manager.pid):
            text = self._ended(self._manager)
            now = time.monotonic()
            if len(deaths) == MAX_RESTARTS and now - deaths[0] < WINDOW_SECONDS:
                reason = f"{text}; managers have died {MAX_RESTARTS + 1} times within {WINDOW_SECONDS:.0f} s"
                self._give_up(reason)  # first: who reads the line may act on it
                log.error("%s; it is not started again", reason)
                return
            deaths.append(now)
            log.warning("%s; another one is started, and what is under way goes on", text)
            try:
                self._manager = self._start()
                self.num_restarts += 1
                if self._manager.channel.readable(START_SECONDS):
                    self._manager.channel.recv()
            except (EOFError, ChannelClosed):
                continue  # it died while it started: once more
            except WindlassError as error:
                if not self._is_over:
                    self._give_up(f"{text}, and another one could not be started: {error}")
                    log.error("%s; another one cannot be started: %s", text, error)
                return

    def _is_gone(self, pid: int) -> bool:
        """Wait for the end of this process (True), or for `close` (False)."""
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return not self._is_over
        try:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.register(self._stop, select.POLLIN)
            poll.poll()
        finally:
            os.close(process)
        return not self._is_over
