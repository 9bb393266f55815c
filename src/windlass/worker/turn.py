"""Whose turn it is to do the I/O of a store.

One thread at a time polls the links: the caller that waits (no hand-over, so no delay), or, while nobody waits and
something is under way, a background thread. A thread that needs the turn at once asks for it, and the poller gives
way; a second waiter just waits until its work is done or the turn is free.

The turn is handed from one thread to the next, and nobody else is woken: Python runs one thread at a time, and each
that wakes up for nothing costs all others a part of its switch interval.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import Enum


class Holder(Enum):
    NOBODY = "nobody"
    CALLER = "caller"
    BACKGROUND = "background"


NOBODY, CALLER, BACKGROUND = Holder  # by names of their own: members of an enum take long to be found


class _Sleeper:
    """A thread that waits for the turn; or, if that comes first, until `is_done`."""

    __slots__ = ("has_turn", "is_done", "sleep")

    def __init__(self, is_done: Callable[[], bool] | None = None) -> None:
        self.is_done = is_done
        self.has_turn = False
        self.sleep = threading.Lock()
        self.sleep.acquire()


class Turn:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._wake = wake
        self._holder = NOBODY
        self._asking: deque[_Sleeper] = deque()  # those who want the holder to give way
        self._waiting: deque[_Sleeper] = deque()  # those to whom it is enough that somebody does the work

    @property
    def requests(self) -> int:
        """How many ask the holder to give way; it may look without the lock."""
        return len(self._asking)

    def take(self) -> None:
        """Get the turn, asking whoever has it to give way."""
        with self._lock:
            if self._holder is NOBODY:
                self._holder = CALLER
                return
            sleeper = self._ask()
        self._sleep(sleeper, self._asking, -1)

    def take_or(self, is_done: Callable[[], bool], timeout: float) -> bool:
        """Get the turn when it is free, unless `is_done` comes true first, or the time is over. True: we have it."""
        with self._lock:
            if self._holder is NOBODY:
                self._holder = CALLER
                return True
            if self._holder is CALLER:
                queue, sleeper = self._waiting, _Sleeper(is_done)
                queue.append(sleeper)
            else:
                queue, sleeper, timeout = self._asking, self._ask(), -1
        return self._sleep(sleeper, queue, timeout)

    def try_background(self) -> bool:
        """For the background thread: take the turn only if it is free and nobody asks for it."""
        with self._lock:
            if self._holder is not NOBODY or self._asking:
                return False
            self._holder = BACKGROUND
            return True

    def give(self) -> None:
        with self._lock:
            self._give()

    def tell(self) -> None:
        """Something was finished; those who wait for it may go."""
        if self._waiting:
            with self._lock:
                for sleeper in [one for one in self._waiting if one.is_done is not None and one.is_done()]:
                    self._waiting.remove(sleeper)
                    sleeper.sleep.release()

    def _ask(self) -> _Sleeper:
        sleeper = _Sleeper()
        self._asking.append(sleeper)
        self._wake()
        return sleeper

    def _sleep(self, sleeper: _Sleeper, queue: deque[_Sleeper], timeout: float) -> bool:
        try:
            sleeper.sleep.acquire(timeout=timeout)
        except BaseException:  # what a signal handler has raised
            with self._lock:
                if sleeper.has_turn:
                    self._give()
                elif sleeper in queue:
                    queue.remove(sleeper)
            raise
        with self._lock:
            if not sleeper.has_turn and sleeper in queue:
                queue.remove(sleeper)
            return sleeper.has_turn

    def _give(self) -> None:
        """Hand the turn to the next; if there is nobody, it is free."""
        queue = self._asking or self._waiting
        if not queue:
            self._holder = NOBODY
            return
        sleeper = queue.popleft()
        self._holder, sleeper.has_turn = CALLER, True
        sleeper.sleep.release()
