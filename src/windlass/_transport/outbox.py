"""What one link still has to send: a queue of chunks, in order, and what is to be reported when they have left.

Positions count bytes since the link opened. A *mark* is a position and the pins to report once everything before it
has left.
"""

from __future__ import annotations

import socket
from collections import deque

from windlass._transport.base import HubEvent
from windlass._transport.tls import TlsSocket
from windlass._wire.effects import Sent
from windlass.types import Bytes

MAX_CHUNKS = 1024
"""IOV_MAX on Linux: the most chunks that one sendmsg takes."""

Chunk = bytes | bytearray | memoryview


class Outbox:
    """The queue of one link. Not thread-safe. Chunks are not copied: they must not change until they have left."""

    __slots__ = ("_chunks", "_marks", "_queued", "_sent")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._marks: deque[tuple[int, tuple[int, ...]]] = deque()
        self._queued = 0
        self._sent = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._queued += len(chunk)

    def add_array(self, block: Bytes) -> None:
        """Queue a block's memory itself. Its flat bytes: `len` of the view counts them."""
        self._chunks.append(block.data)
        self._queued += block.nbytes

    def mark(self, pins: tuple[int, ...]) -> None:
        """Report these pins when everything added so far has left."""
        self._marks.append((self._queued, pins))

    def own(self) -> None:
        """Copy whatever still lies in somebody else's memory."""
        self._chunks = [bytes(chunk) if isinstance(chunk, memoryview) else chunk for chunk in self._chunks]

    def clear(self) -> None:
        """Forget everything; nothing of it is reported."""
        self._chunks.clear()
        self._marks.clear()
        self._sent = self._queued

    def write(self, sock: socket.socket | TlsSocket, events: list[HubEvent]) -> bool:
        """Hand the socket as much as it takes; True when nothing is left. Adds a Sent for every pin whose bytes have
        left. Raises OSError when the socket is broken."""
        chunks = self._chunks
        try:
            while chunks:
                if len(chunks) == 1:
                    taken = sock.send(chunks[0])
                    if taken == len(chunks[0]):
                        self._sent = self._queued
                        chunks.clear()
                        break
                else:
                    taken = sock.sendmsg(chunks if len(chunks) <= MAX_CHUNKS else chunks[:MAX_CHUNKS])
                self._advance(taken)
                if not taken:
                    break
        except BlockingIOError:
            pass
        marks = self._marks
        while marks and marks[0][0] <= self._sent:
            events.extend([Sent(pin) for pin in marks.popleft()[1]])
        return not chunks

    def _advance(self, taken: int) -> None:
        self._sent += taken
        if self._sent == self._queued:
            self._chunks.clear()
            return
        done = 0
        chunks = self._chunks
        while taken >= len(chunks[done]):
            taken -= len(chunks[done])
            done += 1
        if taken:
            chunks[done] = memoryview(chunks[done])[taken:]
        del chunks[:done]
