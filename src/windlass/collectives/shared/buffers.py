"""The group's buffers: memory of each member that all others have mapped, so that nothing need be copied."""

from __future__ import annotations

import os
import weakref
from typing import NamedTuple

import numpy as np

from windlass.collectives.call import Call
from windlass.collectives.shared.meeting import FREED, MAX_BUFFERS, Meeting
from windlass.collectives.shared.segments import OwnSegment, Place, Segment, open_segment
from windlass.errors import UsageError
from windlass.types import Bytes


class _Lent:
    """What arrays over a buffer refer to; when it goes, the buffer is free."""

    def __init__(self, segment: Segment, nbytes: int) -> None:
        self._segment = segment
        self.__array_interface__ = {
            "data": (segment.address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3
        }


class Spot(NamedTuple):
    """Where in its owner's buffers a tensor begins; number -1 if it is in none."""

    number: int
    offset: int


NOWHERE = Spot(-1, 0)


class Buffers:
    """All members' buffers, by number. A member's own may be freed when its user drops it; each of the others lets go
    of it when it next makes one."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._segments: dict[int, list[Segment | None]] = {}
        self._next = 0

    def make(self, call: Call, nbytes: int) -> Bytes:
        """A new buffer of this member; all members call it at once. Zero until written."""
        meeting, rank = self._meeting, self._meeting.rank
        number = self._next
        if number == MAX_BUFFERS:
            raise UsageError(f"a group makes at most {MAX_BUFFERS} buffers; use them again, or make a new group")
        self.sweep()
        own = OwnSegment(max(1, nbytes))
        meeting.open(call, [*NOWHERE, *own.place])
        self._next += 1
        self._segments[number] = [
            own if each == rank else open_segment(Place(*meeting.words(each)[2:6]), f"rank {each}")
            for each in range(meeting.size)
        ]
        meeting.sync(call)
        own.hide()
        lent = _Lent(own, nbytes)
        control = meeting.segments[rank].array
        weakref.finalize(lent, _free, weakref.ref(self), number, control, os.getpid()).atexit = False
        return np.asarray(lent)

    def sweep(self) -> None:
        """Let go of what its owners have freed."""
        for number, segments in list(self._segments.items()):
            for each in range(self._meeting.size):
                if self._meeting.segments[each].array[FREED + number]:
                    segments[each] = None
            if not any(segments):
                del self._segments[number]

    def find(self, address: int, nbytes: int) -> Spot:
        """Where this member's memory is in its own buffers."""
        for number, segments in self._segments.items():
            own = segments[self._meeting.rank]
            if own is not None and own.address <= address and address + nbytes <= own.address + own.place.nbytes:
                return Spot(number, address - own.address)
        return NOWHERE

    def address(self, rank: int, spot: Spot) -> int:
        """Where this process sees that spot of that member's."""
        return self._segment(rank, spot).address + spot.offset

    def array(self, rank: int, spot: Spot) -> Bytes:
        """That member's memory from that spot on."""
        return self._segment(rank, spot).array[spot.offset :]

    def _segment(self, rank: int, spot: Spot) -> Segment:
        segment = self._segments[spot.number][rank]
        assert segment is not None, "its owner has just named it"
        return segment

    def forget(self, number: int) -> None:
        segments = self._segments.get(number)
        if segments is not None:
            segments[self._meeting.rank] = None


def _free(buffers: weakref.ref[Buffers], number: int, control: Bytes, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked copy has dropped its copy: the memory is still its owner's
    control[FREED + number] = 1
    alive = buffers()
    if alive is not None:
        alive.forget(number)
