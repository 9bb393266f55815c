"""Slots as they are made, and as they are put together again from what was saved of them."""

from __future__ import annotations

from collections.abc import Mapping

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Recycle, Send
from windlass.server.shard import Shard
from windlass.server.units import Restored
from windlass.store.dense import DenseSlot, warm
from windlass.store.reduce import Op, resolve_reducer
from windlass.store.update import Fused, resolve_updater
from windlass.types import Array, Bytes, Incarnation, KeyId, Memory


class Maker:
    """Makes the slots of new shards. `local` are rules without an import path."""

    def __init__(self, memory: Memory, local: Mapping[str, object]) -> None:
        self._memory, self._local = memory, local
        self._warmed: set[tuple[str, str, str]] = set()

    def slots(self, place: m.Place, number: int) -> dict[int, DenseSlot]:
        """Those of one shard. Raises what a user's reducer or updater raises when it is made."""
        spec = place.spec
        reducer = resolve_reducer(spec.reduce, self._local)
        updater = resolve_updater(spec.update, self._local)
        rules = (spec.dtype, spec.reduce.path, spec.update.path)
        if rules not in self._warmed:
            self._warmed.add(rules)
            if isinstance(updater, Fused) and reducer.op is not Op.CUSTOM:
                warm(spec.dtype, reducer, updater)  # now, when nobody waits but who declares: it may have to compile
        slots = {}
        for slot in spec.shard_slots(number, len(place.chains)):
            lo, hi = spec.slot_range(slot)
            slots[slot] = DenseSlot(
                size=hi - lo, dtype=spec.dtype, reducer=reducer, updater=updater, memory=self._memory
            )
        return slots


class Restoring:
    """Slots that are being given back what was saved of them, array by array."""

    def __init__(self) -> None:
        self._begun: dict[tuple[Incarnation, KeyId, int], dict[str, Array]] = {}

    def take(self, peer: Incarnation, shard: Shard, restore: m.Restore, data: tuple[Bytes, ...]) -> list[Effect]:
        """One array more; with the last one the slot becomes what they say."""
        arrays = self._begun.setdefault((peer, shard.id, restore.slot), {})
        for part in data:
            arrays[restore.name] = part.copy().view(restore.dtype)
        if not restore.is_last:
            return [Recycle(data), Send(peer, m.Done(request=restore.request))]
        del self._begun[(peer, shard.id, restore.slot)]
        unit = Restored(restore.slot, arrays, restore.meta, (peer, restore.request), restore.count)
        return [Recycle(data), *shard.restore(unit)]

    def drop(self, peer: Incarnation) -> None:
        """Its link is gone: it begins anew."""
        for begun in [begun for begun in self._begun if begun[0] == peer]:
            del self._begun[begun]
