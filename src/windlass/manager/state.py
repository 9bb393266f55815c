"""The manager decides who is a member and which server holds which slot. It sees no data.

Nodes join and wait; once the expected numbers are here the first generation is published. A node whose link to the
manager breaks is gone: its process died, or it must rejoin as a new incarnation. Every change of membership is a new
generation, and every node acts on the newest one only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Hangup, LinkDown, Log, Received, Send
from windlass.errors import UsageError
from windlass.manager.placement import load_of, place
from windlass.types import MANAGER, Generation, Incarnation, KeyId, KeySpec, Node, Role


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    num_servers: int
    num_workers: int
    pid: int = 0
    addresses: tuple[str, ...] = ()
    term: int = 1


@dataclass(slots=True)
class _Key:
    id: KeyId
    spec: KeySpec
    slots: tuple[Incarnation, ...]
    unplaced: set[Incarnation]
    error: str = ""
    is_usage: bool = True  # whether the error is the caller's
    waiting: list[tuple[Incarnation, int]] = field(default_factory=list)  # who asked, under which request


class ManagerState:
    """`handle(event, now) -> effects`; no I/O."""

    def __init__(self, config: ManagerConfig) -> None:
        self.config = config
        self.generation = Generation(config.term, 0)
        self.nodes: dict[Incarnation, Node] = {}
        self._self = Node(
            name="manager",
            role=Role.MANAGER,
            incarnation=MANAGER,
            rank=0,
            pid=config.pid,
            addresses=config.addresses,
        )
        self.departed: list[Node] = []
        self._drivers: set[Incarnation] = set()
        self._keys: dict[str, _Key] = {}
        self._by_id: dict[KeyId, _Key] = {}
        self._load: dict[Incarnation, int] = {}  # bytes of values placed on each server
        self._next_key = 1
        self._early: list[tuple[Incarnation, m.Declare]] = []

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(peer=peer, message=message):
                return self._on_message(peer, message)
            case LinkDown(peer=peer, reason=reason):
                return self._on_link_down(peer, reason)
            case _:
                return []

    def _on_message(self, peer: Incarnation, message: m.AnyMessage) -> list[Effect]:
        match message:
            case m.Join():
                return self._on_join(peer, message)
            case m.Declare():
                return self._on_declare(peer, message)
            case m.Lookup():
                return self._on_lookup(peer, message)
            case m.Placed():
                return self._on_placed(peer, message)
            case m.Forget():
                return self._on_forget(peer, message)
            case m.Inspect():
                return [Send(peer, m.Done(request=message.request, detail=self.describe()))]
            case m.Abort():
                return [Send(node.incarnation, message) for node in self._of(Role.WORKER)]
            case _:
                return [Log("warning", f"{self._name(peer)} sent the manager {type(message).__name__}; ignored")]

    # --- members ----------------------------------------------------------------------------------------------------

    def _on_join(self, peer: Incarnation, join: m.Join) -> list[Effect]:
        if join.role is Role.MANAGER:
            return [Hangup(peer, "there is one manager already")]
        if join.role is Role.DRIVER:
            self._drivers.add(peer)
            return [Send(peer, self._membership("the driver joined"))] if self.is_complete else []
        if peer in self.nodes:
            return [Send(peer, self._membership("joined again"))] if self.is_complete else []
        if any(node.incarnation == peer for node in self.departed):  # declared dead: it must come as somebody new
            return [Send(peer, self._membership(f"incarnation {peer} was declared dead"))]
        taken = {node.rank for node in self._of(join.role)}
        rank = join.rank
        if rank < 0 or rank in taken:
            rank = next(free for free in range(len(taken) + 1) if free not in taken)
        name = f"{join.role}-{rank}"
        self.nodes[peer] = Node(
            name=name, role=join.role, incarnation=peer, rank=rank, pid=join.pid, addresses=join.addresses
        )
        return self._publish(f"{name} joined")

    @property
    def is_complete(self) -> bool:
        """Whether the first generation has been published, or may be now."""
        return self.generation.number > 0 or (
            len(self._of(Role.SERVER)) >= self.config.num_servers
            and len(self._of(Role.WORKER)) >= self.config.num_workers
        )

    def _on_link_down(self, peer: Incarnation, reason: str) -> list[Effect]:
        self._drivers.discard(peer)
        node = self.nodes.pop(peer, None)
        if node is None:
            return []
        self.departed.append(node)
        effects = self._publish(f"{node.name} (pid {node.pid}) is gone: {reason}")
        for key in list(self._by_id.values()):
            if peer in key.unplaced:
                key.is_usage = False
                key.error = f"{node.name} died before it could hold its part of '{key.spec.name}'"
                key.unplaced.discard(peer)
                effects += self._answer(key)
        return effects

    def _publish(self, reason: str) -> list[Effect]:
        if not self.is_complete:
            return [Log("info", f"{reason}; waiting for the rest")]
        is_first = self.generation.number == 0
        self.generation = Generation(self.generation.term, self.generation.number + 1)
        membership = self._membership(reason)
        effects: list[Effect] = [Log("info", f"generation {self.generation}: {reason}")]
        effects += [Send(peer, membership) for peer in (*self.nodes, *self._drivers)]
        if is_first:
            early, self._early = self._early, []
            for peer, declare in early:
                effects += self._on_declare(peer, declare)
        return effects

    def _membership(self, reason: str) -> m.Membership:
        nodes = sorted(self.nodes.values(), key=lambda node: (node.role, node.rank))
        return m.Membership(term=self.generation.term, number=self.generation.number, nodes=tuple(nodes), reason=reason)

    def _of(self, role: Role) -> list[Node]:
        return [node for node in self.nodes.values() if node.role is role]

    def _name(self, peer: Incarnation) -> str:
        node = self.nodes.get(peer)
        return node.name if node else f"incarnation {peer}"

    # --- keys -------------------------------------------------------------------------------------------------------

    def _on_declare(self, peer: Incarnation, declare: m.Declare) -> list[Effect]:
        if not self.is_complete:
            self._early.append((peer, declare))
            return []
        spec = declare.spec
        key = self._keys.get(spec.name)
        if key is None:
            try:
                spec.check()
            except UsageError as error:
                return [Send(peer, m.Refused(request=declare.request, is_usage=True, reason=str(error)))]
            return self._new_key(peer, declare)
        difference = _difference(key.spec, spec)
        if difference:
            reason = f"'{spec.name}' is declared already, {difference}; delete it first, or declare it alike everywhere"
            return [Send(peer, m.Refused(request=declare.request, is_usage=True, reason=reason))]
        key.waiting.append((peer, declare.request))
        return self._answer(key)

    def _new_key(self, peer: Incarnation, declare: m.Declare) -> list[Effect]:
        spec = declare.spec
        servers = [node.incarnation for node in sorted(self._of(Role.SERVER), key=lambda node: node.rank)]
        if not servers:
            reason = f"'{spec.name}' cannot be placed: no server is alive"
            return [Send(peer, m.Refused(request=declare.request, is_usage=False, reason=reason))]
        slots = place(spec, {server: self._load.get(server, 0) for server in servers})
        for server, nbytes in load_of(spec, slots).items():
            self._load[server] = self._load.get(server, 0) + nbytes
        key = _Key(KeyId(self._next_key), spec, slots, set(slots), waiting=[(peer, declare.request)])
        self._next_key += 1
        self._keys[spec.name] = self._by_id[key.id] = key
        order = m.Place(key=key.id, spec=spec, slots=slots)
        return [Send(server, order) for server in dict.fromkeys(slots)]

    def _on_placed(self, peer: Incarnation, placed: m.Placed) -> list[Effect]:
        key = self._by_id.get(placed.key)
        if key is None:
            return []
        key.unplaced.discard(peer)
        key.error = key.error or placed.error
        return self._answer(key)

    def _answer(self, key: _Key) -> list[Effect]:
        if key.unplaced:
            return []
        waiting, key.waiting = key.waiting, []
        effects: list[Effect] = []
        if key.error:
            effects = [
                Send(peer, m.Refused(request=request, is_usage=key.is_usage, reason=key.error))
                for peer, request in waiting
            ]
            return effects + self._drop(key)
        for peer, request in waiting:
            effects.append(Send(peer, m.Declared(request=request, key=key.id, spec=key.spec, slots=key.slots)))
        return effects

    def _on_lookup(self, peer: Incarnation, lookup: m.Lookup) -> list[Effect]:
        key = self._keys.get(lookup.name)
        if key is None:
            known = ", ".join(f"'{name}'" for name in sorted(self._keys)[:8]) or "none"
            reason = f"no key '{lookup.name}'; create it first (keys: {known})"
            return [Send(peer, m.Refused(request=lookup.request, is_usage=True, reason=reason))]
        key.waiting.append((peer, lookup.request))
        return self._answer(key)

    def _on_forget(self, peer: Incarnation, forget: m.Forget) -> list[Effect]:
        key = self._keys.get(forget.name)
        if key is not None and forget.key not in (0, key.id):
            key = None  # that one is gone already; this is its successor
        effects = [] if key is None else self._drop(key)
        return [*effects, Send(peer, m.Done(request=forget.request, detail=key is not None))]

    def _drop(self, key: _Key) -> list[Effect]:
        self._keys.pop(key.spec.name, None)
        self._by_id.pop(key.id, None)
        for server, nbytes in load_of(key.spec, key.slots).items():
            self._load[server] -= nbytes
        order = m.Forget(request=0, name=key.spec.name, key=key.id)
        return [Send(server, order) for server in dict.fromkeys(key.slots) if server in self.nodes]

    # --- looking ----------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What `status` shows of the manager: plain data."""
        names = {node.incarnation: node.name for node in (*self.departed, *self.nodes.values())}
        return {
            "generation": str(self.generation),
            "nodes": [_plain(self._self, "alive")]
            + [_plain(node, "alive") for node in sorted(self.nodes.values(), key=lambda n: (n.role, n.rank))]
            + [_plain(node, "gone") for node in self.departed],
            "keys": {
                key.spec.name: {
                    "shape": list(key.spec.shape),
                    "dtype": key.spec.dtype,
                    "reduce": key.spec.reduce.path,
                    "update": key.spec.update.path,
                    "consistency": repr(key.spec.consistency),
                    "slots": [names[server] for server in key.slots],
                }
                for key in self._keys.values()
            },
        }


def _plain(node: Node, state: str) -> dict[str, Any]:
    return {
        "name": node.name,
        "role": str(node.role),
        "rank": node.rank,
        "incarnation": node.incarnation,
        "pid": node.pid,
        "address": node.address,
        "state": state,
    }


def _difference(known: KeySpec, new: KeySpec) -> str:
    """How a second declaration departs from the first, field by field; empty when it does not."""
    parts = [
        f"{field} was {getattr(known, field)!r}, got {getattr(new, field)!r}"
        for field in known.__struct_fields__
        if getattr(known, field) != getattr(new, field)
    ]
    return "; ".join(parts)
