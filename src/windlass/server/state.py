"""The server: holds slots, admits pushes, answers pulls. `handle(event, now) -> effects`, no I/O.

A server knows keys only from the manager (Place) and workers only from the generation (Membership). What comes from an
incarnation outside the generation is refused and never acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import (
    Dial,
    Effect,
    Event,
    Later,
    LinkDown,
    LinkUp,
    Log,
    Received,
    Recycle,
    Send,
    Sent,
    Stop,
)
from windlass.errors import UsageError
from windlass.server.arrival import ArrivalKey
from windlass.server.key import HeldKey, Members
from windlass.server.pins import Pins
from windlass.server.sequential import Advance, SequentialKey
from windlass.store.dense import DenseSlot
from windlass.store.reduce import resolve_reducer
from windlass.store.update import resolve_updater
from windlass.types import MANAGER, Array, Block, Bytes, Generation, Incarnation, KeyId, Memory, Node, Role, Sequential

MAX_EARLY_MESSAGES = 64


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`join` is how this node presents itself to the manager. `local` holds reducers and updaters of this process
    that have no import path (an embedded store's lambdas)."""

    join: m.Join
    manager: tuple[str, ...]
    local: Mapping[str, object] = field(default_factory=dict)


class ServerState:
    sequential_key: type[SequentialKey] = SequentialKey
    arrival_key: type[ArrivalKey] = ArrivalKey

    def __init__(self, me: Incarnation, memory: Memory, config: ServerConfig) -> None:
        self.me = me
        self.config = config
        self.members = Members()
        self.keys: dict[KeyId, SequentialKey | ArrivalKey] = {}
        self.nodes: dict[Incarnation, Node] = {}
        self._memory = memory
        self._pins = Pins(memory)
        self._linked: set[Incarnation] = set()
        self._early: dict[Incarnation, list[Received]] = {}
        self._restoring: dict[tuple[Incarnation, KeyId, int], dict[str, Array]] = {}

    def handle(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, Received):
            message = event.message
            if event.peer not in self.members.live and self._is_stranger(event.peer, message):
                return self._on_stranger(event)
            if isinstance(message, m.Push):
                return self._on_push(event.peer, message, event.data)
            return self._on_message(event, message)
        match event:
            case Later(work=(key_id, unit)):
                return self._on_work(key_id, unit)
            case Sent(pin=pin):
                self._pins.release(pin)
                return []
            case LinkUp(peer=peer):
                self._linked.add(peer)
                return self._on_link_up(peer)
            case LinkDown(peer=peer):
                return self._on_link_down(peer)
            case _:
                return []

    # --- the data path ----------------------------------------------------------------------------------------------

    def _on_push(self, peer: Incarnation, push: m.Push, data: tuple[Bytes, ...]) -> list[Effect]:
        key = self.keys.get(push.key)
        if key is None:
            problem = "the key was deleted"
        elif push.pieces == key.whole and len(data) == 1 and data[0].nbytes == key.whole_bytes:
            return key.push(peer, push, data)
        else:
            problem = _misfit(key, push.pieces, data)
            if not problem:
                return key.push(peer, push, data)
        answer: m.AnyMessage = m.Ack(key=push.key, clock=push.clock, error=problem)
        if push.pull:
            answer = m.Pulled(
                pull=push.pull, key=push.key, clock=push.clock, version=0, pieces=push.pieces, error=problem
            )
        return [Recycle(data), Send(peer, answer)]

    def _is_stranger(self, peer: Incarnation, message: m.AnyMessage) -> bool:
        """Whether a message of somebody who is no live worker is one that only they may send, or its sender was one."""
        if peer in self.members.ranks:
            return not isinstance(message, m.Release | m.Hold | m.Inspect)
        return isinstance(message, m.Push | m.Pull | m.Attach)

    def _on_stranger(self, event: Received) -> list[Effect]:
        """Somebody outside the generation. One who has left it is refused, never acknowledged. One never seen may
        have heard of its generation before we did: its messages are kept until we do."""
        early = self._early.setdefault(event.peer, [])
        if event.peer in self.members.ranks or len(early) >= MAX_EARLY_MESSAGES:
            what = type(event.message).__name__
            return [Recycle(event.data), Log("warning", f"refused {what} of {event.peer}: not in this generation")]
        early.append(event)
        return []

    def _on_message(self, event: Received, message: m.AnyMessage) -> list[Effect]:
        peer = event.peer
        match message:
            case m.Membership() if peer == MANAGER:
                return self._on_membership(message)
            case m.Place() if peer == MANAGER:
                return self._on_place(message)
            case m.Forget(key=key_id) if peer == MANAGER:
                key = self.keys.pop(key_id, None)
                return key.dissolve() if key is not None else []
            case m.Release(pins=pins):
                for pin in pins:
                    self._pins.release(pin)
                return []
            case m.Hold(pins=pins):
                self._pins.release_all(peer, but=pins)
                return []
            case m.Inspect():
                return [Send(peer, m.Done(request=message.request, detail=self._inspect(peer, message.key)))]
            case m.Staged() | m.Close():
                return self._on_round(peer, message)
            case m.Pull() | m.Read() | m.Init() | m.Write() | m.Commit() | m.Attach() | m.Dump() | m.Restore():
                return self._on_key(event, message)
            case _:
                return [Log("warning", f"incarnation {peer} sent a server {type(message).__name__}; ignored")]

    def _on_key(self, event: Received, message: Any) -> list[Effect]:
        peer, data = event.peer, event.data
        key = self.keys.get(message.key)
        if key is None:
            problem = "the key was deleted"
        elif isinstance(message, m.Dump | m.Restore):
            problem = "" if message.slot in key.slots else f"slot {message.slot} of '{key.spec.name}' is not held here"
        elif isinstance(message, m.Init | m.Write):
            problem = _misfit(key, message.pieces, data)
        else:
            problem = _misfit(key, getattr(message, "pieces", ()), None, is_read=isinstance(message, m.Read))
        if key is None or problem:
            if isinstance(message, m.Pull | m.Read):
                pulled = m.Pulled(
                    pull=message.pull, key=message.key, clock=0, version=0, pieces=message.pieces, error=problem
                )
                return [Send(peer, pulled)]
            return [Recycle(data), Send(peer, m.Refused(request=message.request, is_usage=True, reason=problem))]
        match message:
            case m.Pull():
                return key.pull(peer, message)
            case m.Read() | m.Commit():
                return key.order(message, peer)
            case m.Attach():
                return key.attach(peer, message.request, message.clock)
            case m.Init():
                return [*key.init(message.pieces, data), Send(peer, m.Done(request=message.request))]
            case m.Write():
                key.stage_write(peer, message, data)
                return [Recycle(data), Send(peer, m.Done(request=message.request))]
            case m.Dump():
                return self._dump(peer, key, message)
            case m.Restore():
                return self._restore(peer, key, message, data)
        return []

    def _on_round(self, peer: Incarnation, message: m.Staged | m.Close) -> list[Effect]:
        key = self.keys.get(message.key)
        if not isinstance(key, SequentialKey):
            return []
        if isinstance(message, m.Staged):
            return key.staged(peer, message)
        return key.close(message.round, message.members) if peer == key.keeper else []

    def _on_work(self, key_id: KeyId, unit: Any) -> list[Effect]:
        key = self.keys.get(key_id)
        if key is None:
            return []
        if isinstance(unit, Advance):
            return key.advance() if isinstance(key, SequentialKey) else []
        return key.work(unit)

    # --- members and links ------------------------------------------------------------------------------------------

    def _on_membership(self, membership: m.Membership) -> list[Effect]:
        generation = Generation(membership.term, membership.number)
        if generation <= self.members.generation:
            return []
        self.members.generation = generation
        self.nodes = {node.incarnation: node for node in membership.nodes}
        if self.me not in self.nodes:
            return [Stop(f"this server is not in generation {generation}: {membership.reason}")]
        workers = [node for node in membership.nodes if node.role is Role.WORKER]
        departed = [who for who in self.members.live if who not in self.nodes]
        self.members.live = {node.incarnation: node.name for node in workers}
        self.members.ranks |= {node.incarnation: node.rank for node in workers}
        effects: list[Effect] = []
        for node in membership.nodes:  # of two servers, the later incarnation dials the earlier
            is_server = node.role is Role.SERVER and node.incarnation < self.me
            if is_server and node.incarnation not in self._linked:
                effects.append(Dial(node.incarnation, node.addresses))
        for who in departed:
            if who not in self._linked:  # else it may still be reading; the end of its link will tell
                self._pins.release_all(who)
        for key in self.keys.values():
            for who in departed:
                key.drop_reader(who)
            effects += key.on_members()
        for who in [who for who in self._early if who in self.members.live]:
            for event in self._early.pop(who):
                effects += self.handle(event, 0.0)
        return effects

    def _on_link_up(self, peer: Incarnation) -> list[Effect]:
        """The manager: present yourself. Another server is back: what was said on the broken link is said again."""
        if peer == MANAGER:
            return [Send(MANAGER, self.config.join)]
        if peer not in self.nodes or self.nodes[peer].role is not Role.SERVER:
            return []
        effects: list[Effect] = []
        for key in self.keys.values():
            if isinstance(key, SequentialKey):
                effects += key.on_server_back(peer)
        return effects

    def _on_link_down(self, peer: Incarnation) -> list[Effect]:
        self._linked.discard(peer)
        self._early.pop(peer, None)
        for begun in [begun for begun in self._restoring if begun[0] == peer]:
            del self._restoring[begun]
        if peer not in self.members.live:  # a live worker may be in the middle of a copy: Hold will tell
            self._pins.release_all(peer)
        for key in self.keys.values():
            key.drop_reader(peer)
        if peer == MANAGER:
            return [Dial(MANAGER, self.config.manager)]
        node = self.nodes.get(peer)
        if node is not None and node.role is Role.SERVER and peer < self.me:
            return [Dial(peer, node.addresses)]
        return []

    # --- keys -------------------------------------------------------------------------------------------------------

    def _on_place(self, place: m.Place) -> list[Effect]:
        if place.key not in self.keys:
            try:
                self.keys[place.key] = self._make(place)
            except UsageError as error:
                return [Send(MANAGER, m.Placed(key=place.key, error=str(error)))]
            except Exception as error:  # a user's reducer or updater could not even be made, or memory is short
                text = f"'{place.spec.name}' cannot be held: {type(error).__name__}: {error}"
                return [Log("error", text), Send(MANAGER, m.Placed(key=place.key, error=text))]
        return [Send(MANAGER, m.Placed(key=place.key))]

    def _make(self, place: m.Place) -> SequentialKey | ArrivalKey:
        spec = place.spec
        reducer = resolve_reducer(spec.reduce, self.config.local)
        updater = resolve_updater(spec.update, self.config.local)
        slots = {}
        for number, server in enumerate(place.slots):
            if server == self.me:
                lo, hi = spec.slot_range(number)
                slots[number] = DenseSlot(
                    size=hi - lo, dtype=spec.dtype, reducer=reducer, updater=updater, memory=self._memory
                )
        kind = self.sequential_key if isinstance(spec.consistency, Sequential) else self.arrival_key
        return kind(place, self.me, slots, self.members, self._pins)

    def _dump(self, peer: Incarnation, key: SequentialKey | ArrivalKey, dump: m.Dump) -> list[Effect]:
        arrays, meta = key.slots[dump.slot].dense.dump()
        names = tuple(arrays)
        if not 0 <= dump.part < len(names):
            reason = f"slot {dump.slot} of '{key.spec.name}' is made of {len(names)} arrays, asked for {dump.part}"
            return [Send(peer, m.Refused(request=dump.request, is_usage=True, reason=reason))]
        dtypes = tuple(str(array.dtype) for array in arrays.values())
        data = Block(arrays[names[dump.part]].reshape(-1).view("uint8"))
        return [Send(peer, m.Dumped(request=dump.request, names=names, dtypes=dtypes, meta=meta), (data,))]

    def _restore(
        self, peer: Incarnation, key: SequentialKey | ArrivalKey, restore: m.Restore, data: tuple[Bytes, ...]
    ) -> list[Effect]:
        arrays = self._restoring.setdefault((peer, key.id, restore.slot), {})
        for part in data:
            arrays[restore.name] = part.copy().view(restore.dtype)
        effects: list[Effect] = [Recycle(data)]
        if restore.is_last:
            del self._restoring[(peer, key.id, restore.slot)]
            slot = key.slots[restore.slot]
            old = slot.dense.restore(arrays, restore.meta, is_pinned=self._pins.is_pinned(slot.dense.block))
            self._pins.retire(old)
            slot.missing = 0
            effects += key.answer_waiting(slot) + key.answer_attaching()
        return [*effects, Send(peer, m.Done(request=restore.request))]

    # --- looking ----------------------------------------------------------------------------------------------------

    def _inspect(self, peer: Incarnation, key_id: KeyId) -> Any:
        if key_id:
            key = self.keys.get(key_id)
            return key.explain(peer) if key else "the key was deleted"
        return {
            "generation": str(self.members.generation),
            "pins": len(self._pins),
            "keys": {
                key.spec.name: {
                    "version": key.version,
                    "value_bytes": sum(slot.dense.value_bytes for slot in key.slots.values()),
                    "state_bytes": sum(slot.dense.state_bytes for slot in key.slots.values()),
                    "staged_bytes": key.staged_bytes,
                    "slots": len(key.slots),
                    "clocks": {self.members.name(who): clock for who, clock in key.clocks.applied.items()},
                    "waiting_pulls": sum(len(slot.waiting) for slot in key.slots.values()),
                }
                for key in self.keys.values()
            },
        }


def _misfit(key: HeldKey, pieces: tuple[m.Piece, ...], data: tuple[Bytes, ...] | None, *, is_read: bool = False) -> str:
    """What is wrong with pieces that a peer named, if anything: nothing from the wire indexes memory unchecked. A read
    that the keeper passes on names everybody's pieces."""
    for number, lo, hi in pieces:
        size = key.sizes.get(number)
        if size is None:
            if is_read and 0 <= number < key.spec.num_slots:
                continue
            return f"slot {number} of '{key.spec.name}' is not held here"
        if not 0 <= lo <= hi <= size:
            return f"elements [{lo}, {hi}) are outside slot {number} of '{key.spec.name}', which has {size}"
    if data is None:
        return ""
    if len(data) != len(pieces):
        return f"{len(pieces)} pieces came with {len(data)} buffers"
    for (number, lo, hi), part in zip(pieces, data, strict=True):
        if part.nbytes != (hi - lo) * key.itemsize:
            return f"slot {number} expected {(hi - lo) * key.itemsize} bytes, got {part.nbytes}"
    return ""
