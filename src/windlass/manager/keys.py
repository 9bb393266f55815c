"""The keys that were declared: where they are, who has yet to make room for them, and who waits to hear of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Persist, Send
from windlass.errors import UsageError
from windlass.manager.chart import Chart, Charted
from windlass.manager.describing import describe_key, difference
from windlass.manager.records import KeyDropped, KeyImage, KeyPlaced, NewKey
from windlass.types import RESERVED, Generation, Incarnation, KeyId, KeySpec


@dataclass(slots=True)
class DeclaredKey:
    id: KeyId
    spec: KeySpec
    charted: Charted
    unplaced: set[Incarnation]
    error: str = ""
    waiting: list[tuple[Incarnation, int]] = field(default_factory=list)  # who asked, under which request

    @property
    def order(self) -> m.Place:
        return m.Place(key=self.id, spec=self.spec, chains=tuple(self.charted.chains))

    @property
    def is_orphaned(self) -> bool:
        """Whether a part of it has no server left, before anybody was told of it: there is nothing in it to lose."""
        return not self.charted.is_placed and not all(self.charted.chains)


class Keys:
    """Pure. A key is answered for once every server of its chains has made room; until then whoever asks waits."""

    def __init__(self, chart: Chart) -> None:
        self.generation = Generation(0, 0)  # the one that was published last
        self._chart = chart
        self._named: dict[tuple[str, str], DeclaredKey] = {}  # by namespace and name
        self._by_id: dict[KeyId, DeclaredKey] = {}
        self._next = KeyId(1)
        self._has_new = False

    def __iter__(self) -> Iterator[DeclaredKey]:
        return iter(self._named.values())

    def find(self, name: str, namespace: str = "") -> DeclaredKey | None:
        return self._named.get((namespace, name))

    def take_new(self) -> bool:
        """Whether a key has come into use since this was asked last: its shards may be moved from now on."""
        has_new, self._has_new = self._has_new, False
        return has_new

    @property
    def makers(self) -> set[Incarnation]:
        """Servers that have been told to make room for a key, and have not said that they did."""
        return {server for key in self for server in key.unplaced}

    # --- coming back ------------------------------------------------------------------------------------------------

    def restore(self, kept: Mapping[KeyId, KeyImage], next_key: KeyId) -> None:
        """What other managers have written down."""
        self._next = next_key
        for number, one in kept.items():
            charted = self._chart.restore(number, one.spec, one.chains, is_placed=one.is_placed)
            holders = {server for chain in one.chains for server in chain}
            self._add(DeclaredKey(number, one.spec, charted, set() if one.is_placed else holders))

    def order_again(self) -> list[Effect]:
        """Tell who has not made room for a key that it should: it may not have heard. (Of a key that is orphaned, the
        manager before this one wrote down that its server is gone, and no more.)"""
        waited_for = [(key, server) for key in self if not key.is_orphaned for server in sorted(key.unplaced)]
        return [*(Send(server, key.order) for key, server in waited_for), *self._adopt()]

    # --- what is asked of them --------------------------------------------------------------------------------------

    def declare(self, peer: Incarnation, declare: m.Declare) -> list[Effect]:
        spec = declare.spec
        key = self._named.get(_name(spec))
        if key is None:
            try:
                spec.check()
            except UsageError as error:
                return [Send(peer, m.Refused(request=declare.request, is_usage=True, reason=str(error)))]
            return self._place(spec, [(peer, declare.request)])
        unlike = difference(key.spec, spec)
        if unlike:
            reason = f"'{spec.name}' is declared already, {unlike}; delete it first, or declare it alike everywhere"
            return [Send(peer, m.Refused(request=declare.request, is_usage=True, reason=reason))]
        key.waiting.append((peer, declare.request))
        return self._answer(key)

    def _place(self, spec: KeySpec, waiting: list[tuple[Incarnation, int]]) -> list[Effect]:
        if not self._chart.servers:
            reason = f"'{spec.name}' cannot be placed: no server is alive"
            return [Send(peer, m.Refused(request=request, is_usage=False, reason=reason)) for peer, request in waiting]
        charted = self._chart.place(self._next, spec)
        self._next = KeyId(self._next + 1)
        holders = {server for chain in charted.chains for server in chain}
        key = DeclaredKey(charted.id, spec, charted, holders, waiting=waiting)
        self._add(key)
        record = NewKey(key=key.id, spec=spec, chains=key.order.chains)
        return [Persist(record), *(Send(server, key.order) for server in self._chart.servers if server in holders)]

    def _adopt(self) -> list[Effect]:
        """Place orphaned keys anew, under other numbers: who has made room for the old ones gives it back."""
        effects: list[Effect] = []
        for key in [key for key in self if key.is_orphaned]:
            effects += self._drop(key) + self._place(key.spec, key.waiting)
        return effects

    def placed(self, peer: Incarnation, placed: m.Placed) -> list[Effect]:
        key = self._by_id.get(placed.key)
        if key is None:
            return []
        key.unplaced.discard(peer)
        key.error = key.error or placed.error
        return self._answer(key)

    def lose(self, server: Incarnation) -> list[Effect]:
        """It is in no chain any more, and makes room for nothing."""
        effects = self._adopt()
        for key in [key for key in self if server in key.unplaced]:
            key.unplaced.discard(server)
            effects += self._answer(key)
        return effects

    def look_up(self, peer: Incarnation, lookup: m.Lookup) -> list[Effect]:
        key = self._named.get((lookup.namespace, lookup.name))
        if key is None:
            mine = (name for namespace, name in self._named if namespace == lookup.namespace)
            names = sorted(name for name in mine if not name.startswith(RESERVED))
            known = ", ".join(f"'{name}'" for name in names[:8]) or "none"
            reason = f"no key '{lookup.name}'; create it first (keys: {known})"
            return [Send(peer, m.Refused(request=lookup.request, is_usage=True, reason=reason))]
        key.waiting.append((peer, lookup.request))
        return self._answer(key)

    def forget(self, peer: Incarnation, forget: m.Forget) -> list[Effect]:
        key = self._named.get((forget.namespace, forget.name))
        if key is not None and forget.key not in (0, key.id):
            key = None  # that one is gone already; this is its successor
        effects = [] if key is None else self._drop(key)
        return [*effects, Send(peer, m.Done(request=forget.request, detail=key is not None))]

    def _answer(self, key: DeclaredKey) -> list[Effect]:
        if key.unplaced:
            return []
        effects: list[Effect] = []
        is_new = not key.charted.is_placed
        if is_new:
            key.charted.is_placed = True
            effects.append(Persist(KeyPlaced(key=key.id)))
        waiting, key.waiting = key.waiting, []
        if key.error:
            refused = [
                Send(peer, m.Refused(request=request, is_usage=True, reason=key.error)) for peer, request in waiting
            ]
            return [*self._drop(key), *refused]
        self._has_new = self._has_new or is_new
        term, number = self.generation
        for peer, request in waiting:
            declared = m.Declared(
                request=request, key=key.id, spec=key.spec, chains=key.order.chains, term=term, number=number
            )
            effects.append(Send(peer, declared))
        return effects

    def _add(self, key: DeclaredKey) -> None:
        self._named[_name(key.spec)] = self._by_id[key.id] = key

    def _drop(self, key: DeclaredKey) -> list[Effect]:
        self._named.pop(_name(key.spec), None)
        self._by_id.pop(key.id, None)
        self._chart.drop(key.id)
        order = m.Forget(request=0, name=key.spec.name, key=key.id)
        return [Persist(KeyDropped(key=key.id)), *(Send(server, order) for server in self._chart.servers)]

    def describe(self, names: Mapping[Incarnation, str]) -> dict[str, Any]:
        """Each key as plain data, with the servers of its chains by these names."""
        return {
            key.spec.full_name: describe_key(key.id, key.spec)
            | {
                "replicas": self._chart.replicas,
                "shards": [[names[server] for server in chain] for chain in key.charted.chains],
            }
            for key in self
        }


def _name(spec: KeySpec) -> tuple[str, str]:
    return spec.namespace, spec.name
