"""What one link still has to send: chunks, in order, and what is to be reported when they have left.

Positions count bytes since the link opened. A *mark* is a position and the pins to report once everything before it
has left. While a link has more to send than it can take, whole messages wait, the highest priority first and equal
ones in the order they came; what has begun to leave is never overtaken.
"""

from __future__ import annotations

import heapq
import socket
from collections import deque

from windlass._transport.base import HubEvent
from windlass._transport.tls import TlsSocket
from windlass._wire.effects import Sent

MAX_CHUNKS = 1024
"""IOV_MAX on Linux: the most chunks that one sendmsg takes."""

Chunk = bytes | bytearray | memoryview

AHEAD_BYTES = 1 << 20
"""How much is lined up before messages begin to wait: more would make an urgent one late, less would cost calls."""


class Outbox:
    """The queue of one link. Not thread-safe. Chunks are not copied: they must not change until they have left."""

    __slots__ = ("_chunks", "_count", "_marks", "_queued", "_sent", "_waiting")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._marks: deque[tuple[int, tuple[int, ...]]] = deque()
        self._queued = 0
        self._sent = 0
        self._waiting: list[tuple[int, int, list[Chunk], tuple[int, ...]]] = []  # a heap
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)  # what waits does so behind chunks

    def add(self, chunk: Chunk) -> None:
        """Queue a frame of the link's own: before every message that waits."""
        self._chunks.append(chunk)
        self._queued += len(chunk)

    def post(self, chunks: list[Chunk], pins: tuple[int, ...], priority: int) -> None:
        """Queue a message; report these pins when it has left. Messages of one priority leave in order."""
        if self._waiting or self._queued - self._sent > AHEAD_BYTES:
            self._count += 1
            heapq.heappush(self._waiting, (-priority, self._count, chunks, pins))
        else:
            self._line_up(chunks, pins)

    def _line_up(self, chunks: list[Chunk], pins: tuple[int, ...]) -> None:
        for chunk in chunks:
            self._queued += len(chunk)
        self._chunks += chunks
        if pins:
            self._marks.append((self._queued, pins))

    def own(self) -> None:
        """Copy whatever still lies in somebody else's memory."""
        self._chunks = [_own(chunk) for chunk in self._chunks]
        for _, _, chunks, _ in self._waiting:
            chunks[:] = [_own(chunk) for chunk in chunks]

    def clear(self) -> None:
        """Forget everything; nothing of it is reported."""
        self._chunks.clear()
        self._waiting.clear()
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
                    if taken == len(chunks[0]) and not self._waiting:
                        self._sent = self._queued
                        chunks.clear()
                        break
                else:
                    taken = sock.sendmsg(chunks if len(chunks) <= MAX_CHUNKS else chunks[:MAX_CHUNKS])
                self._advance(taken)
                while self._waiting and self._queued - self._sent <= AHEAD_BYTES:
                    _, _, message, pins = heapq.heappop(self._waiting)
                    self._line_up(message, pins)
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


def _own(chunk: Chunk) -> Chunk:
    return bytes(chunk) if isinstance(chunk, memoryview) else chunk
