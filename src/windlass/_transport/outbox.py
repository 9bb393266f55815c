"""What one link still has to send: a queue of chunks, in order, and what is to be reported when they have left.

Positions count bytes since the link opened. A *mark* is a position and the pins to report once everything before it
has left. A chunk may carry *segments*, whose descriptors must go with its first byte: a write never runs past such a
chunk's start unless it begins there.
"""

from __future__ import annotations

import array
import socket
from collections import deque

from windlass._transport.base import HubEvent
from windlass._transport.mapping import Mapping
from windlass._wire.effects import Sent
from windlass.types import Bytes

MAX_CHUNKS = 1024
"""IOV_MAX on Linux: the most chunks that one sendmsg takes."""

Chunk = bytes | bytearray | memoryview


class Outbox:
    """The queue of one link. Not thread-safe. Chunks are not copied: they must not change until they have left."""

    __slots__ = ("_carried", "_chunks", "_marks", "_queued", "_sent")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []
        self._marks: deque[tuple[int, tuple[int, ...]]] = deque()
        self._carried: deque[tuple[int, list[Mapping]]] = deque()
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

    def carry(self, segments: list[Mapping]) -> None:
        """The next chunk added carries these segments' descriptors."""
        self._carried.append((self._queued, segments))

    def mark(self, pins: tuple[int, ...]) -> None:
        """Report these pins when everything added so far has left."""
        self._marks.append((self._queued, pins))

    def clear(self) -> None:
        """Forget everything; nothing of it is reported."""
        self._chunks.clear()
        self._marks.clear()
        self._carried.clear()
        self._sent = self._queued

    def write(self, sock: socket.socket, events: list[HubEvent]) -> bool:
        """Hand the socket as much as it takes; True when nothing is left. Adds a Sent for every pin whose bytes have
        left. Raises OSError when the socket is broken."""
        chunks = self._chunks
        try:
            while chunks:
                if self._carried:
                    taken = self._write_carrying(sock)
                elif len(chunks) == 1:
                    taken = sock.send(chunks[0])
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

    def _write_carrying(self, sock: socket.socket) -> int:
        batch: list[Chunk] = []
        at, stops = self._sent, [position for position, _ in self._carried]
        starts_carrying = stops[0] == at
        stop = (stops[1] if len(stops) > 1 else self._queued) if starts_carrying else stops[0]
        for chunk in self._chunks[:MAX_CHUNKS]:
            if at >= stop:
                break
            batch.append(chunk)
            at += len(chunk)
        if not starts_carrying:
            return sock.sendmsg(batch)
        fds = array.array("i", [segment.fd for segment in self._carried[0][1]])
        taken = sock.sendmsg(batch, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        if taken:
            self._carried.popleft()
        return taken

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
