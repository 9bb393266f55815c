"""A server that is traced: the same state machine, which also notes what it staged, updated and answered.

The state machine itself has no clock. This one takes the recorder's, at the three moments that tell: when a message
comes, around the one pass that reduces and updates a slot, and when the answers are ready.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Received, Send
from windlass.server.arrival import ArrivalShard
from windlass.server.host import Routes
from windlass.server.sequential import SequentialShard
from windlass.server.shard import Shard
from windlass.server.state import ServerConfig, ServerState
from windlass.server.units import ROUND, Apply, HeldSlot
from windlass.trace.recorder import Recorder
from windlass.trace.spans import Category, Span
from windlass.types import Incarnation, KeyId, Memory


def make_server(
    kind: type[ServerState], me: Incarnation, memory: Memory, config: ServerConfig, recorder: Recorder | None
) -> ServerState:
    """The state machine of a server; without a recorder, the plain one. A kind of one's own is not traced."""
    if recorder is None or kind is not ServerState:
        return kind(me, memory, config)
    return TracedServerState(me, memory, config, recorder)


class Watch:
    """Times the pass over a slot within one `handle`."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.began_ns = 0  # of the first pass in this handle; 0: none
        self.ended_ns = 0  # of the last one
        self._pass_began_ns = 0

    def restart(self) -> int:
        self.began_ns = self.ended_ns = 0
        return self.recorder.now()

    def applying(self) -> None:
        self._pass_began_ns = self.recorder.now()
        self.began_ns = self.began_ns or self._pass_began_ns

    def applied(self, key: Shard, unit: Apply) -> None:
        self.ended_ns = self.recorder.now()
        num_bytes = sum(data.nbytes for _, _, _, data in unit.pieces)
        if not num_bytes:
            return
        who, clock = unit.push
        args: dict[str, Any] = {"key": key.spec.name, "slot": unit.slot, "bytes": num_bytes}
        if who == ROUND:
            args |= {"round": clock, "members": unit.divisor}
        else:
            args |= {"push": clock, "of": key.members.name(who)}
        name = f"reduce+update {key.spec.name} slot {unit.slot}"
        self._add(Category.UPDATE, name, self._pass_began_ns, self.ended_ns, args)

    def _add(
        self, category: Category, name: str, began: int, ended: int, args: dict[str, Any], link: tuple[int, ...] = ()
    ) -> None:
        self.recorder.add(Span(category, name, threading.get_ident(), began, ended, args, link))

    def staged(self, key: str, worker: str, push: m.Push, event: Received, began: int, ended: int) -> None:
        num_bytes = sum(part.nbytes for part in event.data)
        args = {"key": key, "of": worker, "push": push.clock, "bytes": num_bytes}
        link = (event.peer, push.key, push.clock, push.shard << 16 | push.part)
        self._add(Category.STAGE, f"stage {key} of {worker}", began, self.began_ns or ended, args, link)

    def answered(
        self, key: str, workers: list[str], answers: list[tuple[int, int, int]], began: int, ended: int
    ) -> None:
        args = {"key": key, "to": ", ".join(workers)}
        link = tuple(number for answer in answers for number in answer)
        self._add(Category.ANSWER, f"answer {key}", self.ended_ns or began, ended, args, link)


class TracedSequentialShard(SequentialShard):
    watch: Watch

    def _apply(self, unit: Apply) -> list[Effect]:
        self.watch.applying()
        return super()._apply(unit)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        self.watch.applied(self, unit)
        super().applied(slot, unit)


class TracedArrivalShard(ArrivalShard):
    watch: Watch

    def _apply(self, unit: Apply) -> list[Effect]:
        self.watch.applying()
        return super()._apply(unit)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        self.watch.applied(self, unit)
        super().applied(slot, unit)


class TracedServerState(ServerState):
    sequential_shard = TracedSequentialShard
    arrival_shard = TracedArrivalShard

    def __init__(self, me: Incarnation, memory: Memory, config: ServerConfig, recorder: Recorder) -> None:
        super().__init__(me, memory, config)
        self._watch = Watch(recorder)

    def _make(self, place: m.Place, number: int, routes: Routes) -> SequentialShard | ArrivalShard:
        shard = super()._make(place, number, routes)
        assert isinstance(shard, TracedSequentialShard | TracedArrivalShard)
        shard.watch = self._watch
        return shard

    def handle(self, event: Event, now: float) -> list[Effect]:
        began = self._watch.restart()
        effects = super().handle(event, now)
        ended = self._watch.recorder.now()
        if isinstance(event, Received) and isinstance(event.message, m.Push):
            push = event.message
            self._watch.staged(self._key(push.key), self._name(event.peer), push, event, began, ended)
            began = ended  # what is not an update is staging
        self._note_answers(effects, began, ended)
        return effects

    def _note_answers(self, effects: Sequence[Effect], began: int, ended: int) -> None:
        answers: list[tuple[int, int, int]] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, m.Pulled | m.Ack):
                answers.append((effect.peer, effect.message.key, effect.message.clock))
        if answers:
            workers = list(dict.fromkeys(self._name(Incarnation(who)) for who, _, _ in answers))
            self._watch.answered(self._key(answers[0][1]), workers, answers, began, ended)

    def _key(self, number: int) -> str:
        key = self.keys.get(KeyId(number))
        return key.spec.name if key is not None else f"key {number}"

    def _name(self, who: Incarnation) -> str:
        node = self.nodes.get(who)
        return node.name if node is not None else f"incarnation {who}"
