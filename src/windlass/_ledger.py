"""What a disturbed cluster and whoever disturbs it share: one piece of memory, called the ledger.

From `windlass chaos` to the nodes: the faults of the moment, for their links. From the nodes back: how many frames were
lost, and of every worker and key how many pushes it has begun and had acknowledged. It is a memfd, opened by its path
under /proc: it has no name on any disk, survives the SIGKILL of any node, and is gone with its maker and its last user.

    0         phase, sequence number of the faults, their length, number of rows      8 bytes each
    64        the faults, as msgpack
    1 MiB     rows of 128 bytes, one for each (incarnation, key), and one for each node

A number is written in one piece. A row has one writer; the faults have one, too, whose readers look at the sequence
number before and after (it is odd while they are being written).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum

import msgspec
import numpy as np

from windlass.types import Array, Incarnation, KeyId

FAULTS_AT = 64
ROWS_AT = 1 << 20
ROW_BYTES = 128
MAX_ROWS = 1 << 19
LEDGER = "windlass-ledger"
NOT_A_KEY = 0

_PHASE, _SEQUENCE, _LENGTH, _COUNT = range(4)

FIELDS = (
    "incarnation", "key", "begun_pushes", "begun_elements", "acked_clock", "acked_pushes", "acked_elements",
    "began_at", "acked_at", "longest_seconds", "frames_lost", "frames_late", "times_refused",
)  # fmt: skip
_FLOATS = ("began_at", "acked_at", "longest_seconds")
ROW = np.dtype(
    {
        "names": FIELDS,
        "formats": ["<f8" if name in _FLOATS else "<i8" for name in FIELDS],
        "offsets": [8 * number for number in range(len(FIELDS))],
        "itemsize": ROW_BYTES,
    }
)
(_INCARNATION, _KEY, _BEGUN, _BEGUN_ELEMENTS, _CLOCK, _ACKED, _ACKED_ELEMENTS, _BEGAN_AT, _ACKED_AT, _LONGEST, _LOST,
 _LATE, _REFUSED) = range(len(FIELDS))  # fmt: skip


class Phase(IntEnum):
    """How far a job that is disturbed from outside has come."""

    RUNNING = 0
    ENDED = 1  # its workers are gone; its servers wait to be looked at
    JUDGED = 2  # they may go


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the links, between these `nodes` and nobody else, until `until` (monotonic seconds): then
    they are well again, whatever becomes of whoever wrote this. `sides` cannot reach each other."""

    drop: float = 0.0
    delay_seconds: float = 0.0
    nodes: frozenset[int] = frozenset()
    sides: tuple[tuple[int, ...], ...] = ()
    until: float = 0.0


_faults_decoder = msgspec.msgpack.Decoder(Faults)


class Row:
    """One row, for its writer. A push is begun before anything of it is sent, and acknowledged before its caller
    hears of that: whenever the process is killed, acknowledged <= counted by the servers <= begun."""

    __slots__ = ("_floats", "_ints")

    def __init__(self, memory: memoryview) -> None:
        self._ints, self._floats = memory.cast("q"), memory.cast("d")

    def begin(self, elements: int) -> None:
        self._ints[_BEGUN_ELEMENTS] += elements
        self._ints[_BEGUN] += 1

    def acknowledge(self, clock: int, elements: int, began_at: float, now: float) -> None:
        ints, floats = self._ints, self._floats
        ints[_ACKED_ELEMENTS] += elements
        ints[_ACKED] += 1
        if clock > ints[_CLOCK]:
            ints[_CLOCK] = clock
        floats[_LONGEST] = max(floats[_LONGEST], now - began_at)
        floats[_ACKED_AT] = now
        floats[_BEGAN_AT] = began_at  # last: who sees it sees the rest

    def lose_frame(self) -> None:
        self._ints[_LOST] += 1

    def delay_frame(self) -> None:
        self._ints[_LATE] += 1

    def refuse(self) -> None:
        self._ints[_REFUSED] += 1


class Ledger:
    """Made once (`make`), opened by every node (`open_ledger`). Any thread may use it."""

    def __init__(self, file: int, path: str) -> None:
        self.path = path
        self._file = file
        self._lock = threading.Lock()
        self._memory = memoryview(mmap.mmap(file, ROWS_AT + MAX_ROWS * ROW_BYTES))
        self._numbers = self._memory[:FAULTS_AT].cast("q")

    @classmethod
    def make(cls) -> Ledger:
        file = os.memfd_create(LEDGER)
        os.ftruncate(file, ROWS_AT + MAX_ROWS * ROW_BYTES)  # pages that nobody touches take no memory
        return cls(file, f"/proc/{os.getpid()}/fd/{file}")

    def close(self) -> None:
        """Let go of the file; what is mapped stays so until nobody holds it. Safe to repeat."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def is_own(self) -> bool:
        """Whether this process has made it."""
        return self.path.startswith(f"/proc/{os.getpid()}/")

    # --- the faults ---------------------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """Moves with every change of the faults: a glance tells whether there is anything to read."""
        return self._numbers[_SEQUENCE]

    def write_faults(self, faults: Faults) -> None:
        """One writer only."""
        data = msgspec.msgpack.encode(faults)
        assert len(data) <= ROWS_AT - FAULTS_AT, f"{len(data)} bytes of faults"
        self._numbers[_SEQUENCE] += 1
        self._memory[FAULTS_AT : FAULTS_AT + len(data)] = data
        self._numbers[_LENGTH] = len(data)
        self._numbers[_SEQUENCE] += 1

    def read_faults(self) -> tuple[int, Faults] | None:
        """The sequence number, and what was written under it; None while they are being written."""
        before = self.sequence
        if before % 2:
            return None
        length = self._numbers[_LENGTH]
        data = bytes(self._memory[FAULTS_AT : FAULTS_AT + length])
        if self.sequence != before:
            return None
        return before, _faults_decoder.decode(data) if length else Faults()

    # --- the rows -----------------------------------------------------------------------------------------------------

    def row(self, incarnation: Incarnation, key: KeyId | int = NOT_A_KEY) -> Row | None:
        """A new row; None when the ledger is full."""
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # the kernel lets go of it if we die here
            try:
                count = self._numbers[_COUNT]
                if count >= MAX_ROWS:
                    return None
                at = ROWS_AT + count * ROW_BYTES
                memory = self._memory[at : at + ROW_BYTES]
                memory.cast("q")[_INCARNATION], memory.cast("q")[_KEY] = incarnation, key
                self._numbers[_COUNT] = count + 1
                return Row(memory)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def rows(self) -> Array:
        """All rows as they are now: a copy, with the fields of ROW."""
        found: Array = np.frombuffer(self._memory, ROW, count=self._numbers[_COUNT], offset=ROWS_AT)
        return found.copy()

    # --- the end of a job that is disturbed from outside --------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return Phase(self._numbers[_PHASE])

    def tell(self, phase: Phase) -> None:
        self._numbers[_PHASE] = phase

    def await_judged(self, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until whoever made this ledger has seen what it wants to see, or is no more. `meanwhile` is called again
        and again, and may raise."""
        deadline = time.monotonic() + seconds
        while self.phase is not Phase.JUDGED:
            if not os.path.exists(self.path) or time.monotonic() > deadline:
                return False
            meanwhile()
            time.sleep(0.01)
        return True


def open_ledger(path: str) -> Ledger | None:
    """The ledger at this path; None if its maker is gone: then nothing disturbs this node."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    return Ledger(file, path)
