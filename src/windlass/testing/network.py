"""A virtual network: every message waits in the queue of its link until the explorer lets it arrive.

A link is two queues, one each way, FIFO like a connection. What comes over different links comes in any order, and one
link may be slow for a while. *Breaking* a link loses a suffix of what is under way each way and tells both ends, in
order with what was not lost; a dial opens it again. What a node sends after its link went down, and until it was told
so, is dropped without a word. A new link carries what the dialler sends once it was told that it is up; the other end
may answer at once.

*Dropping* a frame breaks a link at that frame, in one direction: nothing more gets through from its sender, who goes on
sending, until the receiver has noticed and hung up, and the sender hears of that. *Copying* a frame lets it arrive
twice, which no link does: it shows what the state machines would bear. A *wall* keeps some nodes from dialling others:
a dial over it fails, or hangs until the wall is gone.

Memory is either shared (a message carries the sender's own arrays, as shared memory does) or copied (as TCP does).
Both ways, memory that nobody may read any more is poisoned, so that reading it shows up as absurd counts.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from windlass._wire.effects import Event, LinkDown, LinkUp, Received, Send, Sent
from windlass.types import MANAGER, Block, Bytes, Incarnation

POISON = 0x5A
_BYTES = np.dtype(np.uint8)
Pair = tuple[Incarnation, Incarnation]


class PoisonedHeap:
    """Private memory whose freed blocks are overwritten, and never given out again: a stale reader is found out."""

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}

    def allocate(self, nbytes: int) -> Block:
        block = Block(np.empty(nbytes, _BYTES))
        self.live[id(block)] = block
        return block

    def free(self, block: Block) -> None:
        if self.live.pop(id(block), None) is None:
            raise AssertionError("a block was freed twice, or by somebody who does not own it")
        block.array.fill(POISON)


class _Dialled(LinkUp):
    """As the dialler is told of it."""


class _Cut(LinkDown):
    """As the receiver of a frame that never came notices: the link is down from then on, not before."""


class Box:
    """What is on its way to one node from one source; the explorer picks among the boxes that are not empty."""

    __slots__ = ("events", "index", "node", "priority", "slow_until", "source")

    def __init__(self, node: Incarnation, source: str, priority: float) -> None:
        self.node = node
        self.source = source
        self.priority = priority
        self.events: deque[Event] = deque()
        self.index = -1  # where it stands among the busy ones; -1 when it is empty
        self.slow_until = 0  # the step until which it is passed over, mostly


@dataclass(slots=True)
class Shots:
    """What the rig has done to a run; a test that asserts nothing about these proves little."""

    delivered: int = 0  # events handed to a node
    messages: int = 0  # those of them that came over a link
    lost: int = 0
    breaks: int = 0
    drops: int = 0
    slows: int = 0
    partitions: int = 0
    cuts: int = 0
    beheaded: int = 0  # servers that died while a link of theirs was cut
    rechains: int = 0  # generations that let chains keep off a cut
    detours: int = 0  # words of rounds that went around one
    departures: int = 0
    zombies: int = 0
    joins: int = 0
    resends: int = 0
    crashes: int = 0
    orphans: int = 0  # servers that died before they held what nobody else did
    deposed: int = 0
    additions: int = 0
    drains: int = 0
    restarts: int = 0
    snapshots: int = 0
    melted: int = 0  # snapshots that had to begin anew
    need_ids: int = 0  # pushes and pulls that had to be sent again with their list of ids
    kept_back: int = 0  # pushes after which filters kept something back
    saved_residuals: int = 0  # what workers had kept back when they were saved, worker by worker
    moved_tables: int = 0  # shards of tables that got another head, because servers came or left
    failed_tables: int = 0  # shards of tables whose head was lost, and a replica took its place
    taught_tables: int = 0  # slots of tables that a server was shown, to hold them
    flown: Counter[str] = field(default_factory=Counter)
    """How often each kind of message came, in runs that aim."""
    copied: Counter[str] = field(default_factory=Counter)
    """How often each kind of message came twice."""
    aimed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """What was done at the receiver of a message: its kind, "before" or "after" it was handled, and what."""

    def add(self, other: Shots) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Network:
    """All boxes of a run. `is_shared` says how data travels."""

    rng: random.Random
    is_shared: bool
    shots: Shots = field(default_factory=Shots)
    busy: list[Box] = field(default_factory=list)
    boxes: dict[tuple[Incarnation, str], Box] = field(default_factory=dict)
    links: dict[Pair, Box] = field(default_factory=dict)  # (from, to)
    open: dict[Pair, Box] = field(default_factory=dict)  # both directions are in it
    half: set[Pair] = field(default_factory=set)  # (from, to) of open links on which nothing gets through that way
    untold: dict[Pair, int] = field(default_factory=dict)  # what a node must hear first
    dead: set[Incarnation] = field(default_factory=set)
    parted: set[Incarnation] = field(default_factory=set)  # who cannot reach the manager now
    walls: set[Pair] = field(default_factory=set)  # who cannot dial whom now
    hanging: list[Pair] = field(default_factory=list)  # dials over a wall that have not failed
    muted: set[int] = field(default_factory=set)  # boxes, by id, from which nothing comes before a wall is gone

    # --- boxes --------------------------------------------------------------------------------------------------------

    def box(self, node: Incarnation, source: str) -> Box:
        found = self.boxes.get((node, source))
        if found is None:
            found = self.boxes[node, source] = Box(node, source, self.rng.random())
        return found

    def put(self, box: Box, event: Event) -> None:
        box.events.append(event)
        if box.index < 0:
            box.index = len(self.busy)
            self.busy.append(box)

    def take(self, box: Box) -> Event:
        events = box.events
        event = events.popleft()
        if not events:
            self.idle(box)
        kind = type(event)
        if kind is LinkDown or kind is _Dialled:
            pair = (box.node, event.peer)  # type: ignore[union-attr]
            self.untold[pair] -= 1
            if not self.untold[pair]:
                del self.untold[pair]
        elif kind is _Cut:
            self._notice(event.peer, box.node)  # type: ignore[union-attr]
        return event

    def idle(self, box: Box) -> None:
        """The last of what was in this box is taken."""
        busy, index = self.busy, box.index
        last = busy.pop()
        if last is not box:
            busy[index] = last
            last.index = index
        box.index = -1

    def _link(self, sender: Incarnation, receiver: Incarnation) -> Box:
        found = self.links.get((sender, receiver))
        if found is None:
            found = self.links[sender, receiver] = self.box(receiver, f"from {sender}")
        return found

    # --- links --------------------------------------------------------------------------------------------------------

    def is_open(self, one: Incarnation, other: Incarnation) -> bool:
        return (one, other) in self.open

    def load(self, one: Incarnation, other: Incarnation) -> int:
        """How much is under way between these two."""
        return len(self._link(one, other).events) + len(self._link(other, one).events)

    def connect(self, dialler: Incarnation, peer: Incarnation) -> None:
        """Open a link, or tell the dialler that nobody is there. Harmless when it is open."""
        if (dialler, peer) in self.open or dialler in self.dead or (peer == MANAGER and dialler in self.parted):
            return
        if peer in self.dead:
            self._report(peer, dialler, LinkDown(peer, "nobody is there"))
            return
        if (dialler, peer) in self.walls:
            if self.rng.random() < 0.7:
                self.hanging.append((dialler, peer))
            else:
                self._report(peer, dialler, LinkDown(peer, "it cannot be reached"))
            return
        self.open[peer, dialler] = self._link(peer, dialler)
        self.open[dialler, peer] = there = self._link(dialler, peer)
        self._report(peer, dialler, _Dialled(peer))
        self.put(there, LinkUp(dialler))

    def _report(self, peer: Incarnation, node: Incarnation, event: LinkDown | LinkUp) -> None:
        """Tell a node of a change that it must know of before it may send again."""
        self.untold[node, peer] = self.untold.get((node, peer), 0) + 1
        self.put(self._link(peer, node), event)

    def disconnect(self, one: Incarnation, other: Incarnation, reason: str, *, is_death: bool = False) -> None:
        """Break an open link: a suffix of what is under way is lost, both ways."""
        if (one, other) not in self.open:
            return
        for sender, receiver in ((one, other), (other, one)):
            box = self.open.pop((sender, receiver))
            if (sender, receiver) in self.half:
                self.half.discard((sender, receiver))
                box.events.pop()  # its own end of the story: this one comes earlier
                if not box.events:
                    self.idle(box)
            self._lose(box)
            self._report(sender, receiver, LinkDown(sender, reason, is_death))

    def _count(self, box: Box) -> int:
        """How many messages are on their way on the link as it is now."""
        count = 0
        for event in reversed(box.events):
            if type(event) is not Received:
                break
            count += 1
        return count

    def _lose(self, box: Box, at_least: int = 0) -> None:
        under_way = self._count(box)
        lost = self.rng.randint(at_least, under_way)
        if self.is_shared and not at_least:
            lost = under_way  # the reader's end is closed: what it has not taken by reference it never will
        for _ in range(lost):
            box.events.pop()
        self.shots.lost += lost
        if not box.events and box.index >= 0:
            self.idle(box)

    # --- what goes wrong on a link ------------------------------------------------------------------------------------

    def drop(self, sender: Incarnation, receiver: Incarnation) -> bool:
        """Lose one frame that is under way, and with it all that comes after it on this link, in this direction. The
        receiver notices when it comes to it, the sender when it hears that the receiver has hung up."""
        box = self.open.get((sender, receiver))
        if box is None or (sender, receiver) in self.half or not self._count(box):
            return False
        self._lose(box, at_least=1)
        self.half.add((sender, receiver))
        self.put(box, _Cut(sender, "a frame was lost"))
        return True

    def lose(self, sender: Incarnation, receiver: Incarnation) -> None:
        """Whatever is under way that way is lost, and the link with it, in a moment: the caller sees to that."""
        box = self.open.get((sender, receiver))
        if box is not None:
            self._lose(box, at_least=self._count(box))

    def _notice(self, sender: Incarnation, receiver: Incarnation) -> None:
        """The receiver hangs up: what it has sent may still arrive."""
        self.half.discard((sender, receiver))
        del self.open[sender, receiver]
        back = self.open.pop((receiver, sender))
        if (receiver, sender) in self.half:
            self.half.discard((receiver, sender))
            back.events[-1] = LinkDown(receiver, "cut")
            self.untold[sender, receiver] = self.untold.get((sender, receiver), 0) + 1
            return
        self._lose(back)
        self._report(receiver, sender, LinkDown(receiver, "cut"))

    def copy(self, box: Box, first: int) -> None:
        """Let a message that is under way arrive twice, with others in between, perhaps."""
        one = box.events[first]
        assert type(one) is Received
        data = one.data if one.is_shared else tuple(part.copy() for part in one.data)
        last = first
        while last + 1 < len(box.events) and type(box.events[last + 1]) is Received:
            last += 1
        box.events.insert(self.rng.randint(first, last) + 1, Received(one.peer, one.message, data, one.is_shared))

    def under_way(self) -> dict[str, list[tuple[Box, int]]]:
        """Every message on an open link, by its kind: in which box, and where in it."""
        found: dict[str, list[tuple[Box, int]]] = {}
        for box in self.open.values():
            for index, event in enumerate(box.events):
                if type(event) is Received:
                    found.setdefault(type(event.message).__name__, []).append((box, index))
        return found

    def slow(self, boxes: Collection[Box], until: int) -> None:
        """What is in these boxes is passed over, mostly, until that step."""
        for box in boxes:
            box.slow_until = until

    def part(self, some: Collection[Incarnation], others: Collection[Incarnation]) -> set[Pair]:
        """Raise a wall between these and those: their links break, and cannot be opened. Gives its stones."""
        stones = {pair for one in some for other in others for pair in ((one, other), (other, one))}
        for one, other in sorted(stones):
            if one < other:
                self.disconnect(one, other, "cut")
        self.walls |= stones
        return stones

    def mute(self, one: Incarnation, other: Incarnation) -> set[Pair]:
        """The same between two, but nobody is told: links stay open, and what is sent comes when the wall is gone."""
        stones = {(one, other), (other, one)}
        self.muted |= {id(self._link(*pair)) for pair in stones}
        self.walls |= stones
        return stones

    def heal(self, stones: set[Pair]) -> None:
        """Take the wall down: dials that hang get through now."""
        self.walls -= stones
        self.muted -= {id(self._link(*pair)) for pair in stones}
        hanging, self.hanging = self.hanging, []
        for pair in hanging:
            if pair in self.walls:
                self.hanging.append(pair)
            else:
                self.connect(*pair)

    def kill(self, node: Incarnation) -> None:
        """The node's process is gone: its links break, and nothing reaches it any more."""
        for one, other in sorted(self.open):
            if one == node:
                self.disconnect(one, other, "its process died", is_death=True)
        self.dead.add(node)
        self.hanging = [pair for pair in self.hanging if pair[0] != node]
        for box in self.boxes.values():
            if box.node == node and box.events:
                box.events.clear()
                if box.index >= 0:
                    self.idle(box)

    def revive(self, node: Incarnation) -> None:
        """A new process has the node's number and address. It knows of no link."""
        self.dead.discard(node)
        for who in [who for who in self.untold if who[0] == node]:
            del self.untold[who]

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, sender: Incarnation, send: Send) -> bool:
        """Queue a message; False when no link is open and it is dropped."""
        pair = (sender, send.peer)
        box = self.open.get(pair)
        if box is None or (self.untold and pair in self.untold):
            return False
        data: tuple[Bytes, ...] = ()
        if send.data:
            if self.is_shared:
                data = tuple([block.array for block in send.data])
            else:
                data = tuple([block.array.copy() for block in send.data])
                for pin in send.pins:
                    self.put(self.box(sender, "sent"), Sent(pin))
        if self.half and pair in self.half:
            self.shots.lost += 1
            return True
        box.events.append(Received(sender, send.message, data, self.is_shared))
        if box.index < 0:
            box.index = len(self.busy)
            self.busy.append(box)
        return True

    def recycle(self, data: tuple[Bytes, ...]) -> None:
        if not self.is_shared:
            for part in data:
                part.fill(POISON)
