"""The worker: what is in flight, what must be sent again, what has failed. `handle(event, now) -> effects`, no I/O.

One worker's calls on a key take effect in the order issued: each key has a queue, and an operation starts when it is
first in it, what it comes `after` is done, and, for a push on a sequential key, every earlier pull on that key is
complete. So a pull still under way can always be asked again: the round it speaks of cannot be overtaken.

What a shard has not answered is sent again, in order, when the link to its head is new, when the generation gives it
another head, and when it was told that the head does not know yet that it is one.
"""

from __future__ import annotations

import math
from functools import partial

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Dial, Effect, Event, LinkDown, LinkUp, Log, Received, Recycle, Send, Tick
from windlass.errors import ClusterError, LostRange, PeerError, WindlassError
from windlass.types import MANAGER, SERVER, WORKER, Bytes, Chain, Generation, Incarnation, KeyId
from windlass.worker.crew import Crew
from windlass.worker.filtered import FilteredKeys, encoded
from windlass.worker.links import GIVE_UP_SECONDS, Links
from windlass.worker.ops import Call as Call
from windlass.worker.ops import KeyInfo, Op, Request, finish, fits, only, refusal, refuse

ASK_AGAIN_SECONDS = 0.5


class Submit(msgspec.Struct):
    """Event: the caller wants this."""

    work: Op | Request


class WorkerState(Crew, FilteredKeys):
    """Holds for a worker and for a driver's handle alike; a driver is no member and takes part in no round."""

    def __init__(
        self, me: Incarnation, join: m.Join, manager: tuple[str, ...], beat_seconds: float = math.inf
    ) -> None:
        super().__init__(me, join)
        self._beat_seconds, self._beaten_at = beat_seconds, 0.0
        self._early = {}
        self._has_lost = False  # whether a shard is lost
        self._keys: dict[KeyId, list[KeyInfo]] = {}  # in use
        self._moves: dict[KeyId, dict[int, tuple[Generation, Chain]]] = {}  # the latest of each shard that moved
        self._lost: dict[tuple[KeyId, int], str] = {}  # who held a lost shard last
        self._misplaced: set[tuple[KeyId, int]] = set()  # shards whose heads must be asked again
        self.checkpoint = ""  # the last complete one, as the generation tells
        self.is_restored = False  # whether the job goes back to that by itself
        self.failure: WindlassError | None = None  # once set, everything fails with it
        self.ops: dict[int, Op] = {}  # started, by number: in the order they must be sent again
        self.requests: dict[int, Request] = {}
        self._holding: dict[KeyId, KeyInfo] = {}  # keys of which something that was read is not released yet
        self._pushing: dict[KeyId, dict[int, Op]] = {}  # the pushes among them, by key
        self._next = 1
        self._now = 0.0
        self.holdings: dict[str, m.Holding] = {}  # leased work that this worker has, by plan
        self.makers: tuple[Incarnation, ...] = ()  # servers that made room for a key when the manager last answered
        self._links = Links()
        self._manager = manager

    def handle(self, event: Event | Submit, now: float) -> list[Effect | Call]:
        self._now = now
        kind = type(event)
        if kind is Received:
            return self._on_message(event, event.message)  # type: ignore[arg-type, union-attr]
        if kind is Submit:
            work = event.work  # type: ignore[union-attr]
            return self._submit(work) if type(work) is Op else self._ask(work)  # type: ignore[arg-type]
        match event:
            case LinkUp(peer=peer):
                return self._on_link_up(peer)
            case LinkDown(peer=peer):
                return self._on_link_down(peer, now)
            case Tick():
                return self._on_tick(now)
            case _:
                return []

    def all_ops(self) -> list[Op]:
        """Those that have started, and those that wait for their turn."""
        return [*self.ops.values(), *(op for keys in self._keys.values() for key in keys for op in key.queue)]

    @property
    def is_joined(self) -> bool:
        """Whether a generation is known and every server of it is linked."""
        if not self.generation.number:
            return False
        links = self._links
        return all(who in links for who, node in self.nodes.items() if node.role is SERVER)

    def is_linked(self, peer: Incarnation) -> bool:
        return peer in self._links

    @property
    def has_work(self) -> bool:
        return bool(self.ops or self.requests)

    def is_pushing(self, key: KeyInfo) -> bool:
        """Whether a push on this key is not acknowledged."""
        return bool(self._pushing.get(key.id)) or any(op.push is not None for op in key.queue)

    # --- submitting -------------------------------------------------------------------------------------------------

    def _submit(self, op: Op) -> list[Effect | Call]:
        key = op.key
        if not (key.queue or op.after or op.room or self._has_lost) and self.failure is None and not self._is_held(op):
            return self._start(op)  # the usual case
        key.queue.append(op)
        return self.pump(key) if len(key.queue) == 1 else []

    def pump(self, key: KeyInfo) -> list[Effect | Call]:
        """Start what may start on this key, in order."""
        effects: list[Effect | Call] = []
        while key.queue:
            op = key.queue[0]
            failed = next((task.error for task in op.after if task.is_done and task.error), None) or self._refusal(op)
            if failed is not None:
                key.queue.popleft()
                effects.append(finish(op, failed))
                continue
            if any(not task.is_done for task in op.after) or self._is_held(op):
                break
            if op.room is not None and (asked := op.room.ask(key.clock + 1)) is not None:
                effects += [effect for request in asked for effect in self._ask(request)]
                break
            failed = None if op.room is None else op.room.error
            key.queue.popleft()
            effects += self._start(op) if failed is None else [finish(op, failed)]
        return effects

    def _is_held(self, op: Op) -> bool:
        return op.push is not None and op.key.is_sequential and op.key.open_pulls > 0

    def _refusal(self, op: Op) -> WindlassError | None:
        if self.failure is not None:
            return self.failure
        return self.lost_range(op.key) if self._has_lost else None

    def lost_range(self, key: KeyInfo) -> LostRange | None:
        """The first range of this key that no living server holds, as an error."""
        for shard, chain in enumerate(key.chains):
            if not chain:
                lo, hi = key.spec.shard_range(shard, len(key.chains))
                holder = self._lost.get((key.id, shard), "a server")
                unit = "elements" if key.spec.table is None else "slots"
                return LostRange(key.spec.name, lo, hi, holder, self.checkpoint, self.is_restored, unit)
        return None

    @property
    def loss(self) -> LostRange | None:
        """The same of whichever key has lost one."""
        if not self._has_lost:
            return None
        used = [key for keys in self._keys.values() for key in keys]
        return next((lost for key in used if (lost := self.lost_range(key)) is not None), None)

    def use(self, key: KeyInfo, generation: Generation) -> None:
        """From now on keep this key's chains as the generations have them; they were given as of this one."""
        self._keys.setdefault(key.id, []).append(key)
        for shard, (moved_in, chain) in self._moves.get(key.id, {}).items():
            if moved_in > generation:
                key.chains[shard] = chain
        self._has_lost = self._has_lost or not all(key.chains)

    def _start(self, op: Op) -> list[Effect | Call]:
        key = op.key
        if op.encode is not None and (failed := encoded(op)) is not None:
            return [finish(op, failed)]
        self._renumber(op)
        effects: list[Effect | Call] = []
        if op.push is not None:
            key.clock += 1
            self._pushing.setdefault(key.id, {})[op.number] = op
            if self._left and key.is_sequential:
                effects += self._tell_left()
            op.unacked = set(op.push)
            if key.unreleased:
                effects += self._release(key)
            if key.filtering is not None:
                effects += self._deposit(key)
        op.clock = key.clock
        if op.pull is not None:
            op.unread = {shard: set(pieces) for shard, pieces in op.pull.items() if pieces}
            key.open_pulls += 1
        for shard in (0,) if op.reads_newest else op.waits_for():
            effects += [*op.filling(shard), *self._send(op, shard)]
        if op.is_complete:
            effects += self._complete(op, op.error)
        return effects

    def _send(self, op: Op, shard: int) -> list[Effect | Call]:
        """The messages of this operation for one shard; the same ones when sent again."""
        key = op.key
        if op.reads_newest:
            return self._read(op)
        head = key.head(shard)
        if head is None:
            return []
        messages = op.pulls(shard) if op.push is None or shard not in op.unacked else op.pushes(shard)
        return [Send(head, message, blocks, priority=key.spec.priority) for message, blocks in messages]

    def _read(self, op: Op) -> list[Effect | Call]:
        """Ask the keeper for all of it, under a new number: what earlier asking may still bring is of another round."""
        assert op.pull is not None
        self._renumber(op)
        op.asked_at = self._now
        op.unread = {shard: set(pieces) for shard, pieces in op.pull.items() if pieces}
        wanted = tuple(piece for pieces in op.pull.values() for piece in pieces)
        keeper = op.key.head(0)
        ids = () if op.ids is None else tuple(one.array.tobytes() for shard in op.pull for one in op.ids[shard])
        read = m.Read(pull=op.number, key=op.key.id, reader=self.me, pieces=wanted, ids=ids)
        return [] if keeper is None else [Send(keeper, read)]

    def _renumber(self, op: Op) -> None:
        """What it was asked under before is not heard any more."""
        self.ops.pop(op.number, None)
        op.number = self._next
        self._next += 1
        self.ops[op.number] = op

    def _ask(self, request: Request) -> list[Effect | Call]:
        if self.failure is not None:
            return [refuse(request, self.failure)]
        to = request.to
        if isinstance(to, tuple):
            if request.peer is None:
                return [refuse(request, self.lost_range(to[0]) or ClusterError("the shard is lost"))]
        elif to != MANAGER and to not in self.nodes:
            return [refuse(request, ClusterError(f"{self.name(to)} is not in generation {self.generation}"))]
        request.number = self._next
        self._next += 1
        self.requests[request.number] = request
        request.asked_at = self._now
        return self._send_request(request)

    def _send_request(self, request: Request) -> list[Effect | Call]:
        peer = request.peer
        return [] if peer is None else [Send(peer, request.make(request.number), request.data)]

    # --- answers ----------------------------------------------------------------------------------------------------

    def _on_message(self, event: Received, message: m.AnyMessage) -> list[Effect | Call]:
        kind = type(message)
        if kind is m.Pulled:  # the usual ones first
            return self._on_pulled(event, message)  # type: ignore[arg-type]
        if kind is m.Ack:
            return self._on_ack(message)  # type: ignore[arg-type]
        if kind is m.Done:
            return self._on_answer(event.peer, message, event.data)  # type: ignore[arg-type]
        match message:
            case m.NeedIds():
                return self._on_need_ids(event.peer, message)
            case m.Membership() if event.peer == MANAGER:
                return self._on_membership(message)
            case m.Misplaced(key=key, shard=shard):
                self._misplaced.add((key, shard))
                return []
            case m.Refused() | m.Declared() | m.Frozen() | m.Granted():
                return self._on_answer(event.peer, message, event.data)
            case m.Dumped(pins=pins) | m.Scanned(pins=pins):
                answered = self._on_answer(event.peer, message, event.data)
                is_kept = event.is_shared and bool(pins)  # until now: whoever asked has copied it
                return [*answered, Send(event.peer, m.Release(pins=pins))] if is_kept else answered
            case m.Deposit(key=key) | m.Residual(key=key):
                return [*self._on_residual(event.peer, key, message, event.data), Recycle(event.data)]
            case m.Beat(makers=makers):
                self.makers = makers
                return []
            case m.Abort(reason=reason) if event.peer == MANAGER:
                return self.fail_all(ClusterError(reason))
            case _:
                return [Log("warning", f"incarnation {event.peer} sent a worker {type(message).__name__}; ignored")]

    def _on_pulled(self, event: Received, pulled: m.Pulled) -> list[Effect | Call]:
        op = self.ops.get(pulled.pull)
        peer, data = event.peer, event.data
        shard = op.key.shard_of(pulled.pieces[0][0]) if op is not None and pulled.pieces else -1
        unread = op.unread.get(shard) if op is not None else None
        effects: list[Effect | Call] = []
        is_late = unread is not None and not op.reads_newest and op.key.head(shard) != peer  # type: ignore[union-attr]
        # A head that is one no longer may answer with less than its successor has: that one was asked, too.
        if op is None or unread is None or is_late or unread.isdisjoint(pulled.pieces):  # or answered before
            if event.is_shared and pulled.pins:
                effects.append(Send(peer, m.Release(pins=pulled.pins)))
            return [*effects, Recycle(data)]
        if pulled.error:
            op.error = op.error or refusal(op.key, pulled.error)
        elif op.key.filtering is not None:
            try:
                data = op.key.filtering.open(pulled, data, op)
            except PeerError as error:
                return self._complete(op, error)
        if not pulled.error and not fits(pulled.pieces, data, op.key.itemsize):
            wrong = f"{self.name(peer)} answered '{op.key.spec.name}' with the wrong length"
            return self._complete(op, PeerError(wrong))
        if not unread.issuperset(pulled.pieces):  # asked again, it came in one message with what had come before
            pulled, data = only(pulled, data, unread)
        op.asked_at = self._now
        unread.difference_update(pulled.pieces)
        if not unread:
            del op.unread[shard]
            op.unacked.discard(shard)  # the answer to a pull that rides on a push acknowledges the push
        deliver = op.deliver
        if deliver is not None and op.error is None:
            effects.append(Call(partial(deliver, pulled, data, event.is_shared)))
        if not event.is_shared:
            effects.append(Recycle(event.data))
        elif pulled.pins:
            op.key.unreleased.setdefault(peer, []).extend(pulled.pins)
            self._holding[op.key.id] = op.key
            if not op.key.is_sequential or op.reads_newest:
                effects += self._release(op.key)
        if op.is_complete:
            effects += self._complete(op, op.error)
        return effects

    def _release(self, key: KeyInfo) -> list[Effect | Call]:
        """Tell the servers what has been read. On a sequential key it goes with the next push, which alone could make
        them write there again; so a view stays valid until then, and no message is spent on it."""
        if not key.unreleased:
            return []
        held, key.unreleased = key.unreleased, {}
        self._holding.pop(key.id, None)
        return [Send(server, m.Release(pins=tuple(pins))) for server, pins in held.items()]

    def disuse(self, key: KeyInfo) -> list[Effect | Call]:
        """A key is no longer used: let go of what is still held of it."""
        if key in self._keys.get(key.id, ()):
            self._keys[key.id].remove(key)
        return self._release(key)

    def _on_ack(self, ack: m.Ack) -> list[Effect | Call]:
        effects: list[Effect | Call] = []
        for op in [op for op in self._pushing.get(ack.key, {}).values() if op.clock <= ack.clock]:
            if ack.shard in op.unacked:
                if ack.shard in op.unread:
                    continue  # it is acknowledged with what it reads
                if ack.error and op.clock == ack.clock:
                    op.error = op.error or refusal(op.key, ack.error)
                op.unacked.discard(ack.shard)
                if op.is_complete:
                    effects += self._complete(op, op.error)
        return effects

    def _complete(self, op: Op, error: WindlassError | None) -> list[Effect | Call]:
        self.ops.pop(op.number, None)
        if op.push is not None:
            del self._pushing[op.key.id][op.number]
        if op.pull is not None:
            op.key.open_pulls -= 1
        return [finish(op, error), *self.pump(op.key)] if op.key.queue else [finish(op, error)]

    def _on_answer(
        self,
        peer: Incarnation,
        answer: m.Done | m.Refused | m.Declared | m.Dumped | m.Scanned | m.Frozen | m.Granted,
        data: tuple[Bytes, ...],
    ) -> list[Effect | Call]:
        request = self.requests.get(answer.request)
        if request is None:
            return [Recycle(data)]
        is_of_many = request.answers > 1 and isinstance(answer, m.Done)
        request.answered.add(answer.detail if is_of_many else peer)  # type: ignore[union-attr]
        if len(request.answered) < request.answers and not isinstance(answer, m.Refused):
            return [Recycle(data)]
        del self.requests[answer.request]
        if isinstance(answer, m.Refused):
            error = refusal(request.to, answer.reason) if answer.is_usage else ClusterError(answer.reason)
            return [refuse(request, error)]
        answered = Call(partial(request.finish, answer, data, None))
        return [answered, Recycle(data)] if data else [answered]

    # --- members and links ------------------------------------------------------------------------------------------

    def _on_membership(self, membership: m.Membership) -> list[Effect | Call]:
        generation = Generation(membership.term, membership.number)
        if generation <= self.generation:
            return []
        self.checkpoint = membership.checkpoint
        for key in [key for keys in self._keys.values() for key in keys if key.filtering is not None]:
            key.filtering.forget_peers()  # type: ignore[union-attr]
        has_missed = generation != (self.generation.term, self.generation.number + 1)
        gone = self._take_members(membership)
        if self.is_out:
            return self.fail_all(ClusterError(f"this worker is not in generation {generation}: {membership.reason}"))
        effects: list[Effect | Call] = []
        for node in membership.nodes:
            if node.role is SERVER and node.incarnation not in self._links:
                effects.append(Dial(node.incarnation, node.addresses))
        for server in [who for who, node in gone.items() if node.role is SERVER]:
            self._links.give_up(server)
            effects += self._fail_requests(server, membership.reason)
        effects += self._on_moves(generation, membership.moves, has_missed=has_missed)
        if any(self._is_of_crew(node) for who, node in gone.items() if who in membership.dead):
            is_waiting = any(op.push is not None and op.key.is_sequential for op in self.ops.values())
            effects += self._tell_left() if is_waiting else []
        return effects

    def _fail_requests(self, server: Incarnation, reason: str) -> list[Effect | Call]:
        """A server is gone: what was asked of it, and of nobody else, is not answered any more."""
        effects: list[Effect | Call] = []
        for number, request in list(self.requests.items()):
            if request.to == server:
                del self.requests[number]
                effects.append(refuse(request, ClusterError(reason)))
        return effects

    def _on_moves(
        self, generation: Generation, moves: tuple[m.Move, ...], *, has_missed: bool
    ) -> list[Effect | Call]:
        """Shards have another chain: what their heads have not answered goes to the new ones; or to the old ones, if
        generations were missed, in which others may have been. What touches a lost one fails, now and later."""
        moved: set[tuple[KeyId, int]] = set()
        for move in moves:
            self._moves.setdefault(move.key, {})[move.shard] = (generation, move.chain)
            for key in self._keys.get(move.key, ()):
                before, key.chains[move.shard] = key.head(move.shard), move.chain
                if not move.chain:
                    self._has_lost = True
                    self._lost[move.key, move.shard] = self.name(before) if before is not None else "a server"
                if has_missed or before != key.head(move.shard):
                    moved.add((move.key, move.shard))
        return self._send_to(moved) + self._fail_lost() if moved else []

    def _fail_lost(self) -> list[Effect | Call]:
        effects: list[Effect | Call] = []
        for op in list(self.ops.values()):
            refusal = self._refusal(op)
            if refusal is not None and op.number in self.ops:
                effects += self._complete(op, refusal)
        for number, request in list(self.requests.items()):
            if isinstance(request.to, tuple) and request.peer is None:
                del self.requests[number]
                error = self.lost_range(request.to[0])
                effects.append(refuse(request, error or ClusterError("the shard is lost")))
        return effects

    def _send_to(self, shards: set[tuple[KeyId, int]]) -> list[Effect | Call]:
        """Send these shards' heads all that they have not answered, in order."""
        effects: list[Effect | Call] = []
        for request in self.requests.values():
            if isinstance(request.to, tuple) and (request.to[0].id, request.to[1]) in shards:
                effects += self._send_request(request)
        for op in list(self.ops.values()):
            if op.reads_newest:
                if any(key == op.key.id for key, _ in shards):
                    effects += self._read(op)
                continue
            for shard in op.waits_for():
                if (op.key.id, shard) in shards:
                    effects += self._send(op, shard)
        return effects

    def fail_all(self, error: WindlassError) -> list[Effect | Call]:
        """Everything under way ends with this error, and so does everything that comes."""
        self.failure = self.failure or error
        effects: list[Effect | Call] = []
        for op in list(self.ops.values()):
            if op.number in self.ops:
                effects += self._complete(op, error)
        requests, self.requests = self.requests, {}
        for request in requests.values():
            effects.append(refuse(request, error))
        return effects

    def _on_link_up(self, peer: Incarnation) -> list[Effect | Call]:
        self._links.rise(peer)
        self._relink(peer)
        # Everything that the old link brought has been dealt with by now: the link was dialled after its end.
        held = tuple([pin for key in self._holding.values() for pin in key.unreleased.get(peer, ())])
        effects: list[Effect | Call] = [Send(peer, self._join if peer == MANAGER else m.Hold(pins=held))]
        if peer == MANAGER:
            effects += [Send(MANAGER, holding) for holding in self.holdings.values()]
        for request in self.requests.values():
            if request.peer == peer:
                effects += self._send_request(request)
        for op in list(self.ops.values()):
            shards = [shard for shard in op.waits_for() if op.key.head(shard) == peer]
            if op.reads_newest:
                effects += self._read(op) if shards else []
                continue
            for shard in shards:
                effects += self._send(op, shard)
        return effects

    def _on_link_down(self, peer: Incarnation, now: float) -> list[Effect | Call]:
        is_wanted = (peer in self.nodes or peer == MANAGER) and self.failure is None
        self._links.fall(peer, now, is_wanted=is_wanted)
        return []

    def _on_tick(self, now: float) -> list[Effect | Call]:
        effects: list[Effect | Call] = []
        for peer in self._links.take_due(now):
            node = self.nodes.get(peer)
            effects.append(Dial(peer, node.addresses if node else self._manager))
        if self.role is WORKER and now - self._beaten_at >= self._beat_seconds and MANAGER in self._links:
            self._beaten_at = now
            effects.append(Send(MANAGER, m.Beat(sent=now)))
        effects += self._ask_again(now)
        for number, request in list(self.requests.items()):
            if isinstance(request.to, tuple):
                continue  # the generation tells when its head is gone
            if self._links.is_lost(request.to, request.asked_at, now):
                del self.requests[number]
                text = f"{self.name(request.to)} cannot be reached for {GIVE_UP_SECONDS:.0f} s; is its process alive?"
                effects.append(refuse(request, ClusterError(text)))
        return effects

    def _ask_again(self, now: float) -> list[Effect | Call]:
        """What goes through the keeper to others can be lost between them, where no broken link of ours tells."""
        misplaced, self._misplaced = self._misplaced, set()
        effects = self._send_to(misplaced) if misplaced else []
        for op in list(self.ops.values()):
            if op.reads_newest and now - op.asked_at > ASK_AGAIN_SECONDS:
                effects += self._read(op)
        for request in self.requests.values():
            if request.answers > 1 and now - request.asked_at > ASK_AGAIN_SECONDS:
                request.asked_at = now
                effects += self._send_request(request)
        return effects
