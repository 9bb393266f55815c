"""A named strategy in shared memory: its schedule, on copies of the tensor that all members see.

A member does what its own copy is the target of, and all meet between two steps. The host's copy is the first member's
to look after, and lies behind its own.
"""

from __future__ import annotations

import numpy as np

from windlass.collectives.call import Call, Verb, terms
from windlass.collectives.holders import HostHolder, holder_of
from windlass.collectives.schedule import Action, Schedule, Step
from windlass.collectives.shared.buffers import Buffers
from windlass.collectives.shared.meeting import Meeting
from windlass.collectives.tensors import kind
from windlass.store.reduce import Op
from windlass.types import Bytes

MIN_ROOM_BYTES = 1 << 20


class Scheduled:
    """Runs schedules. One call at a time."""

    def __init__(self, meeting: Meeting, buffers: Buffers) -> None:
        self._meeting, self._buffers = meeting, buffers
        self._room: Bytes = np.empty(0, np.uint8)

    def run(self, call: Call, schedule: Schedule) -> None:
        """Carry out a call, which has been opened."""
        agreed, rank = call.terms, self._meeting.rank
        mine, holders = holder_of(call.tensor, agreed.kind), self._holders(call)
        holders[rank].copy(0, agreed.kind.size, mine)
        for step in schedule.reduce:
            self._step(call, schedule, step, holders)
        if agreed.reducer.op is Op.MEAN:
            for owner, lo, hi in schedule.owners:
                if self._is_mine(schedule, owner):
                    holders[owner].divide(lo, hi, schedule.members)
        for step in schedule.gather:
            self._step(call, schedule, step, holders)
        mine.copy(0, agreed.kind.size, holders[rank])
        mine.finish()

    def _step(self, call: Call, schedule: Schedule, step: Step, holders: list[HostHolder]) -> None:
        self._meeting.sync(call)
        for source, target, lo, hi, action in step:
            if not self._is_mine(schedule, target):
                continue
            if action is Action.REDUCE:
                holders[target].fold(lo, hi, holders[source], call.terms.reducer)
            else:
                holders[target].copy(lo, hi, holders[source])

    def _is_mine(self, schedule: Schedule, holder: int) -> bool:
        return holder == self._meeting.rank or (holder == schedule.host and self._meeting.rank == 0)

    def _holders(self, call: Call) -> list[HostHolder]:
        """A copy for each member, and one for the host; room for them is made when there is too little."""
        work = call.terms.kind.work_type
        nbytes = call.terms.kind.size * work.itemsize
        if self._room.nbytes < 2 * nbytes:
            room = terms(Verb.BUFFER, kind("uint8", (-(-2 * nbytes // MIN_ROOM_BYTES) * MIN_ROOM_BYTES,)))
            self._room = self._buffers.make(Call(room, None, call.timeout), room.kind.nbytes)
        spot = self._buffers.find(self._room.ctypes.data, 1)
        views = [self._buffers.array(rank, spot) for rank in range(self._meeting.size)]
        holders = [HostHolder(view[:nbytes].view(work)) for view in views]
        return [*holders, HostHolder(views[0][nbytes : 2 * nbytes].view(work))]
