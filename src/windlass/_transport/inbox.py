"""What one link has received: bytes in, events out. No I/O.

Bytes come in two ways. Most come through the *scratch* that all links of a hub share: one recv takes whatever is
there, and every whole frame in it is decoded at once. When a frame is longer than what came, the rest of it has a
place already, the *wanted* views, and is received straight into them: no second copy. The first bytes of an
unfinished header are the only thing kept aside; the next read puts them back in front.
"""

from __future__ import annotations

import numpy as np

from windlass._transport.base import HubEvent
from windlass._transport.pool import BufferPool
from windlass._transport.segments import PeerSegments
from windlass._wire.effects import Received
from windlass._wire.frame import HEADER_BYTES, FrameLimits, Kind, decode_goodbye, decode_message, parse_header
from windlass._wire.messages import AnyMessage
from windlass.errors import PeerError
from windlass.types import Bytes, Incarnation


class Goodbye(Exception):
    """The peer closes the link on purpose."""


class Scratch:
    """Where bytes arrive first. `view` starts HEADER_BYTES into the memory, which leaves room to put the beginning
    of a header back in front."""

    def __init__(self, nbytes: int) -> None:
        self.array: Bytes = np.empty(HEADER_BYTES + nbytes, np.uint8)
        self.memory = self.array.data
        self.view = self.memory[HEADER_BYTES:]


class Inbox:
    """The receiving half of one open link. Not thread-safe. Every method raises PeerError for malformed bytes, after
    which the link must be closed, and Goodbye when the peer said so."""

    __slots__ = ("_data", "_kind", "_limits", "_message", "_meta", "_payload_bytes", "_peer", "_pool", "_segments",
                 "_tail", "wanted")

    def __init__(
        self, peer: Incarnation, limits: FrameLimits, pool: BufferPool, segments: PeerSegments | None
    ) -> None:
        self.wanted: list[memoryview] = []
        self._peer, self._limits, self._pool, self._segments = peer, limits, pool, segments
        self._tail = b""
        self._kind = self._payload_bytes = 0
        self._meta: bytearray | None = None
        self._message: AnyMessage | None = None
        self._data: tuple[Bytes, ...] = ()

    def take(self, scratch: Scratch, nbytes: int, events: list[HubEvent], start: int = 0) -> None:
        """`nbytes` bytes have come at `start` of the scratch's view. Only while nothing is wanted."""
        memory = scratch.memory
        at = HEADER_BYTES + start
        end = at + nbytes
        if self._tail:
            at -= len(self._tail)
            memory[at : at + len(self._tail)] = self._tail
            self._tail = b""
        while end - at >= HEADER_BYTES:
            kind, meta_bytes, payload_bytes = parse_header(memory, at, self._limits)
            body = at + HEADER_BYTES
            payload = body + meta_bytes
            if end < payload:
                self._expect_meta(kind, meta_bytes, payload_bytes, memory[body:end])
                return
            meta = memory[body:payload]
            if kind:
                self._control(kind, meta)
            elif end < payload + payload_bytes:
                self._expect_payload(meta, payload_bytes, memory[payload:end])
                return
            else:
                self._whole(meta, scratch.array, payload, payload_bytes, events)
            at = payload + payload_bytes
        if at < end:
            self._tail = bytes(memory[at:end])

    def landed(self, nbytes: int, events: list[HubEvent]) -> None:
        """`nbytes` bytes have come into the wanted views, from the first on."""
        wanted = self.wanted
        while nbytes:
            view = wanted[0]
            if nbytes < len(view):
                wanted[0] = view[nbytes:]
                return
            nbytes -= len(view)
            del wanted[0]
        if wanted:
            return
        if self._meta is not None:
            self._meta_landed(events)
            return
        assert self._message is not None
        events.append(Received(self._peer, self._message, self._data))
        self._message, self._data = None, ()

    def _meta_landed(self, events: list[HubEvent]) -> None:
        meta, self._meta = self._meta, None
        assert meta is not None
        if self._kind:
            self._control(self._kind, meta)
        elif self._payload_bytes:
            self._expect_payload(meta, self._payload_bytes, memoryview(b""))
        else:
            self._whole(meta, np.empty(0, np.uint8), 0, 0, events)

    def _whole(
        self, meta: memoryview | bytearray, array: Bytes, at: int, nbytes: int, events: list[HubEvent]
    ) -> None:
        message, lengths, references = decode_message(meta, nbytes, self._limits)
        if references:
            if self._segments is None:
                raise PeerError("expected inline buffers on this link, got references to shared memory")
            events.append(Received(self._peer, message, self._segments.view(references), True))
        elif len(lengths) == 1:
            events.append(Received(self._peer, message, (array[at : at + nbytes].copy(),)))
        elif lengths:
            data = []
            for length in lengths:  # a copy each, so that each is aligned for whatever its bytes are
                data.append(array[at : at + length].copy())
                at += length
            events.append(Received(self._peer, message, tuple(data)))
        else:
            events.append(Received(self._peer, message))

    def _control(self, kind: int, meta: memoryview | bytearray) -> None:
        if kind == Kind.GOODBYE:
            raise Goodbye(decode_goodbye(meta))
        if self._segments is None:
            raise PeerError("expected no shared segments on this link, got some")
        if kind == Kind.SEGMENTS:
            self._segments.announce(meta)
        else:
            self._segments.retire(meta)

    def _expect_meta(self, kind: int, meta_bytes: int, payload_bytes: int, begun: memoryview) -> None:
        self._kind, self._payload_bytes = kind, payload_bytes
        self._meta = bytearray(meta_bytes)
        rest = memoryview(self._meta)
        rest[: len(begun)] = begun
        self.wanted = [rest[len(begun) :]]

    def _expect_payload(self, meta: memoryview | bytearray, payload_bytes: int, begun: memoryview) -> None:
        # References never come here: decode_message refuses a frame that has both them and a payload.
        self._message, lengths, _ = decode_message(meta, payload_bytes, self._limits)
        self._data = tuple([self._pool.take(length) for length in lengths])
        self.wanted = [array.data for array in self._data if array.nbytes]
        at = 0
        while at < len(begun):
            view = self.wanted[0]
            part = begun[at : at + len(view)]
            view[: len(part)] = part
            at += len(part)
            if len(part) == len(view):
                del self.wanted[0]
            else:
                self.wanted[0] = view[len(part) :]
