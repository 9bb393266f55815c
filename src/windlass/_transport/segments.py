"""The segments that one peer has announced on one link: which of its memory we can see, and how much we let it show.

Descriptors come with the bytes of the SEGMENTS frame that names them. They are checked before they are mapped (see
`map_received`), mapped read-only, and dropped when the peer retires them or the link closes; arrays already handed out
keep theirs alive.
"""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from dataclasses import dataclass

from windlass._transport.mapping import map_received
from windlass._wire.frame import Reference, decode_retire, decode_segments
from windlass.errors import PeerError
from windlass.types import Bytes

MAX_FDS = 64
"""Descriptors in one SEGMENTS frame; the kernel takes up to 253."""

ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_FDS * 4)

Ancillary = list[tuple[int, int, bytes]]


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How much of its memory one peer may show us. Only addresses and descriptors are spent, not memory."""

    max_segments: int = 1024
    max_bytes: int = 1 << 40


class PeerSegments:
    """One peer's announced segments on one link. Not thread-safe."""

    def __init__(self, limits: SegmentLimits) -> None:
        self._limits = limits
        self._arrays: dict[int, Bytes] = {}
        self._bytes = 0
        self._waiting: deque[int] = deque()

    @property
    def has_unclaimed(self) -> bool:
        """Whether descriptors have come that no frame has named yet."""
        return bool(self._waiting)

    def collect(self, ancillary: Ancillary) -> None:
        """Take the descriptors that came beside some bytes. All of them are closed sooner or later."""
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
                self._waiting.extend(fds)
        if len(self._waiting) > MAX_FDS:
            raise PeerError(f"expected at most {MAX_FDS} descriptors at once, got {len(self._waiting)}")

    def announce(self, meta: memoryview | bytearray) -> None:
        """Map what a SEGMENTS frame names, with the descriptors that came along."""
        for number, nbytes in decode_segments(meta):
            if not self._waiting:
                raise PeerError(f"expected a descriptor with segment {number}, got none")
            self._check(number, nbytes)
            try:
                mapping = map_received(self._waiting.popleft(), nbytes)
            except (ValueError, OSError, OverflowError) as error:
                raise PeerError(f"segment {number}: {error}") from error
            self._arrays[number] = mapping.array()
            self._bytes += nbytes

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
        while self._waiting:
            os.close(self._waiting.popleft())

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
