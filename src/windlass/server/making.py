"""Slots as they are made, and as they are put together again from what was saved of them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Recycle, Send
from windlass.server.content import Content, DenseContent
from windlass.server.deposits import by_rank
from windlass.server.host import ServerConfig
from windlass.server.pins import Pins
from windlass.server.rows import TableContent
from windlass.server.shard import Shard
from windlass.server.units import Restored
from windlass.store.dense import DenseSlot, warm
from windlass.store.large import LargePages
from windlass.store.parts import join_arrays
from windlass.store.reduce import Op, Reducer, resolve_reducer
from windlass.store.table import TableSlot, warm_table
from windlass.store.table_options import table_options
from windlass.store.update import Fused, Updater, resolve_updater
from windlass.types import Array, Bytes, Incarnation, KeyId, Memory, TableSpec


class Maker:
    """Makes what the slots of new shards hold, for one server."""

    def __init__(self, memory: Memory, config: ServerConfig, pins: Pins, me: Incarnation) -> None:
        self._memory, self._local, self._pins, self._me = memory, config.local, pins, me
        self._compiling = config.compiling
        self._rows = LargePages()
        self._warmed = config.warmed

    def slots(self, place: m.Place, number: int) -> dict[int, Content]:
        """Those of one shard. Raises what a user's reducer or updater raises when it is made."""
        spec = place.spec
        reducer = resolve_reducer(spec.reduce, self._local)
        updater = resolve_updater(spec.update, self._local)
        numbers = spec.shard_slots(number, len(place.chains))
        if spec.table is not None:
            return self._tables(place, spec.table, numbers, reducer, updater)
        rules = (spec.dtype, spec.reduce.path, spec.update.path)
        if rules not in self._warmed:
            self._warmed.add(rules)
            if isinstance(updater, Fused) and reducer.op is not Op.CUSTOM:
                with self._loading(place):  # now, when nobody waits but who declares: it may have to compile
                    warm(spec.dtype, reducer, updater)
        slots: dict[int, Content] = {}
        for slot in numbers:
            lo, hi = spec.slot_range(slot)
            dense = DenseSlot(size=hi - lo, dtype=spec.dtype, reducer=reducer, updater=updater, memory=self._memory)
            slots[slot] = DenseContent(dense, spec.itemsize, self._pins, self._me)
        return slots

    def _tables(
        self, place: m.Place, table: TableSpec, numbers: range, reducer: Reducer, updater: Updater
    ) -> dict[int, Content]:
        spec = place.spec
        options = table_options(spec, table)
        rules = (f"rows of {spec.dtype}", spec.reduce.path, spec.update.path)
        if rules not in self._warmed:
            self._warmed.add(rules)
            with self._loading(place):
                warm_table(options, reducer, updater)
        mine = options.share(table.slots)
        # Nobody reads rows where they lie, so they are in memory of this process alone.
        rows = {slot: TableSlot(mine, reducer=reducer, updater=updater, memory=self._rows) for slot in numbers}
        return {slot: TableContent(each, spec.itemsize) for slot, each in rows.items()}

    def _loading(self, place: m.Place) -> AbstractContextManager[None]:
        """Of those who hold a key all compile the same; its keeper says so."""
        is_keeper = place.chains[0][:1] == (self._me,)
        return self._compiling() if is_keeper else nullcontext()


class Restoring:
    """Slots that are being given back what was saved of them, array by array."""

    def __init__(self) -> None:
        self._begun: dict[tuple[Incarnation, KeyId, int], dict[int, tuple[str, Array]]] = {}

    def take(self, peer: Incarnation, shard: Shard, restore: m.Restore, data: tuple[Bytes, ...]) -> list[Effect]:
        """One array more; with the last one the slot becomes what they say."""
        if shard.is_restored(peer, restore.request):
            return [Recycle(data), Send(peer, m.Done(request=restore.request))]
        parts = self._begun.setdefault((peer, shard.id, restore.slot), {})
        for part in data:
            parts[restore.part] = (restore.name, part.copy().view(restore.dtype))
        if not restore.is_last:
            return [Recycle(data), Send(peer, m.Done(request=restore.request))]
        del self._begun[(peer, shard.id, restore.slot)]
        if len(parts) <= restore.part:
            lost = f"the link broke while slot {restore.slot} of '{shard.spec.name}' was being loaded; load it again"
            return [Recycle(data), Send(peer, m.Refused(request=restore.request, is_usage=False, reason=lost))]
        arrays = join_arrays(parts[number] for number in sorted(parts))
        if restore.slot == shard.spec.num_slots:
            done = Send(peer, m.Done(request=restore.request))
            return [Recycle(data), *shard.hand_out(by_rank(arrays, restore.meta)), done]
        unit = Restored(restore.slot, arrays, restore.meta, (peer, restore.request), restore.count)
        return [Recycle(data), *shard.restore(unit)]

    def drop(self, peer: Incarnation) -> None:
        """Its link is gone: it begins anew."""
        for begun in [begun for begun in self._begun if begun[0] == peer]:
            del self._begun[begun]
