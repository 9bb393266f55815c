"""Whose turn it is to do the I/O of a store.

One thread at a time polls the links: the caller that waits (no hand-over, so no delay), or, while nobody waits and
something is under way, a background thread. A thread that needs the turn at once asks for it, and the poller gives
way; a second waiter just waits until its work is done or the turn is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Turn:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = wake
        self._owner: int | None = None
        self._is_background = False
        self._followers = 0
        self.requests = 0  # threads that ask the owner to give way; read by the owner without the lock

    def take(self) -> None:
        """Get the turn, asking whoever has it to give way."""
        with self._lock:
            if self._owner is not None:
                self.requests += 1
                self._wake()
                while self._owner is not None:
                    self._changed.wait()
                self.requests -= 1
            self._owner = threading.get_ident()
            self._is_background = False

    def take_or(self, is_done: Callable[[], bool], timeout: float | None) -> bool:
        """Get the turn when it is free, unless `is_done` comes true first, or the time is over. True: we have it."""
        with self._lock:
            if self._owner is not None and self._is_background:
                self.requests += 1
                self._wake()
                while self._owner is not None:
                    self._changed.wait()
                self.requests -= 1
            elif self._owner is not None:
                self._followers += 1
                self._changed.wait_for(lambda: self._owner is None or is_done(), timeout)
                self._followers -= 1
                if self._owner is not None:
                    return False
            self._owner = threading.get_ident()
            self._is_background = False
            return True

    def try_background(self) -> bool:
        """For the background thread: take the turn only if it is free and nobody asks for it."""
        with self._lock:
            if self._owner is not None or self.requests:
                return False
            self._owner = threading.get_ident()
            self._is_background = True
            return True

    def wait_free(self, timeout: float) -> None:
        """For the background thread: wait until nobody has the turn."""
        with self._lock:
            self._changed.wait_for(lambda: self._owner is None, timeout)

    def give(self) -> None:
        with self._lock:
            self._owner = None
            self._changed.notify_all()

    def tell_followers(self) -> None:
        """Something was finished; those who wait for it may go."""
        if self._followers:
            with self._lock:
                self._changed.notify_all()
