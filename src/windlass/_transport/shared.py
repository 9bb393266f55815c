"""Memory that processes of one machine can read without a copy.

An `Arena` cuts *blocks* out of *segments* (sealed memfds, see mapping.py). Segments are large and sparse: what was
never touched costs no memory, so sizes may be rounded generously. A block of a page or more begins on a page, which
lets a peer map it wherever it likes (`contiguous_view`); smaller ones are packed. Freed blocks are kept for reuse,
because fresh pages cost more than the transfer that fills them.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections import deque

from windlass._transport.mapping import PAGE, Mapping, create_segment
from windlass.errors import UsageError
from windlass.types import Block, Bytes

SEGMENT_BYTES = 64 << 20
_PACK_ALIGNMENT = 64
_PACK_RUN = 64 << 10


class Arena:
    """`Memory` whose blocks links on a Unix socket carry by reference. Not thread-safe: one owner, except that arrays
    may be dropped in any thread."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        # Numbers start at random so that a block of another arena of this process is not taken for one of this one:
        # unknown numbers are sent by value.
        self._next_number = secrets.randbelow(1 << 40)
        self._segment_bytes = segment_bytes
        self._segments: weakref.WeakValueDictionary[int, Mapping] = weakref.WeakValueDictionary()
        self._own: list[Mapping] = []
        self._room: tuple[int, Bytes, int] | None = None  # the segment being cut: number, memory, how far
        self._run: tuple[int, Bytes, int, int] | None = None  # the run being packed: number, memory, offset, how far
        self._lock = threading.Lock()  # blocks are taken in one thread and given back in another
        self._free: dict[int, list[tuple[Bytes, int, int]]] = {}
        self._live: dict[tuple[int, int], Bytes] = {}
        self._is_closed = False
        self.retired: deque[int] = deque()
        """Numbers of dedicated segments that were dropped, for the hub to tell its peers."""

    def allocate(self, nbytes: int) -> Block:
        """A block of uninitialised memory. Begins on a page if it is a page or longer."""
        size = _rounded(nbytes)
        with self._lock:
            spare = self._free.get(size)
            memory, number, offset = spare.pop() if spare else self._cut(size)
            self._live[number, offset] = memory
        return Block(memory[:nbytes], number, offset)

    def free(self, block: Block) -> None:
        """Take back a block from `allocate` (the whole of it) for reuse; one from `dedicated` needs only be dropped.
        Nobody may read it any more. Raises UsageError for a block that is not allocated here."""
        memory = self._live.pop((block.segment, block.offset), None)
        if memory is None:
            if self._is_closed or (block.segment in self._segments and block.offset == 0):
                return
            raise UsageError(f"expected a block of this arena, got segment {block.segment} offset {block.offset}")
        self._free.setdefault(memory.nbytes, []).append((memory, block.segment, block.offset))

    def dedicated(self, nbytes: int) -> Block:
        """A block in a segment of its own, zero-filled: its memory goes back to the system when the block's array,
        every view of it, and every peer's view are gone. For large buffers that the user holds."""
        number, mapping = self._new_segment(max(1, nbytes))
        weakref.finalize(mapping, self.retired.append, number).atexit = False
        return Block(mapping.array()[:nbytes], number, 0)

    def close(self) -> None:
        """Let go of everything: memory goes back to the system when the last array over it is dropped. Blocks that
        are freed later are left alone. Safe to repeat."""
        self._is_closed = True
        self._room = self._run = None
        for held in (self._own, self._free, self._live):
            held.clear()

    def segment(self, number: int) -> Mapping | None:
        """The segment of this number, if it is this arena's and still alive."""
        return self._segments.get(number)

    def _cut(self, size: int) -> tuple[Bytes, int, int]:
        if size < PAGE:
            return self._pack(size)
        if size >= self._segment_bytes:
            number, mapping = self._new_segment(size)
            self._own.append(mapping)
            return mapping.array(), number, 0
        if self._room is None or self._room[2] + size > self._room[1].nbytes:
            number, mapping = self._new_segment(self._segment_bytes)
            self._own.append(mapping)
            self._room = (number, mapping.array(), 0)
        number, memory, used = self._room
        self._room = (number, memory, used + size)
        return memory[used : used + size], number, used

    def _pack(self, size: int) -> tuple[Bytes, int, int]:
        if self._run is None or self._run[3] + size > _PACK_RUN:
            memory, number, offset = self._cut(min(_PACK_RUN, self._segment_bytes))
            self._run = (number, memory, offset, 0)
        number, memory, offset, used = self._run
        self._run = (number, memory, offset, used + size)
        return memory[used : used + size], number, offset + used

    def _new_segment(self, nbytes: int) -> tuple[int, Mapping]:
        number = self._next_number
        self._next_number += 1
        mapping = create_segment(-(-nbytes // PAGE) * PAGE)
        self._segments[number] = mapping
        return number, mapping


def _rounded(nbytes: int) -> int:
    """The size class of a request: like sizes share a free list. At most an eighth is added, and it is sparse."""
    if nbytes < PAGE - _PACK_ALIGNMENT:
        return max(_PACK_ALIGNMENT, -(-nbytes // _PACK_ALIGNMENT) * _PACK_ALIGNMENT)
    step = max(PAGE, 1 << (max(nbytes - 1, 1).bit_length() - 4))
    return -(-nbytes // step) * step
