"""The server: holds shards, admits pushes, answers pulls. `handle(event, now) -> effects`, no I/O.

A server knows keys only from the manager (Place) and workers only from the generation (Membership). What comes from an
incarnation outside the generation is refused and never acknowledged. It answers for a shard only as the head of its
chain, and only while the next of the chain has confirmed that within half a lease; whoever comes after a head that may
be alive waits for a whole one. So no two ever answer at the same time.
"""

from __future__ import annotations

from collections import deque
from itertools import product
from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import (
    Dial,
    Effect,
    Event,
    Later,
    Leave,
    LinkDown,
    LinkUp,
    Log,
    Received,
    Recycle,
    Send,
    Sent,
    Stop,
    Tick,
)
from windlass.errors import UsageError, in_words
from windlass.filters import IdLists
from windlass.server import held
from windlass.server.arrival import ArrivalShard
from windlass.server.chained import Chained
from windlass.server.freezing import Freezer
from windlass.server.held import AnyShard, HeldKey
from windlass.server.host import Host, Members, Routes
from windlass.server.host import ServerConfig as ServerConfig
from windlass.server.log import Standing, Teaching
from windlass.server.making import Maker, Restoring
from windlass.server.pins import Pins
from windlass.server.pulse import Pulse, go_around
from windlass.server.sequential import Advance, SequentialShard
from windlass.server.shard_time import Clock
from windlass.types import MANAGER, SERVER, WORKER, Bytes, Generation, Incarnation, KeyId, Memory, Node, Sequential

MAX_EARLY_MESSAGES = 256


class ServerState(Chained):
    sequential_shard: type[SequentialShard] = SequentialShard
    arrival_shard: type[ArrivalShard] = ArrivalShard
    freezer_kind: type[Freezer] = Freezer

    def __init__(self, me: Incarnation, memory: Memory, config: ServerConfig) -> None:
        self.me = me
        self.config = config
        self.members = Members()
        self.keys: dict[KeyId, HeldKey] = {}
        self.nodes: dict[Incarnation, Node] = {}
        self._memory = memory
        self.pins = Pins(memory)
        self.freezer = self.freezer_kind(me, self.pins, memory)
        self._now, self._clock = 0.0, Clock()
        shared = (memory, self.pins, self.members, self.freezer, self._clock, IdLists(config.id_list_bytes))
        self._host = Host(me, *shared, config.local, config.at_once_bytes)
        self._linked: set[Incarnation] = set()
        self._absent: dict[Incarnation, float] = {}  # since when there is no link to those who had one, for a lease
        self._early: dict[Incarnation, list[Received]] = {}
        self._restoring = Restoring()
        self._pulse = Pulse(config.lease_seconds)
        self._is_leaving = False
        self._maker = Maker(memory, config, self.pins, me)
        self._horizons: dict[Incarnation, int] = {}  # the first pin made since the link to each peer is open

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now = self._clock.now = now
        effects = self._handle(event)
        me, linked = self.me, self._linked
        for effect in effects:
            if type(effect) is Send and (effect.peer == me or (effect.pins and effect.peer not in linked)):
                effects = self._deliver_own(effects)
                break
        return go_around(effects, self._pulse.detours) if self._pulse.detours else effects

    def _deliver_own(self, effects: list[Effect]) -> list[Effect]:
        """What one shard says to another on the same server does not travel. Nor does what is pinned for a server to
        which there is no link that we have heard of: it could get there on a new one, whose Hold lets go of all that
        was pinned before. It is sent again when we hear of that."""
        out: list[Effect] = []
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Send) and effect.peer == self.me:
                waiting.extend(self._handle(Received(self.me, effect.message)))
            elif isinstance(effect, Send) and effect.pins and held.is_parted(self.nodes, self._linked, effect.peer):
                for pin in effect.pins:
                    self.pins.release(pin)
            else:
                out.append(effect)
        return out

    def _handle(self, event: Event) -> list[Effect]:
        if type(event) is Received:
            message = event.message
            if event.peer not in self.members.live and self._is_stranger(event.peer, message):
                return self._on_stranger(event)
            kind = type(message)
            if kind is m.Push:  # the usual ones first
                return self._on_push(event, message)  # type: ignore[arg-type]
            if kind in held.KEYED:
                return self._on_key(event, message)
            if kind is m.Replicate or kind is m.Replicated:
                return self._on_replication(event, message)  # type: ignore[arg-type]
            if kind is m.Beat:
                return self._on_beat(event.peer, message)  # type: ignore[arg-type]
            return self._on_message(event, message)
        match event:
            case Later(work=(shard, unit)):
                return self._on_work(shard, unit)
            case Sent(pin=pin):
                self.pins.release(pin)
                return []
            case LinkUp(peer=peer):
                self._linked.add(peer)
                self._pulse.link_up(peer)
                self._horizons[peer] = self.pins.next
                return self._on_link_up(peer)
            case LinkDown(peer=peer):
                self._absent[peer] = -float("inf") if event.is_death else self._now
                return self._on_link_down(peer)
            case Tick():
                return self._on_tick()
            case Leave():
                self._is_leaving = True
                return [Send(MANAGER, m.Drain(request=0, server=self.me))]
            case _:
                return []

    # --- the data path ----------------------------------------------------------------------------------------------

    def _on_push(self, event: Received, push: m.Push) -> list[Effect]:
        peer, data = event.peer, event.data
        key = self.keys.get(push.key)
        shard = key.shards.get(push.shard) if key is not None else None
        if key is None:
            problem = m.DELETED
        elif shard is None or not shard.speaks:
            return self._keep_for_head(event, push.key, push.shard, shard)
        elif shard.is_whole(push, data):
            return self._told(shard, shard.push(peer, push, data))
        else:
            problem = held.mispushed(shard, push, data)
            if not problem:
                return self._told(shard, shard.push(peer, push, data))
        return [Recycle(data), Send(peer, held.refused(push, problem))]

    def _keep_for_head(self, event: Received, key: KeyId, number: int, shard: AnyShard | None) -> list[Effect]:
        """Something for a shard of which this server is not the head. If it holds the shard, its sender is ahead of us,
        or we wait to inherit: it is kept until then, in order. If not, the sender is behind, and asks again."""
        if shard is not None and len(shard.early) < MAX_EARLY_MESSAGES:
            shard.early.append(event)
            return []
        if isinstance(event.message, m.Staged):
            return []
        return [Recycle(event.data), Send(event.peer, m.Misplaced(key=key, shard=number))]

    def _is_stranger(self, peer: Incarnation, message: m.AnyMessage) -> bool:
        """Whether a message of somebody who is no live worker is one that only they may send, or its sender was one."""
        if peer in self.members.ranks:
            return type(message) not in held.OF_ANYBODY
        return type(message) in held.OF_WORKERS

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
            case m.Settle() if peer == MANAGER:
                return self._on_settle(message)
            case m.Forget(key=key_id) if peer == MANAGER:
                return self._on_forget(key_id)
            case m.Release(pins=pins):
                for pin in pins:
                    self.pins.release(pin)
                return []
            case m.Hold(pins=pins):
                self.pins.release_all(peer, but=pins, before=self._horizons.get(peer))
                return []
            case m.Inspect():
                detail = held.inspect(self, peer, message, self._pulse.explain(self.nodes, self._now))
                return [Send(peer, m.Done(request=message.request, detail=detail))]
            case m.PassOn(peer=origin, message=told) if peer == MANAGER:
                effects = self._handle(Received(origin, told))
                self._pulse.hear_by_detour(origin)
                return effects
            case m.Staged() | m.Propose() | m.Close():
                self._pulse.hear_directly(peer)
                return self._on_round(peer, message)
            case m.Ready() | m.Show() | m.ShowSlot() | m.Shown():
                return self._on_teaching(event, message)
            case m.Refused(reason=reason) if peer == MANAGER:
                return [Log("warning", f"cannot hand over what it holds: {reason}; it ends with it, after its notice")]
            case m.Read() | m.Commit():
                return self._on_order(peer, message)
            case m.Tally() if peer == MANAGER:
                return self._on_tally(message)
            case m.Deposited(key=key_id):
                if (key := self.keys.get(key_id)) is not None and 0 in key.shards:
                    key.shards[0].deposit(peer, message, event.data)
                return [Recycle(event.data)]
            case m.Thaw(snapshot=snapshot):
                self.freezer.thaw(peer, snapshot)
                return []
            case _:
                return [Log("warning", f"incarnation {peer} sent a server {type(message).__name__}; ignored")]

    def _on_key(self, event: Received, message: Any) -> list[Effect]:
        peer, data = event.peer, event.data
        key = self.keys.get(message.key)
        shard: AnyShard | None = None
        if key is None:
            problem = m.DELETED
        else:
            is_of_slot = type(message) in held.OF_SLOTS
            shard = key.of_slot(message.slot) if is_of_slot else key.shards.get(message.shard)
            if shard is None or not shard.speaks:
                number = key.spec.shard_of(message.slot, len(key.routes.chains)) if is_of_slot else message.shard
                return self._keep_for_head(event, message.key, number, shard)
            problem = held.misasked(shard, message, data)
        if shard is None or problem:
            if isinstance(message, m.Pull):
                pulled = m.Pulled(
                    pull=message.pull, key=message.key, clock=0, version=0, pieces=message.pieces, error=problem
                )
                return [Send(peer, pulled)]
            return [Recycle(data), Send(peer, m.Refused(request=message.request, is_usage=True, reason=problem))]
        if isinstance(message, m.Dump):  # of what was told to be frozen, and so was safe
            return shard.dump(peer, message)
        return self._told(shard, self._ask_shard(shard, peer, message, data))

    def _ask_shard(self, shard: AnyShard, peer: Incarnation, message: Any, data: tuple[Bytes, ...]) -> list[Effect]:
        match message:
            case m.Pull():
                told = shard.pull(peer, message, data)
                return [*told, Recycle(data)] if data else told
            case m.Scan():
                return shard.scan(peer, message)
            case m.Attach():
                return shard.attach(peer, message)
            case m.Detach():
                return shard.rest(peer, message.request)
            case m.Init():
                return shard.init(peer, message.request, message.pieces, data)
            case m.Reserve():
                return shard.reserve(peer, message, data)
            case m.Write():
                return shard.stage_write(peer, message, data)
            case m.Freeze():
                return shard.freeze(peer, message)
            case m.Restore():
                return self._restoring.take(peer, shard, message, data)
        return []

    def _on_order(self, peer: Incarnation, order: m.Read | m.Commit) -> list[Effect]:
        """A driver's order comes to the keeper, which names its round; then to every head, which obeys."""
        key = self.keys.get(order.key)
        problem = m.DELETED if key is None else ""
        keeper = None if key is None else key.shards.get(0)
        if key is not None and isinstance(order, m.Read):
            problem = held.misread(key, order)
        if key is None or problem:
            return [held.refusal(order, problem)]
        if order.is_passed_on:
            if peer != key.routes.keeper:
                return []  # an old keeper's; whoever asked will ask again
            effects: list[Effect] = []
            for shard in key.shards.values():
                if shard.speaks:
                    effects += self._told(shard, shard.schedule(order))
            return effects
        if keeper is None or not keeper.speaks:
            return []
        return self._told(keeper, keeper.order(order))

    def _on_tally(self, tally: m.Tally) -> list[Effect]:
        told = held.tallied(tally, self.keys)
        return [one for shard, say in told for one in (self._told(shard, [say]) if shard else [say])]

    def _on_round(self, peer: Incarnation, message: m.Staged | m.Propose | m.Close) -> list[Effect]:
        key = self.keys.get(message.key)
        if key is None:
            return []
        shard = key.shards.get(0 if isinstance(message, m.Staged) else message.shard)
        if not isinstance(shard, SequentialShard):
            return []
        if not shard.speaks:  # a report is kept for when we do; a round's end is told again when we report
            is_report = isinstance(message, m.Staged)
            return self._keep_for_head(Received(peer, message), message.key, 0, shard) if is_report else []
        if isinstance(message, m.Staged):
            return self._told(shard, shard.staged(message, peer))
        if peer != key.routes.keeper:
            return []
        if isinstance(message, m.Propose):
            return self._told(shard, shard.propose(message))
        return self._told(shard, shard.close(message.round, message.members, message.error))

    def _on_work(self, shard: AnyShard, unit: Any) -> list[Effect]:
        key = self.keys.get(shard.id)
        if key is None or key.shards.get(shard.number) is not shard:
            return []  # deleted, or given away; and perhaps begun anew, which is another story
        if isinstance(unit, Advance):
            return self._told(shard, shard.advance()) if isinstance(shard, SequentialShard) else []
        effects = self._told(shard, shard.work(unit)) + shard.settle()
        return effects + self._inherit(shard) if shard.log.is_heir else effects

    def _on_tick(self) -> list[Effect]:
        effects = self._look_around() + self._beat() if self._pulse.is_due(self._now) else []
        held.drop_absent(self.keys, self._absent, self._linked, self._now - self.config.lease_seconds)
        for shard in self._shards():
            if shard.log.is_heir:
                effects += self._inherit(shard)
        return effects

    # --- members and links ------------------------------------------------------------------------------------------

    def _on_membership(self, membership: m.Membership) -> list[Effect]:
        generation = Generation(membership.term, membership.number)
        if generation <= self.members.generation:
            return []
        before = self.nodes
        self.nodes = {node.incarnation: node for node in membership.nodes}
        if self.me not in self.nodes:
            return [Stop(f"this server is not in generation {generation}: {membership.reason}")]
        self.members.update(generation, [node for node in membership.nodes if node.role is WORKER])
        departed = [who for who in before if who not in self.nodes]
        effects: list[Effect] = []
        for node in membership.nodes:  # of two servers, the later incarnation dials the earlier
            is_server = node.role is SERVER and node.incarnation < self.me
            if is_server and node.incarnation not in self._linked:
                effects.append(Dial(node.incarnation, node.addresses))
        for who in departed:
            self.freezer.drop_saver(who)
            if who not in self._linked:  # else it may still be reading; the end of its link will tell
                self.pins.release_all(who)
        moved = self._on_moves(membership)
        for who, shard in product(departed, list(self._shards())):
            shard.drop_reader(who)
            shard.drop_writer(who)
        effects += moved + (self._beat() if membership.moves else [])
        for shard in self._shards():
            effects += self._told(shard, shard.on_members())
        for who in [who for who in self._early if who in self.members.live]:
            for event in self._early.pop(who):
                effects += self._handle(event)
        return effects

    def _on_moves(self, membership: m.Membership) -> list[Effect]:
        """Chains have changed: shards get another standing. First all routes: one shard may have to tell another."""
        effects: list[Effect] = []
        moved = [(move, key) for move in membership.moves if (key := self.keys.get(move.key)) is not None]
        chains = [key.routes.chains[move.shard] for move, key in moved]
        for move, key in moved:
            key.routes.chains[move.shard] = move.chain
        for (move, key), before in zip(moved, chains, strict=True):
            shard = key.shards.get(move.shard)
            if move.learner == self.me and not held.learns_from(shard, move.chain[-1]):
                effects += self._become_learner(key, move)
                continue
            if shard is None:
                continue
            learner = move.learner or None
            was_head, taught = shard.log.is_head, shard.log.learner
            shard.chained_in = self.members.generation
            effects += shard.log.rechain(move.chain, learner)
            if shard.log.learner != taught:
                shard.taught_since = self.members.generation
            if shard.log.standing is Standing.OUTSIDER:
                effects += key.shards.pop(move.shard).leave()
                continue
            if was_head and not shard.log.is_head:
                shard.demote()
                effects += shard.send_away()
            if move.is_settled:
                shard.ancestors.clear()
            else:
                shard.ancestors.update(before[: before.index(self.me)] if self.me in before else ())
                shard.ancestors.difference_update(membership.dead)
            if shard.log.is_heir:
                effects += self._inherit(shard)
            elif shard.is_pausing:
                effects += self._unpause(shard)
            effects += shard.report_recruit()
            is_ready = learner == shard.ready_learner and shard.ready_since >= shard.taught_since
            if learner is not None and is_ready and shard.log.teaching is Teaching.WAITING:
                effects += shard.teach(learner)
        return effects

    def _become_learner(self, key: HeldKey, move: m.Move) -> list[Effect]:
        """Begin a shard anew, to be shown what is in it."""
        old = key.shards.pop(move.shard, None)
        effects = old.leave() if old is not None else []
        place = m.Place(key=move.key, spec=key.spec, chains=tuple(key.routes.chains))
        shard = key.shards[move.shard] = self._make(place, move.shard, key.routes)
        shard.log.enter(Standing.LEARNER, move.chain)
        return [*effects, Send(move.chain[-1], self._ready(shard))]

    def _ready(self, shard: AnyShard) -> m.Ready:
        term, number = self.members.generation
        return m.Ready(key=shard.id, shard=shard.number, term=term, number=number)

    def _on_link_up(self, peer: Incarnation) -> list[Effect]:
        """The manager: present yourself. Another server is back: what was said on the broken link is said again."""
        if peer == MANAGER:
            told = [effect for shard in self._shards() for effect in shard.report_recruit()]
            if self._is_leaving:  # the manager that was asked may be no more
                told.append(Send(MANAGER, m.Drain(request=0, server=self.me)))
            return [Send(MANAGER, self.config.join), *told]
        if peer not in self.nodes or self.nodes[peer].role is not SERVER:
            return []
        reading = tuple(pin for shard in self._shards() for pin in shard.log.reading(peer))
        effects: list[Effect] = [Send(peer, m.Hold(pins=reading))]
        for shard in self._shards():
            if shard.log.predecessor == peer:
                effects += shard.log.resume()
            elif shard.log.downstream == peer:
                effects += shard.log.send_again()
            if shard.log.standing is Standing.LEARNER and shard.log.predecessor == peer:
                shard.lesson = 0
                effects.append(Send(peer, self._ready(shard)))
            effects += self._told(shard, shard.on_server_back(peer))
        return [*effects, *self._beat()]

    def _on_link_down(self, peer: Incarnation) -> list[Effect]:
        self._linked.discard(peer)
        self._early.pop(peer, None)
        self._restoring.drop(peer)
        self._horizons.pop(peer, None)
        self.freezer.drop_saver(peer)
        if peer not in self.nodes:  # a member may be in the middle of reading: Hold will tell
            self.pins.release_all(peer)
        for shard in self._shards():
            shard.drop_reader(peer)
        if peer == MANAGER:
            return [Dial(MANAGER, self.config.manager)]
        node = self.nodes.get(peer)
        if node is not None and node.role is SERVER and peer < self.me:
            return [Dial(peer, node.addresses)]
        return []

    # --- keys -------------------------------------------------------------------------------------------------------

    def _on_place(self, place: m.Place) -> list[Effect]:
        if place.key not in self.keys:
            try:
                self.keys[place.key] = self._hold(place)
            except UsageError as error:
                text = f"'{place.spec.name}': {error}"
                return [Send(MANAGER, m.Placed(key=place.key, error=text))]
            except (Exception, SystemExit) as error:  # a user's updater could not even be made, or memory is short
                text = f"'{place.spec.name}' cannot be held: {in_words(error)}"
                return [Log("error", text), Send(MANAGER, m.Placed(key=place.key, error=text))]
            return [Send(MANAGER, m.Placed(key=place.key)), *self._meet(self.keys[place.key])]
        return [Send(MANAGER, m.Placed(key=place.key))]

    def _hold(self, place: m.Place) -> HeldKey:
        key = HeldKey(place.spec, Routes(list(place.chains)))
        for number, chain in enumerate(place.chains):
            if self.me in chain:
                shard = key.shards[number] = self._make(place, number, key.routes)
                shard.log.enter(Standing.HEAD if chain[0] == self.me else Standing.FOLLOWER, chain)
        return key

    def _make(self, place: m.Place, number: int, routes: Routes) -> AnyShard:
        slots = self._maker.slots(place, number)
        kind = self.sequential_shard if isinstance(place.spec.consistency, Sequential) else self.arrival_shard
        return kind(place, number, slots, routes, self._host)

    def _on_forget(self, key_id: KeyId) -> list[Effect]:
        key = self.keys.pop(key_id, None)
        return [] if key is None else [effect for shard in key.shards.values() for effect in shard.dissolve()]
