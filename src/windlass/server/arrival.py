"""A bounded or eventual key: each push is an update of its own, applied on arrival."""

from __future__ import annotations

from windlass._wire import messages as m
from windlass._wire.effects import Effect
from windlass.consistency import Admission
from windlass.consistency.rounds import StagedPiece
from windlass.server.key import Apply, End, HeldKey, HeldSlot, Members
from windlass.server.pins import Pins
from windlass.store.dense import DenseSlot
from windlass.types import Bounded, Incarnation


class ArrivalKey(HeldKey):
    def __init__(
        self, place: m.Place, me: Incarnation, slots: dict[int, DenseSlot], members: Members, pins: Pins
    ) -> None:
        super().__init__(place, me, slots, members, pins)
        self._seen: dict[Incarnation, set[int]] = {}  # parts that are here of each worker's next push

    def first_clock(self) -> int:
        return self.clocks.lowest(self.members.live)[0]

    def slot_version(self, slot: HeldSlot) -> int:
        return self.version

    def admit(self, peer: Incarnation, push: m.Push) -> Admission:
        admission = self.clocks.admit(peer, push.clock)
        if admission is Admission.NEXT and push.part in self._seen.get(peer, ()):
            return Admission.DUPLICATE
        return admission

    def accept(self, peer: Incarnation, push: m.Push, staged: list[StagedPiece]) -> list[Effect]:
        seen = self._seen.setdefault(peer, set())
        seen.add(push.part)
        divisor = max(1, len(self.members.live))
        which = (peer, push.clock)
        units: list[Apply | End] = [Apply(piece[0], [piece], divisor, push.hyper, which) for piece in staged]
        if len(seen) == push.parts:
            del self._seen[peer]
            self.clocks.received[peer] = push.clock
            units.append(End(which, (peer,), () if push.pull else (peer,)))
        return self.queue(units)

    def applied(self, slot: HeldSlot, unit: Apply) -> None:
        pass  # a pull speaks of whole pushes, so it waits for End

    def ended(self, clock: int) -> None:
        self.version += 1

    def current_round(self) -> int:
        return -1

    def on_members(self) -> list[Effect]:
        for who in [who for who in self.clocks.applied if who not in self.members.live]:
            self.clocks.leave(who)
            self._seen.pop(who, None)
        effects = super().on_members()
        for slot in self.slots.values():
            effects += self.answer_waiting(slot)
        return effects

    def explain(self, peer: Incarnation) -> str:
        """What a wait on this key waits for, in words."""
        if not self.is_ready:
            return f"'{self.spec.name}' waits for its first value from rank 0"
        own = self.clocks.applied.get(peer, 0)
        lowest, slowest = self.clocks.lowest(self.members.live)
        if isinstance(self.spec.consistency, Bounded) and slowest is not None and lowest < own:
            delay = self.spec.consistency.delay
            return f"'{self.spec.name}' waits for {self.members.name(slowest)}, {own - lowest} behind (delay {delay})"
        return f"'{self.spec.name}': {own} own pushes are in"

    @property
    def staged_bytes(self) -> int:
        return 0
