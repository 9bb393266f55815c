"""Collectives over anything that sends and receives messages.

Members first tell each other what they have come for: that is how a late one gets a name, and a different call is found
before it does harm. Then the backend does it in its own way, if it has one; else the schedule runs, each transfer a
message, large ones in pieces, so that one piece is reduced while the next is on its way.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from windlass.collectives.backend import Backend
from windlass.collectives.call import BARRIER, Call, Verb, check_alike, notice
from windlass.collectives.holders import DeviceHolder, Holder, HostHolder, holder_of
from windlass.collectives.members import Member, Watch, named, this_member
from windlass.collectives.schedule import Action, Schedule, Span, Step, Transfer
from windlass.collectives.strategies import Machines, Strategy
from windlass.errors import ClusterError, TimeoutError
from windlass.store.reduce import Op
from windlass.types import Bytes

NOTICE_BYTES = 256
PIECE_BYTES = 4 << 20
RING_BYTES = 64 << 10
"""From this size on, what has no native way runs as a ring; below, as a tree, which has the fewest steps."""


LOOK_SECONDS, GRACE_SECONDS = 0.05, 0.5
AWAKE_SECONDS = 1e-3


class Handle:
    """A message under way, or anything else that can only be asked whether it is done: awake at first, then asleep
    between two questions. `test` raises ClusterError when it cannot be done any more."""

    def __init__(self, test: Callable[[], bool]) -> None:
        self._test = test

    def wait(self, seconds: float) -> bool:
        """Whether it is done within so many seconds. May be asked again."""
        began = time.monotonic()
        while not self._test():
            waited = time.monotonic() - began
            if waited >= seconds:
                return False
            if waited > AWAKE_SECONDS:
                time.sleep(1e-4)
            else:
                os.sched_yield()
        return True


class Wire(Protocol):
    """Messages between members. Those from one to another arrive in the order sent; neither call blocks. Data is bytes
    in main memory, or a tensor on a device where the wire takes those; it must stay as it is until the handle is
    done."""

    def send(self, to: int, data: Any) -> Handle: ...

    def receive(self, source: int, data: Any) -> Handle: ...


class MessageBackend(Backend):
    """A member of a group that is connected by a wire."""

    def __init__(self, rank: int, size: int, wire: Wire) -> None:
        self.rank, self.size, self._wire = rank, size, wire
        self._others = [each for each in range(size) if each != rank]
        self._members: list[Member] = []
        self._watch: Watch | None = None
        self._abandoned: list[Any] = []  # what messages may still write to after a failure

    @abstractmethod
    def native(self, call: Call) -> bool:
        """Carry the call out in the backend's own way; False if it has none."""

    # --- meeting ------------------------------------------------------------------------------------------------------

    def tell_all(self, mine: Bytes, call: Call) -> list[Bytes]:
        """Everybody's bytes, in rank order; all of one length. TimeoutError names those whose have not come."""
        found = [mine if each == self.rank else np.zeros_like(mine) for each in range(self.size)]
        receiving = [(each, self._wire.receive(each, found[each])) for each in self._others]
        sending = [(each, self._wire.send(each, mine)) for each in self._others]
        try:
            late = [each for each, handle in receiving if not self.wait(handle, call)]
            if not late:
                late = [each for each, handle in sending if not self.wait(handle, call)]
        except BaseException:
            self._abandoned.append((found, receiving, sending))
            raise
        if late:
            self._abandoned.append((found, receiving, sending))
            raise _late(call, late)
        return found

    def meet(self, call: Call) -> None:
        mine = np.frombuffer(notice(call.terms.text, NOTICE_BYTES), np.uint8).copy()
        check_alike([bytes(each) for each in self.tell_all(mine, call)], self.rank)

    def introduce(self, timeout: float) -> None:
        """Learn who the others are: who shares a machine with whom, and whose process to watch."""
        mine = np.frombuffer(this_member().pack(), np.uint8).copy()
        self._members = [Member.unpack(bytes(each)) for each in self.tell_all(mine, Call(BARRIER, None, timeout))]
        self._watch = Watch(self._members)
        found = [member.machine for member in self._members]
        self.machines = tuple(
            tuple(rank for rank, each in enumerate(found) if each == machine) for machine in dict.fromkeys(found)
        )

    def wait(self, handle: Handle, call: Call) -> bool:
        """Whether a message is done in time. ClusterError if it cannot be any more, or if somebody has died and it is
        not done a moment later: who has done all its share may end before others are done with theirs."""
        died_at = None
        while True:
            now = time.monotonic()
            try:
                if handle.wait(max(0.0, min(LOOK_SECONDS, call.deadline - now))):
                    return True
            except ClusterError as error:
                raise ClusterError(f"{call.terms.text}: {self._obituary(LOOK_SECONDS)}{error}") from error
            if died_at is None and self._dead():
                died_at = now
            if died_at is not None and now - died_at > GRACE_SECONDS:
                raise ClusterError(
                    f"{call.terms.text}: {self._obituary(0)}make a new group of those who are left, or start again"
                )
            if now >= call.deadline:
                return False

    def _dead(self) -> list[int]:
        return sorted(self._watch.dead()) if self._watch is not None else []

    def _obituary(self, seconds: float) -> str:
        """Who has died, or does within this moment: a link may break just before its process is seen to be gone."""
        if not self._dead():
            time.sleep(seconds)
        return f"{named(self._members, self._dead())} died; " if self._dead() else ""

    def leave(self, reason: str) -> None:
        if self._watch is not None:
            self._watch.close()

    # --- carrying out -------------------------------------------------------------------------------------------------

    def carry_out(self, call: Call, opened: Any, machines: Machines | None) -> None:
        agreed = call.terms
        if agreed.verb is Verb.BARRIER or not agreed.kind.size:
            return
        if agreed.strategy is Strategy.AUTO and self.native(call):
            return
        default = Strategy.RING if agreed.kind.nbytes >= RING_BYTES else Strategy.TREE
        self._execute(call, agreed.schedule(self.size, machines, default))

    def _execute(self, call: Call, schedule: Schedule) -> None:
        """The host is played by the first member."""
        kind = call.terms.kind
        mine = {self.rank: holder_of(call.tensor, kind)}
        if schedule.has_host and self.rank == 0:
            mine[schedule.host] = HostHolder(np.empty(kind.size, kind.work_type))
        for step in schedule.reduce:
            self._step(call, schedule, step, mine)
        if call.terms.reducer.op is Op.MEAN:
            for owner, lo, hi in schedule.owners:
                if owner in mine:
                    mine[owner].divide(lo, hi, schedule.members)
        for step in schedule.gather:
            self._step(call, schedule, step, mine)
        mine[self.rank].finish()

    def _step(self, call: Call, schedule: Schedule, step: Step, mine: dict[int, Holder]) -> None:
        def member(holder: int) -> int:
            return 0 if holder == schedule.host else holder

        sending = [
            (member(each.target), self._wire.send(member(each.target), _span(mine[each.source], lo, hi)))
            for each in step
            if each.source in mine and each.target not in mine
            for lo, hi in _pieces(each, call)
        ]
        try:
            for each in step:
                if each.target in mine and each.source in mine:
                    _apply(each, mine[each.target], mine[each.source], call)
                elif each.target in mine:
                    self._take(each, member(each.source), mine[each.target], call)
            late = [to for to, handle in sending if not self.wait(handle, call)]
        except BaseException:
            self._abandoned.append((sending, mine))
            raise
        if late:
            self._abandoned.append((sending, mine))
            raise _late(call, sorted(set(late)))

    def _take(self, transfer: Transfer, source: int, target: Holder, call: Call) -> None:
        """Receive a transfer: what is copied straight into place, what is reduced by way of two spare pieces."""
        pieces = _pieces(transfer, call)
        reduces = transfer.action is Action.REDUCE
        spares = [_spare(target, hi - lo) for lo, hi in pieces[:2]] if reduces else []

        def begin(index: int) -> Handle:
            lo, hi = pieces[index]
            into = _span(spares[index % 2], 0, hi - lo) if reduces else _span(target, lo, hi)
            return self._wire.receive(source, into)

        coming = begin(0)
        try:
            for index, (lo, hi) in enumerate(pieces):
                if not self.wait(coming, call):
                    raise _late(call, [source])
                if index + 1 < len(pieces):
                    coming = begin(index + 1)
                if reduces:
                    target.fold(lo, hi, spares[index % 2], call.terms.reducer, at=0)
        except BaseException:
            self._abandoned.append((coming, spares, target))
            raise


def _pieces(transfer: Transfer, call: Call) -> list[Span]:
    """A transfer in pieces, the same for sender and receiver."""
    most = PIECE_BYTES // call.terms.kind.work_type.itemsize
    return [(lo, min(transfer.hi, lo + most)) for lo in range(transfer.lo, transfer.hi, most)]


def _span(holder: Holder, lo: int, hi: int) -> Any:
    """Elements lo to hi as a wire takes them."""
    return holder.work[lo:hi] if isinstance(holder, DeviceHolder) else holder.numbers(lo, hi).view(np.uint8)


def _spare(like: Holder, size: int) -> Holder:
    """Room for so many elements, where this holder is."""
    if isinstance(like, DeviceHolder):
        return DeviceHolder(like.work.new_empty(size))
    return HostHolder(np.empty(size, like.numbers(0, 0).dtype))


def _apply(transfer: Transfer, target: Holder, source: Holder, call: Call) -> None:
    if transfer.action is Action.REDUCE:
        target.fold(transfer.lo, transfer.hi, source, call.terms.reducer)
    else:
        target.copy(transfer.lo, transfer.hi, source)


def _late(call: Call, ranks: Sequence[int]) -> TimeoutError:
    who = " and ".join(f"rank {rank}" for rank in ranks)
    return TimeoutError(
        f"{call.terms.text}: waited {call.timeout:g} s for {who}, who did not come to it; "
        "raise timeout= if that is too short for what they do in between"
    )
