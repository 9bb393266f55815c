"""Memory that the processes of one machine share: memfds, which have no name and so cannot outlive their users.

A member tells the others the *place* of its segment: its process and the number of the descriptor there. They open it
through /proc, which the kernel allows to processes of the same user, and check that it is the very memory that was
meant and that its size is sealed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import NamedTuple

import numpy as np

from windlass.errors import ClusterError
from windlass.types import Bytes

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_FORMAT = struct.Struct("<4q")


class Place(NamedTuple):
    """Where a segment can be opened, and how to know it again."""

    pid: int
    fd: int
    inode: int
    nbytes: int

    def pack(self) -> bytes:
        return _FORMAT.pack(*self)

    @staticmethod
    def unpack(packed: bytes) -> Place:
        return Place(*_FORMAT.unpack(packed))


PLACE_BYTES = _FORMAT.size


class Segment:
    """One mapped segment. Lives as long as the segment or any array over it is referred to."""

    __slots__ = ("__weakref__", "address", "array", "place")

    def __init__(self, fd: int, place: Place) -> None:
        self.place = place
        self.array: Bytes = np.frombuffer(mmap.mmap(fd, place.nbytes), np.uint8)
        self.address: int = self.array.ctypes.data


class OwnSegment(Segment):
    """A segment of this process. Its descriptor stays open as long as others may want to open it: until `hide`."""

    __slots__ = ("_fd",)

    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("windlass-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, nbytes)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
            super().__init__(self._fd, Place(os.getpid(), self._fd, os.fstat(self._fd).st_ino, nbytes))
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def hide(self) -> None:
        """Close the descriptor: everybody has it mapped. Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.hide()


def open_segment(place: Place, whose: str) -> Segment:
    """Map another member's segment, for reading and writing. ClusterError if it is not there any more."""
    try:
        fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise ClusterError(
            f"cannot open the memory of {whose} (pid {place.pid}): {error.strerror}; either it has just died, or it "
            "runs as another user or in another container, and then a group over torch.distributed or MPI serves"
        ) from error
    try:
        found = os.fstat(fd)
        try:
            is_sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError:
            is_sealed = 0
        if (found.st_ino, found.st_size) != (place.inode, place.nbytes) or not is_sealed:
            raise ClusterError(f"the memory of {whose} (pid {place.pid}) is not the one it announced; it has ended")
        return Segment(fd, place)
    finally:
        os.close(fd)
