"""How a hub waits: first awake, for a moment, then asleep.

Falling asleep and being woken costs both sides tens of microseconds, and a virtual machine's idle core more. So a hub
whose last waits were short looks again and again for a moment before it sleeps, giving the core to whoever else wants
it between two looks. A hub whose waits are long stops doing so after the first.
"""

from __future__ import annotations

import os
import select
import time

AWAKE_SECONDS = 1e-3
"""How long a wait may be met awake. Longer helps nobody: what takes longer is worth a sleep."""


class Patience:
    """Waits on an epoll object. One owner."""

    def __init__(self, epoll: select.epoll, max_ready: int) -> None:
        self._poll = epoll.poll
        self._max_ready = max_ready
        self._is_worth_it = True

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """As `epoll.poll`."""
        if seconds == 0:
            return self._poll(0, self._max_ready)
        now = began = time.perf_counter()
        if self._is_worth_it:
            until = began + (AWAKE_SECONDS if seconds is None else min(seconds, AWAKE_SECONDS))
            while now < until:
                ready = self._poll(0, self._max_ready)
                if ready:
                    return ready
                os.sched_yield()
                now = time.perf_counter()
            if seconds is not None:
                seconds = max(0.0, seconds - (now - began))
        ready = self._poll(seconds, self._max_ready)
        self._is_worth_it = time.perf_counter() - now < AWAKE_SECONDS
        return ready
