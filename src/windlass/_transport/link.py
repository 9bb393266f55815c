"""One connection: its socket, its state, and the two halves that decide what bytes mean (Inbox, Outbox).

A link does the system calls for itself, each of which never blocks, and tells its hub what came of them by its return
value or by raising: PeerError and Goodbye (inbox.py), EOFError when the peer closed, OSError when the socket broke.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from enum import Enum

from windlass._transport.address import Address, Scheme
from windlass._transport.base import HubEvent
from windlass._transport.inbox import Inbox, Scratch
from windlass._transport.outbox import Chunk, Outbox
from windlass._transport.proving import Proving
from windlass._transport.rivals import Pedigree
from windlass._transport.segments import MAX_FDS, PeerSegments
from windlass._transport.shared import Arena
from windlass._transport.tls import TlsContexts, TlsSocket
from windlass._wire.effects import Send
from windlass._wire.frame import encode_message, encode_retire, encode_segments
from windlass.errors import UsageError
from windlass.types import Block, Incarnation

MAX_COPIED_BYTES = 16 << 10
"""A message with at most so many bytes of data takes a copy of them along, shared or not; a longer block is sent from
where it lies, or by reference. Measured: a reference saves 10 us at 16 KiB where the peer answers anyway (a push), and
costs as much up to 64 KiB where it has to be released by a message of its own (a pull)."""

_OVERFLOW_BYTES = 4 << 10
_MAX_VIEWS = 64
_CLOSING_READS, _CLOSING_BYTES = 16, 1 << 20


class LinkState(Enum):
    CONNECTING = "connecting"
    PROVING = "proving"
    OPEN = "open"
    CLOSED = "closed"


class Link:
    """A connection from first SYN to close. Not thread-safe. `deadline` ends CONNECTING and PROVING."""

    def __init__(self, sock: socket.socket, where: Address, deadline: float) -> None:
        self.sock: socket.socket | TlsSocket = sock
        self.fd = sock.fileno()
        self.where = where
        self.carries_references = where.scheme is Scheme.UNIX
        self.deadline = deadline
        self.state = LinkState.CONNECTING
        self.is_dialled = False
        self.peer = Incarnation(-1)
        self.pedigree = Pedigree(Incarnation(-1), 0)
        self.proving: Proving | None = None
        self.outbox = Outbox()
        self.is_blocked = False  # the socket takes no more now; epoll will tell
        self.write_error = ""
        self.is_known = False  # its LinkUp was handed over: it may be sent on
        self.inbox: Inbox | None = None
        self._segments: PeerSegments | None = None
        self._arena: Arena | None = None
        self._announced: set[int] = set()
        self.is_local = False  # once it is open: whether the peer is on this machine, where no network can part us

    def __repr__(self) -> str:
        return f"<Link {self.state.value} node {self.peer} at {self.where}>"

    @property
    def has_pending(self) -> bool:
        """Whether there is something to read of which epoll knows nothing."""
        return isinstance(self.sock, TlsSocket) and self.sock.has_pending

    @property
    def waits_for_room(self) -> bool:
        """Whether what is queued can go on as soon as the socket has room; else the peer must say something first."""
        return bool(self.outbox) and not (isinstance(self.sock, TlsSocket) and self.sock.waits_for_peer)

    def encrypt(self, contexts: TlsContexts) -> None:
        """Put TLS on the connected socket. Raises OSError if the connection is gone already."""
        assert isinstance(self.sock, socket.socket)
        self.sock = contexts.wrap(self.sock, is_dialled=self.is_dialled)

    def open(self, inbox: Inbox, segments: PeerSegments | None, arena: Arena) -> None:
        """The handshake is over: from here on frames are exchanged. `segments`: what the peer shows us, on a Unix link,
        where `arena`'s blocks then go by reference."""
        self.state, self.proving = LinkState.OPEN, None
        self.is_local = _is_local(self.fd)
        self.inbox, self._segments = inbox, segments
        self._arena = None if segments is None else arena

    # --- receiving ----------------------------------------------------------------------------------------------------

    def read(self, scratch: Scratch, events: list[HubEvent]) -> bool:
        """One recv, and everything in it decoded; False when there was nothing."""
        inbox = self.inbox
        assert inbox is not None
        if inbox.wanted:
            return self._read_wanted(inbox, scratch, events)
        try:
            nbytes = self.sock.recv_into(scratch.view)
        except BlockingIOError:
            return False
        if not nbytes:
            raise EOFError
        inbox.take(scratch, nbytes, events)
        return True

    def _read_wanted(self, inbox: Inbox, scratch: Scratch, events: list[HubEvent]) -> bool:
        # A little room behind the wanted views lets the next frame's header come with the end of this payload. In a
        # stream of large payloads every byte but these then lands in its place at once.
        views = inbox.wanted[:_MAX_VIEWS]
        expected = sum(map(len, views))
        is_whole = len(views) == len(inbox.wanted)
        if is_whole:
            views.append(scratch.view[:_OVERFLOW_BYTES])
        try:
            nbytes = self.sock.recvmsg_into(views)[0]
        except BlockingIOError:
            return False
        if not nbytes:
            raise EOFError
        inbox.landed(min(nbytes, expected), events)
        if nbytes > expected:
            self._spill(inbox, scratch, nbytes - expected, events)
        return True

    def _spill(self, inbox: Inbox, scratch: Scratch, nbytes: int, events: list[HubEvent]) -> None:
        # What was wanted may have been a meta whose payload the spilled bytes begin.
        at = 0
        while inbox.wanted and at < nbytes:
            view = inbox.wanted[0]
            part = scratch.view[at : at + min(len(view), nbytes - at)]
            view[: len(part)] = part
            inbox.landed(len(part), events)
            at += len(part)
        if at < nbytes:
            inbox.take(scratch, nbytes - at, events, at)

    # --- sending ------------------------------------------------------------------------------------------------------

    def queue(self, send: Send, max_payload_bytes: int) -> None:
        """Encode and queue a message. Raises UsageError if its data is more than a peer would take."""
        data = send.data
        outbox = self.outbox
        lengths: Sequence[int]
        if len(data) == 1:
            total = data[0].array.nbytes
            lengths = (total,)
        else:
            lengths = [block.array.nbytes for block in data] if data else ()
            total = sum(lengths)
        if total <= MAX_COPIED_BYTES:
            frame = encode_message(send.message, lengths, (), total)
            for block in data:
                frame.extend(block.array)
            outbox.post([frame], send.pins, send.priority)
        elif self._arena is not None and self._announce(data):
            references = [(block.segment, block.offset, block.array.nbytes) for block in data]
            # The peer releases the pins.
            outbox.post([encode_message(send.message, (), references)], (), send.priority)
        elif total > max_payload_bytes:
            raise UsageError(
                f"expected at most {max_payload_bytes} bytes of data with one message, got {total} with "
                f"{type(send.message).__name__}; send less at once, or raise max_payload_bytes on every node"
            )
        else:
            outbox.post(_inline(send, lengths, total), send.pins, send.priority)

    def retire(self, numbers: list[int]) -> bool:
        """Tell the peer which segments are no more, of those that it was told of; whether there was anything to say."""
        known = [number for number in numbers if number in self._announced]
        if known:
            self._announced.difference_update(known)
            self.outbox.add(encode_retire(known))
        return bool(known)

    def close(self) -> None:
        """Close the socket and drop everything queued. Safe to repeat."""
        if self.state is LinkState.OPEN:
            self._hang_up_gently()
        self.state = LinkState.CLOSED
        self.outbox.clear()
        if self._segments is not None:
            self._segments.close()
        if self.proving is not None:
            self.proving.close()
        self.sock.close()

    def _hang_up_gently(self) -> None:
        # A TCP socket closed with bytes unread resets the connection, and what was sent last (why we close, say) may
        # never be read by the peer. So what has come is read first, within reason.
        try:
            self.sock.shutdown(socket.SHUT_WR)
            for _ in range(_CLOSING_READS):
                if not self.sock.recv(_CLOSING_BYTES):
                    break
        except OSError:
            pass

    def _announce(self, data: tuple[Block, ...]) -> bool:
        """Whether the peer knows, now at the latest, every segment that these blocks lie in."""
        unknown = {block.segment for block in data} - self._announced
        if not unknown:
            return True
        assert self._arena is not None
        assert self._segments is not None
        found = [(number, segment) for number in unknown if (segment := self._arena.segment(number)) is not None]
        if len(found) < len(unknown):
            return False  # private memory, or another arena's
        for first in range(0, len(found), MAX_FDS):
            batch = found[first : first + MAX_FDS]
            if not self._segments.side.send([segment for _, segment in batch]):
                return False
            self.outbox.add(encode_segments([(number, segment.nbytes) for number, segment in batch]))
            self._announced.update(number for number, _ in batch)
        return True


def _inline(send: Send, lengths: Sequence[int], total: int) -> list[Chunk]:
    """The message and its data: small blocks copied into the frame, larger ones as they lie."""
    frame = encode_message(send.message, lengths, (), total)
    chunks: list[Chunk] = []
    for block in send.data:
        if block.array.nbytes <= MAX_COPIED_BYTES:
            frame.extend(block.array)
            continue
        if frame:
            chunks.append(frame)
            frame = bytearray()
        chunks.append(block.array.data)
    if frame:
        chunks.append(frame)
    return chunks


def _is_local(fd: int) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        try:
            return copy.family == socket.AF_UNIX or ipaddress.ip_address(copy.getpeername()[0]).is_loopback
        except (OSError, ValueError):
            return False  # it broke meanwhile
