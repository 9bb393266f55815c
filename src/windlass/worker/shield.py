"""Ctrl-C, put off while a store is in the middle of its work, or a cluster in the middle of its opening or closing.

An interrupt is an exception between any two instructions. Where messages are half counted and half sent it would leave
a store that waits for ever; where processes are half started it would leave them behind. So while the main thread has
the turn, Ctrl-C is noted and wakes the wait; it is raised as soon as the turn is given away. What takes longer is done
`uninterrupted`, and lets Ctrl-C in where it waits.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from windlass.errors import WindlassError

_MAIN = threading.main_thread().ident

# What `signal` is made on. Its own functions turn numbers into enums and back, which takes 15 times as long as what
# they do, and every call of a store asks for it three times.
_signals: Any = sys.modules.get("_signal", signal)
_SIGINT = int(signal.SIGINT)


class Shield:
    """Use as a context manager; not nested. Puts nothing off in other threads, or where Ctrl-C is ignored. Should any
    other exception cut the work short, `on_cut` hears of it."""

    def __init__(self, wake: Callable[[], None], on_cut: Callable[[BaseException], None]) -> None:
        self._wake = wake
        self._on_cut = on_cut
        self._handler: Any = None
        self.is_struck = False

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN:
            handler = _signals.getsignal(_SIGINT)
            if callable(handler):
                self._handler = handler
                _signals.signal(_SIGINT, self._note)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, WindlassError):
            self._on_cut(error)
        handler = self._handler
        if handler is not None and threading.get_ident() == _MAIN:
            self._handler = None
            _signals.signal(_SIGINT, handler)
            if self.is_struck:
                self.is_struck = False
                handler(signal.SIGINT, None)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.is_struck = True
        self._wake()


class _PutOff:
    """Whether Ctrl-C was pressed since the handler was exchanged for this one."""

    def __init__(self, handler: Callable[[int, FrameType | None], object]) -> None:
        self.handler = handler
        self.is_struck = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self.is_struck = True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off until the end of the block, or until `let_in` is called inside it. May be nested: the outermost
    decides. Does nothing in other threads, or where Ctrl-C is ignored."""
    handler = _signals.getsignal(_SIGINT) if threading.get_ident() == _MAIN else None
    if not callable(handler) or isinstance(handler, _PutOff):
        yield
        return
    put_off = _PutOff(handler)
    try:
        _signals.signal(_SIGINT, put_off)
        yield
    finally:
        if _signals.getsignal(_SIGINT) is put_off:  # else whoever came later knows better
            _signals.signal(_SIGINT, handler)
        if put_off.is_struck:
            handler(_SIGINT, None)


def let_in() -> None:
    """Inside `uninterrupted`: if Ctrl-C was pressed, let it have its effect here, where it does no harm."""
    put_off = _signals.getsignal(_SIGINT) if threading.get_ident() == _MAIN else None
    if isinstance(put_off, _PutOff) and put_off.is_struck:
        put_off.is_struck = False
        put_off.handler(_SIGINT, None)
