"""Whose turn it is to do the I/O of a store.

One thread at a time polls the links: the caller that waits (no hand-over, so no delay), or, while nobody waits and
something is under way, a background thread. A thread that needs the turn at once asks for it, and the poller gives
way; a second waiter just waits until its work is done or the turn is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum


class Holder(Enum):
    NOBODY = "nobody"
    CALLER = "caller"
    BACKGROUND = "background"


NOBODY, CALLER, BACKGROUND = Holder  # by names of their own: members of an enum take long to be found


class Turn:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wake = wake
        self._holder = NOBODY
        self._sleepers = 0
        self.requests = 0  # threads that ask the holder to give way; the holder reads it without the lock

    def take(self) -> None:
        """Get the turn, asking whoever has it to give way."""
        with self._lock:
            if self._holder is NOBODY:
                self._holder = CALLER
            else:
                self._take()

    def take_or(self, is_done: Callable[[], bool], timeout: float) -> bool:
        """Get the turn when it is free, unless `is_done` comes true first, or the time is over. True: we have it."""
        with self._lock:
            if self._holder is CALLER:
                self._sleep_until(lambda: self._holder is not CALLER or is_done(), timeout)
                if self._holder is CALLER or is_done():
                    return False
            self._take()
            return True

    def try_background(self) -> bool:
        """For the background thread: take the turn only if it is free and nobody asks for it."""
        with self._lock:
            if self._holder is not NOBODY or self.requests:
                return False
            self._holder = BACKGROUND
            return True

    def give(self) -> None:
        with self._lock:
            self._holder = NOBODY
            if self._sleepers:
                self._changed.notify_all()

    def tell(self) -> None:
        """Something was finished; those who wait for it may go."""
        if self._sleepers:
            with self._lock:
                self._changed.notify_all()

    def _take(self) -> None:
        if self._holder is not NOBODY:
            self.requests += 1
            try:
                self._wake()
                self._sleep_until(lambda: self._holder is NOBODY, None)
            finally:
                self.requests -= 1
        self._holder = CALLER

    def _sleep_until(self, is_true: Callable[[], bool], timeout: float | None) -> None:
        self._sleepers += 1
        try:
            self._changed.wait_for(is_true, timeout)
        finally:
            self._sleepers -= 1
