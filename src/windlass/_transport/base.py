"""What a service needs from a transport, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from windlass._wire.effects import LinkDown, LinkUp, Received, Send, Sent
from windlass.types import Block, Bytes, Incarnation, Memory

HubEvent = Received | LinkUp | LinkDown | Sent


class Hub(Protocol):
    """All links of one node. One thread at a time may call it, except `wake`, which any thread may call.

    Messages to one peer arrive in the order sent, or the link goes down; nothing is repeated or reordered. What was
    sent before LinkUp or after LinkDown is dropped.
    """

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where others can dial this node; empty if it does not listen."""
        ...

    @property
    def memory(self) -> Memory:
        """Memory from which this hub can send by reference, where its links allow it."""
        ...

    @property
    def copied_bytes(self) -> int:
        """A private block of at most so many bytes is copied by `send`, and free again when it returns."""
        ...

    def dial(self, peer: Incarnation, addresses: Sequence[str]) -> None:
        """Begin to open a link; does not block. LinkUp or LinkDown follows. Harmless when a link is open already."""
        ...

    def send(self, send: Send) -> None:
        """Queue a message and its data; does not block. Bytes leave at the next `flush` or `poll`."""
        ...

    def flush(self) -> None:
        """Push queued bytes out as far as the links take them now; does not block."""
        ...

    def poll(self, timeout: float | None) -> list[HubEvent]:
        """Flush, then wait up to `timeout` seconds (None: for ever, 0: not at all) for events. Returns early, with an
        empty list, when `wake` was called."""
        ...

    def shares_memory_with(self, peer: Incarnation) -> bool:
        """Whether large blocks of `memory` reach this peer as references instead of bytes."""
        ...

    def dedicated(self, nbytes: int) -> Block:
        """A large block for a caller to fill and send from, again and again."""
        ...

    def contiguous(self, arrays: Sequence[Bytes]) -> Bytes | None:
        """Received references as one array without a copy, or None where that cannot be."""
        ...

    def own_unsent(self) -> None:
        """Copy what is queued and not yet sent: its owner wants its memory back."""
        ...

    def recycle(self, data: tuple[Bytes, ...]) -> None:
        """Take back buffers of a Received that nobody needs any more."""
        ...

    def hangup(self, peer: Incarnation, reason: str) -> None:
        """Close the link to this peer. LinkDown is reported for it."""
        ...

    @property
    def has_unsent(self) -> bool:
        """Whether bytes are queued that the links have not taken yet."""
        ...

    def wake(self) -> None:
        """Make a `poll` that is under way in another thread return now, or the next one return at once."""
        ...

    def close(self) -> None:
        """Close every link and the listeners. Safe to repeat."""
        ...
