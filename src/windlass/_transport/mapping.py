"""Memory mapped from a memfd, alive as long as any array refers to it.

A *segment* is one memfd; a `Mapping` is where this process sees it. Arrays over a mapping keep it as their base, so
that the last array to go unmaps it and closes its descriptor, whoever held it. That base is also how the segment
behind an array is found again, which `ContiguousViews` needs: it maps page-aligned parts of several segments one after
the other into one range of addresses, so that they read as one array without a copy.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from windlass.types import Bytes

PAGE = mmap.PAGESIZE
_MAP_FIXED, _MAP_NORESERVE, _MAP_POPULATE, _PROT_NONE = 0x10, 0x4000, 0x8000, 0
_MAP_FAILED = ctypes.c_void_p(-1).value
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

# The mmap module cannot map at a chosen address, and keeps a second descriptor of its own for each mapping.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Mapping:
    """A mapped range of addresses. Owns `fd` (-1: none), closed when it is unmapped, which happens when neither the
    mapping nor any array over it is referred to any more."""

    __slots__ = ("__weakref__", "address", "fd", "is_writable", "nbytes")

    def __init__(self, address: int, nbytes: int, *, fd: int = -1, is_writable: bool = False) -> None:
        self.address, self.nbytes, self.fd, self.is_writable = address, nbytes, fd, is_writable

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self.address, not self.is_writable), "shape": (self.nbytes,), "typestr": "|u1", "version": 3
        }

    def array(self) -> Bytes:
        """All of it as one array, which keeps the mapping alive."""
        return np.asarray(self)

    def __del__(self, munmap: Any = _munmap, close: Any = os.close) -> None:
        # Bound as defaults: module globals may be gone when the interpreter shuts down.
        if self.nbytes:
            munmap(self.address, self.nbytes)
        if self.fd >= 0:
            close(self.fd)


def create_segment(nbytes: int) -> Mapping:
    """A new segment of this process, writable, zero until written; pages cost memory only once touched. Its size is
    sealed, so that a peer that maps it can never be hurt by its shrinking."""
    fd = os.memfd_create("windlass", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        address = _map(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return Mapping(address, nbytes, fd=fd, is_writable=True)


def map_received(fd: int, nbytes: int) -> Mapping:
    """A peer's segment, read-only. Takes `fd` over, and closes it on failure. Raises ValueError, saying what was
    expected, for a descriptor whose memory could vanish under us."""
    try:
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ValueError("expected a sealed memfd, got another kind of descriptor") from error
        if not seals & fcntl.F_SEAL_SHRINK:
            raise ValueError(f"expected a memfd sealed against shrinking, got seals {seals:#x}")
        size = os.fstat(fd).st_size
        if nbytes < 1 or size < nbytes:
            raise ValueError(f"expected a segment of {nbytes} bytes, got one of {size}")
        address = _map(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return Mapping(address, nbytes, fd=fd)


def mapping_of(array: Bytes) -> Mapping | None:
    """The mapping that this array's memory belongs to; None for private memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Mapping) else None


Place = tuple[Mapping, int, int]
"""Where a part lies: its mapping, the offset in the mapping's segment, its length."""


class ContiguousViews:
    """Makes one array of several parts, and remembers the last few that it made: mapping 160 MB takes about as long
    as copying it, because every page must be entered in a table, and the same parts come again and again. Not
    thread-safe. What is remembered is forgotten as soon as one of its segments is no longer referred to elsewhere."""

    def __init__(self, max_views: int = 16) -> None:
        self._max_views = max_views
        self._views: dict[tuple[tuple[int, int, int], ...], tuple[Bytes, list[weakref.ref[Mapping]]]] = {}

    def view(self, arrays: Sequence[Bytes]) -> Bytes | None:
        """These arrays, one after the other, as one read-only array without a copy. None where that cannot be:
        private memory, a part that does not begin on a page, or one but the last that does not end on one."""
        places = _places(arrays)
        if places is None:
            return None
        key = tuple((id(mapping), offset, nbytes) for mapping, offset, nbytes in places)
        known = self._views.pop(key, None)
        if known is None:
            forget = partial(_forget, weakref.ref(self), key)
            known = _stitch(places), [weakref.ref(mapping, forget) for mapping in {place[0] for place in places}]
            if len(self._views) >= self._max_views:
                del self._views[next(iter(self._views))]
        self._views[key] = known  # the one used last is last
        return known[0]

    def clear(self) -> None:
        self._views.clear()

    def forget(self, key: tuple[tuple[int, int, int], ...]) -> None:
        self._views.pop(key, None)


def _forget(views: weakref.ref[ContiguousViews], key: tuple[tuple[int, int, int], ...], _: object) -> None:
    alive = views()
    if alive is not None:
        alive.forget(key)


def _places(arrays: Sequence[Bytes]) -> list[Place] | None:
    places: list[Place] = []
    for index, array in enumerate(arrays):
        mapping = mapping_of(array)
        if mapping is None or mapping.fd < 0 or not array.nbytes:
            return None
        offset = array.ctypes.data - mapping.address
        if offset % PAGE or (array.nbytes % PAGE and index + 1 < len(arrays)):
            return None
        places.append((mapping, offset, array.nbytes))
    return places or None


def _stitch(places: list[Place]) -> Bytes:
    # The range is reserved in one piece first, so that nothing else can be mapped in between; each part then replaces
    # its share of the reservation.
    total = sum(nbytes for _, _, nbytes in places)
    reserved = -(-total // PAGE) * PAGE
    base = _map(None, reserved, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
    view = Mapping(base, reserved)
    at = base
    for mapping, offset, nbytes in places:
        flags = mmap.MAP_SHARED | _MAP_FIXED | _MAP_POPULATE
        _map(at, nbytes, mmap.PROT_READ, flags, mapping.fd, offset)
        at += nbytes
    return view.array()[:total]


def _map(address: int | None, nbytes: int, protection: int, flags: int, fd: int, offset: int) -> int:
    mapped = _mmap(address, nbytes, protection, flags, fd, offset)
    if mapped is None or mapped == _MAP_FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {nbytes} bytes: {os.strerror(error)}")
    return int(mapped)
