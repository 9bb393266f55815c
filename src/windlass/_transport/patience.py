"""How a hub waits: first awake, for a moment, then asleep.

Falling asleep and being woken costs both sides tens of microseconds, and a virtual machine's idle core more. So a hub
whose last waits were short looks again and again for a moment before it sleeps, giving the core to whoever else wants
it between two looks. A hub whose waits are long stops doing so after the first, and so does one that has given its core
away a few times: there are more to do than cores, and a core that is given away without a sleep is paid for by others.
Measured on Linux 6.18: processes that woke up beside hubs that yielded all the time ran up to two seconds late. It
seems to count a yield as a whole slice of time used, and to queue who wakes up where those are who yield.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

AWAKE_SECONDS = 1e-3
"""How long a wait may be met awake. Longer helps nobody: what takes longer is worth a sleep."""
MAX_GIVEN = 4
"""How often the core is given away between two sleeps."""
GIVEN_SECONDS = 2e-6
"""A yield that takes longer has let somebody else run; where nobody wants the core it takes a third of that."""


class Patience:
    """Waits on an epoll object. One owner. `give_way` lets whoever else is ready have the core; `clock` gives seconds,
    finer than a yield takes."""

    def __init__(
        self,
        epoll: select.epoll,
        max_ready: int,
        give_way: Callable[[], object] = os.sched_yield,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._poll, self._give_way, self._clock = epoll.poll, give_way, clock
        self._max_ready = max_ready
        self._is_worth_it = True
        self._given = 0  # how often the core was given away since the last sleep

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """As `epoll.poll`."""
        ready = self._poll(0, self._max_ready)
        if ready or seconds == 0:
            return ready
        clock = self._clock
        now = began = clock()
        if self._is_worth_it:
            until = began + (AWAKE_SECONDS if seconds is None else min(seconds, AWAKE_SECONDS))
            while now < until and self._given < MAX_GIVEN:
                before = clock()
                self._give_way()
                now = clock()
                if now - before > GIVEN_SECONDS:
                    self._given += 1
                ready = self._poll(0, self._max_ready)
                if ready:
                    return ready
            if seconds is not None:
                seconds = max(0.0, seconds - (now - began))
        ready = self._poll(seconds, self._max_ready)
        self._given = 0
        self._is_worth_it = clock() - now < AWAKE_SECONDS
        return ready
