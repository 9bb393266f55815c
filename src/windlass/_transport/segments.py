"""The segments that one peer has announced on one link: which of its memory we can see, and how much we let it show.

Descriptors do not travel in the stream of frames, because a read that has room for them costs twice as much as one
that has not, and every message would pay. A Unix link has a *side channel* for them, a socket pair whose one end the
acceptor hands over with its verdict. Descriptors go down the side first, then the SEGMENTS frame that names them goes
down the stream, so they are there when it is read. They are checked before they are mapped (see `map_received`), mapped
read-only, and dropped when the peer retires them or the link closes; arrays already handed out keep theirs alive.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from windlass._transport.mapping import Mapping, map_received
from windlass._wire.frame import Reference, decode_retire, decode_segments
from windlass.errors import PeerError
from windlass.types import Bytes

MAX_FDS = 64
"""Descriptors named by one SEGMENTS frame; the kernel takes up to 253."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How much of its memory one peer may show us. Only addresses and descriptors are spent, not memory."""

    max_segments: int = 1024
    max_bytes: int = 1 << 40


class SideChannel:
    """One end of the socket pair that carries a Unix link's descriptors. Nothing here blocks."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    @staticmethod
    def from_fds(fds: list[int]) -> SideChannel:
        """The end that was handed over. Takes the descriptors over, and raises PeerError if they are not one."""
        sock = None
        try:
            if len(fds) == 1:
                sock = socket.socket(fileno=fds[0])
            if sock is None or sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
                raise PeerError(f"expected the end of a side channel, got {len(fds)} other descriptors")
            return SideChannel(sock)
        except OSError as error:  # PeerError is one too
            for fd in fds:
                os.close(fd)
            if sock is not None:
                sock.detach()
            raise PeerError(f"no side channel: {error}") from error

    @staticmethod
    def pair() -> tuple[SideChannel, socket.socket]:
        """Our end, and the one to hand over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return SideChannel(ours), theirs

    def send(self, segments: Sequence[Mapping]) -> bool:
        """Hand the peer these descriptors; False when it has too many waiting already, or is gone."""
        fds = array.array("i", [segment.fd for segment in segments])
        try:
            return self._sock.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]) == 1
        except OSError:
            return False

    def receive(self) -> list[int]:
        """The descriptors of one `send`. Raises PeerError when none are there."""
        try:
            return receive_fds(self._sock, 1, MAX_FDS)[1]
        except OSError as error:
            raise PeerError("expected descriptors with the announcement of segments, got none") from error

    def close(self) -> None:
        self._sock.close()


def receive_fds(sock: socket.socket, nbytes: int, max_fds: int) -> tuple[bytes, list[int]]:
    """Up to `nbytes` bytes and the descriptors beside them, close-on-exec. The kernel drops those above the limit."""
    data, ancillary, _, _ = sock.recvmsg(nbytes, socket.CMSG_LEN(max_fds * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


class PeerSegments:
    """One peer's announced segments on one link, and the side channel that they come by. Not thread-safe."""

    def __init__(self, limits: SegmentLimits, side: SideChannel) -> None:
        self.side = side
        self._limits = limits
        self._arrays: dict[int, Bytes] = {}
        self._bytes = 0

    def announce(self, meta: memoryview | bytearray) -> None:
        """Map what a SEGMENTS frame names, with the descriptors that came by the side."""
        named = decode_segments(meta)
        fds = deque(self.side.receive())
        try:
            if len(fds) != len(named):
                raise PeerError(f"expected {len(named)} descriptors with as many segments, got {len(fds)}")
            for number, nbytes in named:
                self._check(number, nbytes)
                self._map(number, nbytes, fds.popleft())
        finally:
            for fd in fds:
                os.close(fd)

    def retire(self, meta: memoryview | bytearray) -> None:
        """Forget what a RETIRE frame names."""
        for number in decode_retire(meta):
            gone = self._arrays.pop(number, None)
            if gone is not None:
                self._bytes -= gone.nbytes

    def view(self, references: list[Reference]) -> tuple[Bytes, ...]:
        """Read-only arrays over the peer's memory, one per reference."""
        found = []
        for number, offset, nbytes in references:
            segment = self._arrays.get(number)
            if segment is None:
                raise PeerError(f"expected a reference to an announced segment, got segment {number}")
            if offset + nbytes > segment.nbytes:
                raise PeerError(
                    f"expected a reference within {segment.nbytes} bytes of segment {number}, "
                    f"got {nbytes} bytes at {offset}"
                )
            found.append(segment[offset : offset + nbytes])
        return tuple(found)

    def close(self) -> None:
        """Drop everything. Safe to repeat."""
        self._arrays.clear()
        self._bytes = 0
        self.side.close()

    def _map(self, number: int, nbytes: int, fd: int) -> None:
        try:
            self._arrays[number] = map_received(fd, nbytes).array()
        except (ValueError, OSError) as error:
            raise PeerError(f"segment {number}: {error}") from error
        self._bytes += nbytes

    def _check(self, number: int, nbytes: int) -> None:
        if number in self._arrays:
            raise PeerError(f"expected each segment to be announced once, got segment {number} again")
        if len(self._arrays) >= self._limits.max_segments:
            raise PeerError(f"expected at most {self._limits.max_segments} segments of one peer, got more")
        if self._bytes + nbytes > self._limits.max_bytes:
            raise PeerError(
                f"expected at most {self._limits.max_bytes} bytes in the segments of one peer, "
                f"got {self._bytes + nbytes}"
            )
