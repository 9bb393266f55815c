"""What a driver assigns to a shard: pieces of a value, or rows of a table, kept until the keeper says between which two
rounds they become the value; then one entry of the log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Log, Recycle, Send
from windlass.errors import UsageError
from windlass.server.refusing import Refuses
from windlass.server.shard_time import ShardTime
from windlass.server.units import THE_SHARDS, Put, SetAside
from windlass.types import Bytes, Incarnation


class Writes(Refuses):
    """The part of a shard that is written to; what it holds is the shard's."""

    __slots__ = THE_SHARDS

    time: ShardTime
    _writes: dict[Incarnation, tuple[int, dict[m.Piece, Bytes]]]  # the latest of each driver
    _written: dict[Incarnation, int]  # the number of each driver's last write that was committed
    _put_at: float  # when, by the time of the shard, what was put last was ordered

    def stage_write(self, peer: Incarnation, write: m.Write, data: tuple[Bytes, ...]) -> list[Effect]:
        number, staged = self._writes.get(peer, (-1, {}))
        if number != write.write:
            number, staged = self._writes[peer] = (write.write, {})
            self.free_room(lambda who, clock: who == peer and clock < 0)
        for piece, part in zip(write.pieces, data, strict=True):
            staged[piece] = part.copy()  # the sender's memory is its own again once this is answered
        if not self.may_refuse:
            return [Recycle(data), Send(peer, m.Done(request=write.request))]
        pieces = [(*piece, staged[piece]) for piece in write.pieces]
        return [Recycle(data), *self.queue([SetAside((peer, -number), write.request, pieces, is_write=True)])]

    def drop_writer(self, peer: Incarnation) -> None:
        """It has departed: what it has not committed it will not commit any more, nor push what it has room for."""
        self._writes.pop(peer, None)
        self._written.pop(peer, None)
        self.free_room(lambda who, _: who == peer)

    def _commit(self, order: m.Commit) -> list[Effect]:
        number, staged = self._writes.get(order.writer, (-1, {}))
        if number == order.write:
            del self._writes[order.writer]
            self._written[order.writer] = number
            which, now = (order.writer, -number), self.time.now()
            pieces = [(*piece, part) for piece, part in staged.items()]
            puts = [Put(*piece, which, now) for piece in pieces]
            return self.queue([*self.checks(pieces, which, is_write=True), *puts, order])
        if self._written.get(order.writer) != order.write:
            reason = f"what was to be assigned to '{self.spec.name}' is not here any more; assign it again"
            return [Send(order.writer, m.Refused(request=order.request, is_usage=False, reason=reason))]
        return self.queue([order])

    def _put(self, put: Put) -> list[Effect]:
        if put.write in self._errors:
            return []
        self._put_at = put.now
        try:
            self.slots[put.slot].content.write(put.lo, put.hi, put.data, now=put.now)
        except UsageError as error:  # its writer hears of it, the server lives
            self._errors[put.write] = str(error)
            return [Log("error", f"'{self.spec.name}' could not be assigned to: {error}")]
        return [] if put.is_followed else self._log_part(((put.slot, put.lo, put.hi),), [put.data])

    def _end_write(self, order: m.Commit) -> list[Effect]:
        """All that a write brings is put, or nothing of it."""
        self._aside.pop((order.writer, -order.write), None)
        if problem := self._errors.pop((order.writer, -order.write), ""):
            self._written.pop(order.writer, None)  # asked again, it is not Done
            return [Send(order.writer, m.Refused(request=order.request, is_usage=True, reason=problem))]
        done = Send(order.writer, m.Done(request=order.request, detail=self.number))
        return [*self.log.seal(m.LogEntry(kind=m.Kind.WRITE, now=self._put_at)), done]

    @abstractmethod
    def _log_part(self, pieces: tuple[m.Piece, ...], data: Sequence[Bytes]) -> list[Effect]:
        """Put data as it is into the entry that is being made."""
