"""What the last of a chain and its learner say to each other."""

from __future__ import annotations

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Received, Recycle, Send
from windlass.server.log import Standing
from windlass.server.shard import Shard
from windlass.server.units import Learn
from windlass.store.parts import join_arrays
from windlass.types import Bytes, Generation, Incarnation


def hear_learner(shard: Shard, peer: Incarnation, message: m.Ready | m.Shown) -> list[Effect]:
    """It is ready to be shown the shard, or has been shown it."""
    if isinstance(message, m.Ready):
        shard.ready_learner, shard.ready_since = peer, Generation(message.term, message.number)
        return shard.teach(peer) if shard.ready_since >= shard.taught_since else []
    if shard.lesson != message.lesson:
        return []
    shard.log.on_shown(peer)
    return shard.report_recruit()


def hear_teacher(shard: Shard | None, event: Received, message: m.Show | m.ShowSlot | m.Shown) -> list[Effect]:
    """The last of the chain shows what is in the shard."""
    peer = event.peer
    effects: list[Effect] = [Recycle(event.data)]
    if isinstance(message, m.ShowSlot) and event.is_shared and message.pins:
        effects = [Send(peer, m.Release(pins=message.pins))]
    if shard is None or shard.log.standing is not Standing.LEARNER or shard.log.predecessor != peer:
        return effects
    if isinstance(message, m.Show):
        if message.lesson == shard.lesson:
            return effects  # it has begun: from the beginning again would undo what followed
        effects += shard.begin_lesson(message)
    elif shard.lesson == message.lesson:
        if isinstance(message, m.ShowSlot):
            effects += _learn_slot(shard, message, event.data)
        else:
            effects.append(Send(peer, msgspec.structs.replace(message, is_answer=True)))
    return effects


def _learn_slot(shard: Shard, shown: m.ShowSlot, data: tuple[Bytes, ...]) -> list[Effect]:
    """One part more of a slot. One that comes twice counts once; what is complete is not begun again."""
    parts = shard.being_shown.setdefault(shown.slot, {})
    for part in data:
        parts[shown.part] = (shown.name, part.copy().view(shown.dtype))
    if not shown.is_last:
        return []
    del shard.being_shown[shown.slot]
    if len(parts) <= shown.part:
        return []
    return shard.queue([Learn(shown, join_arrays(parts[number] for number in sorted(parts)))])
