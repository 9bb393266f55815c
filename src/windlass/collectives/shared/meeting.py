"""Where the members of a group meet: flags, and the notices that say what each has come for.

Every member has a *control* segment that all others can read. In it are its flag, which counts the meetings it has come
to; two slots for notices, used in turn; whether it has left; and room for pieces of tensors on their way through.

A meeting is over for a member when every flag has come to its number, so nobody is ever more than one meeting ahead.
That is what makes two slots enough: who writes the notice of a call has been to the last call's meeting, where everyone
had read the notice of the call before it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np

from windlass.collectives.call import Call, check_alike, notice
from windlass.collectives.members import Watch, named
from windlass.collectives.shared import kernels
from windlass.collectives.shared.rendezvous import Record
from windlass.collectives.shared.segments import OwnSegment, Segment, open_segment
from windlass.errors import ClusterError, TimeoutError, UsageError
from windlass.types import Array

TEXT_BYTES, WORD_BYTES, INLINE_BYTES = 256, 64, 256 << 10
MAX_BUFFERS = 4096

log = logging.getLogger("windlass")
FLAG, LEFT, REASON, FREED, SLOTS = 0, 128, 256, 4096, 8192
SLOT_BYTES = INLINE_BYTES + 4096
PIECES = SLOTS + 2 * SLOT_BYTES
"""Where a control segment keeps what. Flags have cache lines to themselves; pieces begin at PIECES."""

assert TEXT_BYTES + WORD_BYTES + INLINE_BYTES <= SLOT_BYTES
assert FREED + MAX_BUFFERS <= SLOTS

_TEXT_WORDS = TEXT_BYTES // 8


@lru_cache(1024)
def _posted(text: str) -> Array:
    """A notice as it is posted, without words of the member's own."""
    words = np.frombuffer(notice(text, TEXT_BYTES) + bytes(WORD_BYTES), np.int64)
    return words.copy()  # a read-only array is another type to the kernels


class Meeting:
    """One member's view of the meeting place. One thread at a time."""

    def __init__(
        self,
        rank: int,
        records: Sequence[Record],
        own: OwnSegment,
        warn_seconds: float,
        finished: Callable[[], Collection[int]] = tuple,
        loss: Callable[[], ClusterError | None] = lambda: None,
    ) -> None:
        """Opens the others' segments. A member that cannot says so in its own, where the others may see it."""
        self.rank, self.size = rank, len(records)
        self._members, self._own, self._warn_seconds = [each.member for each in records], own, warn_seconds
        self._pid = os.getpid()
        self._finished, self._loss = finished, loss
        self._watch = Watch(self._members)
        try:
            self.segments: list[Segment] = [
                own if each == rank else open_segment(record.place, f"rank {each}")
                for each, record in enumerate(records)
            ]
        except BaseException as error:
            self.leave(f"could not join: {error}")
            raise
        self._others = [each for each in range(self.size) if each != rank]
        self._flags = np.array([self.segments[each].address + FLAG for each in self._others], np.int64)
        self._slots = [
            np.array([each.address + slot(turn) for each in self.segments], np.int64) for turn in (0, 1)
        ]
        self._payloads = [slots + (TEXT_BYTES + WORD_BYTES) for slots in self._slots]
        self._flag = own.address + FLAG
        self._spins = self.size <= len(os.sched_getaffinity(0))
        self._count = self._calls = 0

    def open(self, call: Call, words: Sequence[int] = (), payload: int = 0, nbytes: int = 0) -> None:
        """Begin a call: meet everybody, and see that they have come for the same. If not, every member raises
        DifferentCalls, and nothing has happened. `words` are this member's own, for the others to read; so is the
        payload."""
        posted = _posted(call.terms.text)
        if words:
            posted = posted.copy()
            posted[_TEXT_WORDS : _TEXT_WORDS + len(words)] = words
        self._calls += 1
        self._count += 1
        slots = self._slots[self._calls & 1]
        unlike = kernels.come(
            slots, self.rank, posted, _TEXT_WORDS, payload, nbytes, self._flag, self._count, self._flags, self._spins
        )
        if unlike == kernels.LATE:
            self._wait(call)
            unlike = kernels.first_unlike(slots, slots[self.rank], _TEXT_WORDS)
        if unlike >= 0:
            lo = slot(self._calls & 1)
            check_alike([bytes(each.array[lo : lo + TEXT_BYTES]) for each in self.segments], self.rank)

    def words(self, rank: int) -> list[int]:
        """A member's words of the call under way."""
        lo = slot(self._calls & 1) + TEXT_BYTES
        found: list[int] = self.segments[rank].array[lo : lo + WORD_BYTES].view(np.int64).tolist()
        return found

    @property
    def payloads(self) -> Array:
        """The addresses of everyone's payloads of the call under way."""
        return self._payloads[self._calls & 1]

    def sync(self, call: Call) -> None:
        """Meet everybody once more: what anyone did before, everyone sees after."""
        self._count += 1
        kernels.arrive(self._flag, self._count)
        self._wait(call)

    def _wait(self, call: Call) -> None:
        began, warn_after = time.monotonic(), self._warn_seconds
        while not kernels.wait(self._flags, self._count, self._spins):
            missing, waited = self._missing(call), time.monotonic() - began
            if missing and waited >= warn_after:
                warn_after *= 3
                who = named(self._members, missing)
                log.warning("%s has taken %.0f s so far: it waits for %s", call.terms.text, waited, who)

    def _missing(self, call: Call) -> list[int]:
        """Who has not come. Raises if there is no point in waiting on. A dead member may have come before it died."""
        dead, finished = self._watch.dead(), self._finished()
        missing = [each for each in self._others if self._flag_of(each) < self._count]
        for each in missing:
            array = self.segments[each].array
            if array[LEFT]:
                raise ClusterError(f"{call.terms.text}: {named(self._members, [each])} {_text(array[REASON:FREED])}")
        gone = [each for each in missing if each in dead]
        if gone:
            raise ClusterError(
                f"{call.terms.text}: {named(self._members, gone)} died; make a new group of those who are left, "
                "or start again"
            )
        over = [each for each in missing if each in finished]
        if over:
            absent = UsageError(
                f"{call.terms.text}: {named(self._members, over)} has finished its function and does not come to it; "
                "let every worker make the same calls"
            )
            loss = self._loss()  # if a server is lost, that may be why; and who waits here should hear of it first
            if loss is not None:
                raise loss from absent
            raise absent
        if missing and time.monotonic() > call.deadline:
            raise TimeoutError(
                f"{call.terms.text}: waited {call.timeout:g} s for {named(self._members, missing)}, who did not come "
                "to it; raise timeout= if that is too short for what they do in between"
            )
        return missing

    def leave(self, reason: str) -> None:
        """Tell those who wait, now or later, that this member does not come again, and why. Safe to repeat. A forked
        copy of this process has nothing to say here."""
        self._watch.close()
        array = self._own.array
        if not array[LEFT] and os.getpid() == self._pid:
            said = reason.encode()[: FREED - REASON]
            array[REASON : REASON + len(said)] = np.frombuffer(said, np.uint8)
            kernels.arrive(self._own.address + LEFT, 1)

    def _flag_of(self, rank: int) -> int:
        return int(self.segments[rank].array[FLAG : FLAG + 8].view(np.int64)[0])


def _text(array: Array) -> str:
    return bytes(array).rstrip(b"\0").decode(errors="replace")


def slot(turn: int) -> int:
    return SLOTS + turn * SLOT_BYTES
