"""The manager decides who is a member and which chain of servers holds which shard. It sees no data.

Nodes join and wait; once the expected numbers are here the first generation is published. A node whose link to the
manager breaks is gone: its process died, or it must rejoin as a new incarnation. So is a server that has been silent
for a lease. Every change of membership is a new generation, and every node acts on the newest one only. When a server
is gone its chains close up, and the next of each is its head.

What others act on is written down before it is said (Persist). A manager that starts from such records waits for the
members to come back, and goes on where the one before it stopped, under a higher term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Event, Hangup, LinkDown, Log, Persist, Received, Send, Tick
from windlass.manager.chart import Chart, Steps, latest
from windlass.manager.config import ManagerConfig as ManagerConfig
from windlass.manager.cuts import Cuts
from windlass.manager.describing import describe_again, describe_nodes, describe_parting
from windlass.manager.keys import Keys
from windlass.manager.records import Checkpointed, Image, Published
from windlass.manager.recovery import Recovery
from windlass.types import MANAGER, SERVER, WORKER, Generation, Incarnation, KeyId, Node, Role


class ManagerState:
    """`handle(event, now) -> effects`; no I/O. `image` is what the managers before this one have written down."""

    def __init__(self, config: ManagerConfig, image: Image | None = None) -> None:
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
        self._drivers: dict[Incarnation, str] = {}  # and their namespaces
        self.chart = Chart(config.replicas, config.shards_per_server)
        self.chart.generation = Generation(config.term, 1)
        self.keys = Keys(self.chart)
        self.keys.generation = self.generation
        self._cuts = Cuts(config.lease_seconds)
        self._draining: dict[Incarnation, list[tuple[Incarnation, int]]] = {}  # servers that leave, and who asked
        self._heard: dict[Incarnation, float] = {}  # when each node was last heard of
        self._empty_seats: set[Incarnation] = set()  # workers that are gone, and whose seats are kept
        self._dead_seats: dict[Incarnation, float] = {}  # those of them that are kept for a moment only, until when
        self._now = 0.0
        self._ticked_at = math.inf  # never yet
        self._early: list[tuple[Incarnation, m.Declare]] = []
        self._written: set[Incarnation] = set()  # the members of the generation that was written down last
        self._recovery: Recovery | None = None
        self._doubted: set[tuple[KeyId, int]] = set()  # shards that somebody who was silent may still speak for
        self._back_at = 0.0  # since when everybody has known who is not a member any more
        self.checkpoint = ""  # the last complete one
        if image is not None and image.number:
            self._restore(image)

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now = now
        if isinstance(event, Received):
            peer, message = event.peer, event.message
            if peer in self._heard:
                self._heard[peer] = now
            if self._recovery is not None:
                return self._hear(self._recovery, event)
            if type(message) is m.Beat:  # the usual one first
                return [self._answer_beat(peer, message), *self._look_at_cuts(peer, message)]
            return self._on_message(peer, message)
        match event:
            case LinkDown(peer=peer, reason=reason, is_death=is_death):
                if self._recovery is not None:
                    return self._miss(self._recovery, peer, is_certain=is_death)
                if self._is_kept_seat(peer, is_dead=True) and not event.is_goodbye:
                    return self._keep_seat(peer, reason)
                return self._on_gone(peer, reason, is_certain=is_death)
            case Tick():
                if self._recovery is not None:
                    return self._recover(self._recovery)
                return self._on_tick()
            case _:
                return []

    def _on_message(self, peer: Incarnation, message: m.AnyMessage) -> list[Effect]:
        match message:
            case m.Join():
                return self._on_join(peer, message)
            case m.Declare():
                return self._on_declare(peer, message)
            case m.Lookup():
                return self._and_replan(self.keys.look_up(peer, message))
            case m.Placed():
                return self._and_replan(self.keys.placed(peer, message))
            case m.Forget():
                return self.keys.forget(peer, message)
            case m.Inspect():
                return [Send(peer, m.Done(request=message.request, detail=self.describe()))]
            case m.Recruited():
                steps = self.chart.recruited(message, peer)
                return [] if steps is None else self._take(steps, f"{self._name(message.learner)} has joined a chain")
            case m.Settled():
                moves = self.chart.settled(message, peer)
                return [] if moves is None else self._take(Steps(moves), "a shard has another chain")
            case m.Drain():
                return self._on_drain(peer, message)
            case m.Beat():
                return [self._answer_beat(peer, message), *self._look_at_cuts(peer, message)]
            case m.PassOn(peer=other, message=told):
                is_known = {peer, other} <= {*self.chart.servers}
                return [Send(other, m.PassOn(peer=peer, message=told))] if is_known else []
            case m.Saved(path=path):
                self.checkpoint = path
                return [Persist(Checkpointed(path=path)), Send(peer, m.Done(request=message.request))]
            case m.Loaded():
                return self._publish(f"{self._name(peer)} has loaded a checkpoint")
            case m.Abort():
                mine = self._drivers.get(peer, "")
                return [Send(node.incarnation, message) for node in self._of(WORKER) if node.namespace == mine]
            case _:
                return [Log("warning", f"{self._name(peer)} sent the manager {type(message).__name__}; ignored")]

    # --- coming back ------------------------------------------------------------------------------------------------

    def _restore(self, image: Image) -> None:
        self._recovery = Recovery(image, self.config.lease_seconds, self.config.dead_pids)
        self.nodes = dict(image.nodes)
        self._written = set(image.nodes)
        self.departed = list(image.departed.values())
        self.checkpoint = image.checkpoint
        for node in sorted(self._of(SERVER), key=lambda node: node.rank):
            self.chart.join(node.incarnation, node.rank, is_late=False)
        self.keys.restore(image.keys, image.next_key)
        self._doubted = {(number, shard) for number, kept in image.keys.items() for shard in kept.doubted}

    @property
    def is_recovering(self) -> bool:
        """Whether this manager has come back, and not spoken yet."""
        return self._recovery is not None

    @property
    def missing(self) -> set[Incarnation]:
        """Members that it still waits for then."""
        return self._recovery.missing if self._recovery is not None else set()

    def _hear(self, recovery: Recovery, event: Received) -> list[Effect]:
        peer, message = event.peer, event.message
        match message:
            case m.Join(role=Role.DRIVER, namespace=namespace):
                self._drivers[peer] = namespace
            case m.Join() if peer in self.nodes:
                recovery.come(peer)
                self._heard[peer] = self._now
            case m.Beat():
                return [self._answer_beat(peer, message), *self._recover(recovery)]
            case m.Recruited() | m.Settled() | m.Placed():
                pass  # of steps that the manager before this one began
            case _:
                recovery.waiting.append(event)
        return self._recover(recovery)

    def _miss(self, recovery: Recovery, peer: Incarnation, *, is_certain: bool) -> list[Effect]:
        self._drivers.pop(peer, None)
        self._heard.pop(peer, None)
        recovery.go(peer, is_certain=is_certain)
        return self._recover(recovery)

    def _recover(self, recovery: Recovery) -> list[Effect]:
        """If everybody has come who will, say again what the last generation was, to all: some may not have heard of
        it, nor of some before it. Then who has not come is gone, as ever."""
        if not recovery.is_over(self._now):
            return []
        self._recovery = None
        self._back_at = self._now
        moves = [
            msgspec.structs.replace(move, is_settled=(move.key, move.shard) not in self._doubted)
            for move in self.chart.moves()
        ]
        effects = self._publish("the manager is back", moves, tuple(sorted(recovery.image.dead)))
        effects += self.keys.order_again()  # now: whoever makes room for a key must know who is to use it
        for number, name in recovery.image.dropped.items():
            forget = m.Forget(request=0, name=name, key=number)
            effects += [Send(node.incarnation, forget) for node in self._of(SERVER)]
        for peer in sorted(recovery.missing):
            reason = f"it did not come back to the manager within {recovery.seconds(self._now):.1f} s"
            if peer in recovery.dead:
                reason = "its process died while there was no manager"
            is_kept = self._is_kept_seat(peer)
            is_certain = peer in recovery.dead
            effects += self._keep_seat(peer, reason) if is_kept else self._on_gone(peer, reason, is_certain=is_certain)
        steps = self.chart.plan()
        if steps.moves or steps.settles:
            effects += self._take(steps, "shards go on to where they should be")
        for event in recovery.waiting:
            effects += self._on_message(event.peer, event.message)
        return effects

    def _clear_doubts(self) -> list[Effect]:
        """Everybody has known for long who is not a member any more: who was silent cannot answer for a shard now."""
        doubted, self._doubted = self._doubted, set()
        moves = [
            msgspec.structs.replace(move, is_settled=True)
            for move in self.chart.moves()
            if (move.key, move.shard) in doubted
        ]
        return self._publish("nobody else speaks for these shards", moves) if moves else []

    # --- members ----------------------------------------------------------------------------------------------------

    def _on_join(self, peer: Incarnation, join: m.Join) -> list[Effect]:
        if join.role is Role.MANAGER:
            return [Hangup(peer, "there is one manager already")]
        if join.role is Role.DRIVER:
            self._drivers[peer] = join.namespace
            known = self._membership("the driver joined", self.chart.moves())
            return [Send(peer, known)] if self.is_complete else []
        if peer in self.nodes:
            self._empty_seats.discard(peer)
            self._heard[peer] = self._now
            node = self.nodes[peer]
            if node.is_late and not join.is_late:
                self.nodes[peer] = msgspec.structs.replace(node, is_late=False)
                return self._publish(f"{node.name} is late no more")
            return [Send(peer, self._membership("joined again"))] if self.is_complete else []
        if any(node.incarnation == peer for node in self.departed):  # declared dead: it must come as somebody new
            return [Send(peer, self._membership(f"incarnation {peer} was declared dead"))]
        node = self._seat(peer, join)
        reason = f"{node.name} joined"
        before = [one for one in self._empty_seats if self.nodes[one].name == node.name]
        for one in before:
            node = msgspec.structs.replace(node, is_late=False)  # it is waited for where its predecessor was
            self._empty_seats.discard(one)
            self.departed.append(self.nodes.pop(one))
            reason = f"{node.name} has been replaced"
        self.nodes[peer] = node
        self._heard[peer] = self._now
        if join.role is not SERVER:
            return self._publish(reason)
        rank = node.rank
        self.chart.join(peer, rank, is_late=self.generation.number > 0)
        return self._take(Steps(), reason)

    def _seat(self, peer: Incarnation, join: m.Join) -> Node:
        """The seat that a node wants, or the next free one; one that is kept for another counts as free."""
        seated = [node for who, node in self.nodes.items() if who not in self._empty_seats]
        taken = {node.rank for node in seated if node.role is join.role and node.namespace == join.namespace}
        rank = join.rank
        if rank < 0 or rank in taken:
            rank = next(free for free in range(len(taken) + 1) if free not in taken)
        return Node(
            name=f"{join.namespace}/{join.role}-{rank}" if join.namespace else f"{join.role}-{rank}",
            role=join.role,
            incarnation=peer,
            rank=rank,
            pid=join.pid,
            addresses=join.addresses,
            namespace=join.namespace,
            is_late=join.is_late and self.generation.number > 0,
        )

    @property
    def is_complete(self) -> bool:
        """Whether the first generation has been published, or may be now."""
        return self.generation.number > 0 or bool(self._written) or (
            len(self._of(SERVER)) >= self.config.num_servers
            and len(self._of(WORKER)) >= self.config.num_workers
        )

    def _on_tick(self) -> list[Effect]:
        """Who has been silent for a lease is out, whatever it does: it is not heard any more. Not so a server that
        makes room for a key, which may mean to compile, nor one that nobody can replace: it is waited for."""
        effects: list[Effect] = []
        self._forgive_own_pause()
        for peer in [peer for peer, until in self._dead_seats.items() if self._now >= until]:
            del self._dead_seats[peer]
            if peer in self._empty_seats:
                self._empty_seats.discard(peer)
                effects += self._on_gone(peer, "its process died", is_certain=True)
        if self._doubted and self._now - self._back_at > 2 * self.config.lease_seconds:
            effects += self._clear_doubts()
        busy = self.keys.makers
        for peer, heard in list(self._heard.items()):
            is_server = self.nodes[peer].role is SERVER
            lease = self.config.lease_seconds if is_server else self.config.worker_lease_seconds
            if self._now - heard > lease and peer not in busy and (not is_server or self.chart.can_lose(peer)):
                reason = f"it has not been heard of for {self._now - heard:.1f} s (lease {lease:g} s)"
                is_kept = self._is_kept_seat(peer)
                effects += self._keep_seat(peer, reason) if is_kept else self._on_gone(peer, reason, is_certain=False)
                effects.append(Hangup(peer, reason))
        return effects

    def _forgive_own_pause(self) -> None:
        """Nobody is to blame for a silence in which this manager did not listen: it was stopped, or starved."""
        pause = self._now - self._ticked_at
        if pause > min(self.config.lease_seconds, self.config.worker_lease_seconds) / 2:
            self._heard = {peer: min(self._now, heard + pause) for peer, heard in self._heard.items()}
        self._ticked_at = self._now

    def _is_kept_seat(self, peer: Incarnation, *, is_dead: bool = False) -> bool:
        is_kept = self.config.keeps_seats or (is_dead and self.config.dead_seat_seconds > 0)
        return is_kept and peer in self.nodes and self.nodes[peer].role is WORKER

    def _keep_seat(self, peer: Incarnation, reason: str) -> list[Effect]:
        """A worker is gone, and stays a member until another takes its seat, or for a moment: rounds wait."""
        self._heard.pop(peer, None)
        self._empty_seats.add(peer)
        if not self.config.keeps_seats:
            self._dead_seats[peer] = self._now + self.config.dead_seat_seconds
            return []
        return [Log("warning", f"{self._name(peer)} is gone: {reason}; its seat is kept until another takes it")]

    def _on_gone(self, peer: Incarnation, reason: str, *, is_certain: bool) -> list[Effect]:
        self._drivers.pop(peer, None)
        self._heard.pop(peer, None)
        self._cuts.lose(peer)
        node = self.nodes.pop(peer, None)
        if node is None:
            return []
        self.departed.append(node)
        if not is_certain:
            self._back_at = self._now  # another one who may still speak for a while
        text = f"{node.name} (pid {node.pid}) is gone: {reason}"
        dead = (peer,) if is_certain else ()
        if node.role is SERVER:
            farewell = self._answer_drain(peer)
            effects = [*self._take(Steps(self.chart.lose(peer)), text, dead), *farewell]
        else:
            effects = self._publish(text, dead=dead)
        return effects + self._and_replan(self.keys.lose(peer))

    def _answer_beat(self, peer: Incarnation, beat: m.Beat) -> Send:
        makers = tuple(sorted(self.keys.makers))
        return Send(peer, m.Beat(sent=beat.sent, is_answer=True, echo=self._now, makers=makers))

    def _look_at_cuts(self, peer: Incarnation, beat: m.Beat) -> list[Effect]:
        """A server has said whom it cannot reach, though we reach both: chains keep off that link."""
        if peer not in self.chart.servers:
            return []
        is_news = self._cuts.hear(peer, beat, self._now)
        certain = self._cuts.certain if is_news or self.chart.has_changed else set()
        before, self.chart.doubted = self.chart.doubted, self._cuts.doubted
        if not is_news and not certain and not before:
            return []  # the usual case
        healed = sorted(link for link in before - self.chart.doubted if {*link} <= {*self.chart.servers})
        told: list[Effect] = [Log("info", describe_again(link, self._name)) for link in healed]
        parting = self.chart.part(certain) if certain else None
        if parting is None or not parting.moves:
            return told + (self._replan() if is_news else [])
        self._cuts.scar(parting.costly)
        told.append(Log("warning", describe_parting(parting, self._name)))
        return told + self._take(Steps(parting.moves), "chains keep off a link that is cut")

    def _take(self, steps: Steps, reason: str, dead: tuple[Incarnation, ...] = ()) -> list[Effect]:
        """Publish these steps, and begin the next ones."""
        if not self.is_complete:
            return self._publish(reason)
        return self._begin(steps, self.chart.plan(), reason, dead)

    def _replan(self) -> list[Effect]:
        """Something has become possible: begin it, if there is anything to begin."""
        more = self.chart.plan()
        return self._begin(Steps(), more, "shards move") if more.moves or more.settles else []

    def _begin(self, steps: Steps, more: Steps, reason: str, dead: tuple[Incarnation, ...] = ()) -> list[Effect]:
        effects = self._publish(reason, latest([*steps.moves, *more.moves]), dead)
        for head, key, shard in (*steps.settles, *more.settles):
            term, number = self.generation
            effects.append(Send(head, m.Settle(key=key, shard=shard, term=term, number=number)))
        for server in [server for server in self._draining if not self.chart.holds(server)]:
            effects += self._let_go(server)
        return effects

    def _place_learners(self, moves: Sequence[m.Move]) -> list[Effect]:
        """Tell learners of keys of which they may hold nothing yet."""
        effects: list[Effect] = []
        for move in moves:
            if move.learner:
                key = self.chart.keys[move.key]
                effects.append(Send(move.learner, m.Place(key=key.id, spec=key.spec, chains=tuple(key.chains))))
        return effects

    # --- servers that leave -----------------------------------------------------------------------------------------

    def _on_drain(self, peer: Incarnation, drain: m.Drain) -> list[Effect]:
        node = self.nodes.get(drain.server)
        if node is None or node.role is not SERVER:
            reason = f"there is no server {drain.server} to be removed"
            return [Send(peer, m.Refused(request=drain.request, is_usage=True, reason=reason))]
        if not set(self.chart.servers) - self.chart.leaving - {drain.server}:
            reason = f"{node.name} is the last server: nobody is left to take its shards"
            return [Send(peer, m.Refused(request=drain.request, is_usage=True, reason=reason))]
        self._draining.setdefault(drain.server, []).append((peer, drain.request))
        self.chart.leaving.add(drain.server)
        return self._take(Steps(), f"{node.name} is leaving")

    def _let_go(self, server: Incarnation) -> list[Effect]:
        """The server holds nothing any more."""
        node = self.nodes[server]
        self._heard.pop(server, None)
        self._cuts.lose(server)
        self.chart.lose(server)
        farewell = self._publish(f"{node.name} has left", without=server)
        return [*farewell, *self._answer_drain(server)]

    def _answer_drain(self, server: Incarnation) -> list[Effect]:
        asked = self._draining.pop(server, [])
        return [Send(who, m.Done(request=request)) for who, request in asked if request]

    def _publish(
        self,
        reason: str,
        moves: Sequence[m.Move] = (),
        dead: tuple[Incarnation, ...] = (),
        without: Incarnation | None = None,
    ) -> list[Effect]:
        """A new generation, told to all who are in it, and to whoever leaves with it."""
        if not self.is_complete:
            return [Log("info", f"{reason}; waiting for the rest")]
        audience = (*self.nodes, *self._drivers)
        if without is not None:
            self.departed.append(self.nodes.pop(without))
        is_first = self.generation.number == 0
        self.generation = self.keys.generation = Generation(self.generation.term, self.generation.number + 1)
        self.chart.generation = Generation(self.generation.term, self.generation.number + 1)
        membership = self._membership(reason, moves, dead)
        effects: list[Effect] = [self._write_down(membership), Log("info", f"generation {self.generation}: {reason}")]
        effects += self._place_learners(moves)
        effects += [Send(peer, membership) for peer in audience]
        if is_first:
            early, self._early = self._early, []
            for peer, declare in early:
                effects += self._on_declare(peer, declare)
        return effects

    def _write_down(self, membership: m.Membership) -> Persist:
        before, self._written = self._written, set(self.nodes)
        return Persist(
            Published(
                number=membership.number,
                joined=tuple(node for node in membership.nodes if node.incarnation not in before),
                left=tuple(sorted(before - self._written)),
                dead=membership.dead,
                moves=membership.moves,
            )
        )

    def _membership(
        self, reason: str, moves: Sequence[m.Move] = (), dead: tuple[Incarnation, ...] = ()
    ) -> m.Membership:
        nodes = sorted(self.nodes.values(), key=lambda node: (node.role, node.rank))
        term, number = self.generation
        return m.Membership(
            term=term, number=number, nodes=tuple(nodes), reason=reason, moves=tuple(moves), dead=dead,
            checkpoint=self.checkpoint,
        )  # fmt: skip

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
        return self._and_replan(self.keys.declare(peer, declare))

    def _and_replan(self, effects: list[Effect]) -> list[Effect]:
        """These, and if they bring a key into use, what becomes possible by it."""
        return effects + (self._replan() if self.keys.take_new() else [])

    # --- looking ----------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What `status` shows of the manager: plain data."""
        names = {node.incarnation: node.name for node in (*self.departed, *self.nodes.values())}
        return {
            "generation": str(self.generation),
            "checkpoint": self.checkpoint,
            "cuts": [sorted(map(self._name, link)) for link in sorted(self._cuts.certain)],
            "nodes": describe_nodes((self._self, *self.nodes.values()), self._empty_seats, self.departed),
            "keys": self.keys.describe(names),
        }
