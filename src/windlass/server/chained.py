"""A server in its chains: what it hears from those before and after it, whose word it needs, and when it may speak."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Received, Recycle, Send
from windlass.server.held import AnyShard, HeldKey
from windlass.server.host import Members
from windlass.server.pulse import Pulse
from windlass.server.shard import Shard
from windlass.server.teaching import hear_learner, hear_teacher
from windlass.types import MANAGER, SERVER, Generation, Incarnation, KeyId, Node


class Chained(ABC):
    """The part of a server that knows of chains; what it holds is the server's."""

    me: Incarnation
    members: Members
    keys: dict[KeyId, HeldKey]
    nodes: dict[Incarnation, Node]
    _linked: set[Incarnation]
    _pulse: Pulse
    _now: float

    @abstractmethod
    def _handle(self, event: Event) -> list[Effect]:
        """What to do about an event."""

    def _shards(self) -> Iterator[AnyShard]:
        for key in self.keys.values():
            yield from key.shards.values()

    def _told(self, shard: Shard, effects: list[Effect]) -> list[Effect]:
        """What a shard wants to do and say; what may not be said yet is held back."""
        log = shard.log
        return effects if log.is_last else log.hold_back(effects, self._may_answer(log.successor))

    def _may_answer(self, successor: Incarnation | None) -> bool:
        return self._pulse.may_answer(successor, self._now)

    def _on_replication(self, event: Received, message: m.Replicate | m.Replicated) -> list[Effect]:
        key = self.keys.get(message.key)
        shard = key.shards.get(message.shard) if key is not None else None
        if shard is None:  # deleted, or ours no longer
            if isinstance(message, m.Replicate) and event.is_shared and message.pins:
                return [Send(event.peer, m.Release(pins=message.pins))]
            return [Recycle(event.data)]
        if isinstance(message, m.Replicated):
            self._pulse.hear_of(event.peer)
            told = shard.log.on_replicated(event.peer, message, self._may_answer(shard.log.successor))
            return told + shard.settle() + shard.report_recruit()
        effects, whole = shard.log.take(event.peer, message, event.data, is_shared=event.is_shared)
        if whole is not None:
            effects += shard.follow(whole) + shard.log.acknowledge()
        return effects

    def _on_teaching(self, event: Received, message: m.Ready | m.Show | m.ShowSlot | m.Shown) -> list[Effect]:
        key = self.keys.get(message.key)
        shard = key.shards.get(message.shard) if key is not None else None
        if isinstance(message, m.Ready) or (isinstance(message, m.Shown) and message.is_answer):
            if shard is None:
                return []
            told = hear_learner(shard, event.peer, message)
            return [*self._beat(), *told] if isinstance(message, m.Shown) else told  # its word is needed from now on
        return hear_teacher(shard, event, message)

    def _on_beat(self, peer: Incarnation, beat: m.Beat) -> list[Effect]:
        """A server asks whether we still follow it, or has answered that it does."""
        if not beat.is_answer:
            node = self.nodes.get(peer)
            if node is None or node.role is not SERVER:
                return []  # it is out, and should not think otherwise
            return [self._pulse.answer(peer, beat, self._now)]
        effects = self._say_again(peer) if self._pulse.confirm(peer, beat) else []
        for shard in self._shards() if peer != MANAGER else ():
            if shard.log.is_head and shard.log.successor == peer:
                effects += shard.log.flush(self._may_answer(peer)) + shard.settle()
        return effects

    def _on_settle(self, settle: m.Settle) -> list[Effect]:
        key = self.keys.get(settle.key)
        shard = key.shards.get(settle.shard) if key is not None else None
        if shard is None or not shard.log.is_head or Generation(settle.term, settle.number) < shard.chained_in:
            return []  # not ours to settle; or that is done, and nobody would ever tell us to go on
        shard.is_pausing, shard.has_settled = True, False
        return shard.settle()

    def _beat(self) -> list[Effect]:
        """To those whose word is needed: whoever comes after us, is shown a shard, or closes the rounds of one."""
        asked = {who for key in self.keys.values() for who in key.needs() if who is not None and who != self.me}
        return self._pulse.beat_all(self._now, self.members.generation, asked)

    def _meet(self, key: HeldKey) -> list[Effect]:
        """A new key: ask those whose word it needs, where they have not given it lately for others."""
        is_known = all(who is None or who == self.me or self._may_answer(who) for who in key.needs())
        return [] if is_known else self._beat()

    def _look_around(self) -> list[Effect]:
        """Who is out of reach is told again, through the manager, of the ends of rounds that it may have missed."""
        before = self._pulse.detours
        effects = self._pulse.look(self._now, self.nodes, self._linked | {self.me})
        return effects + [one for peer in sorted(before | self._pulse.detours) for one in self._say_again(peer)]

    def _say_again(self, peer: Incarnation) -> list[Effect]:
        """What another server may have missed of rounds."""
        return [one for shard in self._shards() for one in self._told(shard, shard.on_server_back(peer))]

    def _confirm(self, shard: AnyShard) -> list[Effect]:
        """Ask whoever comes after us now whether it follows: until it has said so we may not answer anyone, and the
        next beat is an eighth of a lease away."""
        after = shard.log.successor
        if not shard.log.is_head or after is None or self._may_answer(after):
            return []
        return [Send(after, self._pulse.beat(self._now, self.members.generation))]

    def _inherit(self, shard: AnyShard) -> list[Effect]:
        """An heir speaks for its shard when those who did before it cannot any more, and it has applied all it has."""
        if shard.is_busy or not self.may_inherit(shard):
            return []
        shard.log.inherit()
        shard.ancestors.clear()
        return self._confirm(shard) + self._unpause(shard)

    def _unpause(self, shard: AnyShard) -> list[Effect]:
        """Go on: with what came meanwhile, if it is ours to answer."""
        shard.is_pausing = False
        effects = self._told(shard, shard.on_head())
        early, shard.early = shard.early, []
        for event in early:
            effects += self._handle(event)
        return effects

    def may_inherit(self, shard: AnyShard) -> bool:
        """Whether nobody who was before us answers any more: not confirmed for a lease, or it knows that it is out."""
        return all(self._pulse.is_over(one, shard.chained_in, self._now) for one in shard.ancestors)
