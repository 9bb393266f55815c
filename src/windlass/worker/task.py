"""What push and pull return: work under way, and how to wait for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from windlass.errors import WindlassError

if TYPE_CHECKING:
    from windlass.worker.client import Client


_OWN_KEY = re.compile(r"'windlass/(barrier|exchange)[^']*'")
_WORDS = {"barrier": "store.barrier()", "exchange": "an exchange between all workers"}


def in_words(text: str) -> str:
    """The text with the store's own keys told by what they are for: their names mean nothing to a user."""
    return _OWN_KEY.sub(lambda found: _WORDS[found[1]], text)


class Task:
    """One call's work, maybe on several keys. It is done when everything in it is applied (push) or here (pull)."""

    __slots__ = ("_client", "_left", "_names", "_shape", "_verb", "error", "is_seen")

    def __init__(self, client: Client, verb: str, names: Collection[str]) -> None:
        self._client = client
        self._verb = verb
        self._names = names
        self._left = len(names)
        self._shape: Callable[[], Any] | None = None
        self.error: WindlassError | None = None
        self.is_seen = False  # its error has been raised to somebody

    @property
    def text(self) -> str:
        """The call as its caller wrote it, for messages."""
        shown = [in_words(f"'{name}'") for name in self._names]
        if len(shown) == 1 and shown[0] in _WORDS.values():
            return shown[0]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        return f"{self._verb}({', '.join(shown[:3])}{more})"

    @property
    def is_done(self) -> bool:
        return self._left <= 0

    def wait(self, timeout: float | None = None) -> Any:
        """Block until done. Gives what was pulled, or None for a push; raises what went wrong. Safe to repeat, from
        any thread. Without `timeout` the store's own applies."""
        self._client.wait(self, timeout)
        if self.error is not None:
            self.is_seen = True
            raise self.error
        return self._shape() if self._shape is not None else None

    def shape_result(self, shape: Callable[[], Any]) -> None:
        """How to make the result once everything is here. Called by the store only."""
        self._shape = shape

    def expect_more(self) -> None:
        """One part more than there are keys. Called by the store only."""
        self._left += 1

    def finish(self, error: WindlassError | None) -> None:
        """One part is done. Called by the store only."""
        if error is not None:
            self.error = self.error or error
        self._left = 0 if error is not None else self._left - 1  # last: another thread may be looking

    def __repr__(self) -> str:
        state = "failed" if self.error else "done" if self.is_done else "under way"
        return f"<Task {self.text} | {state}>"
