"""A virtual network: every message waits in the queue of its link until the explorer lets it arrive.

A link is two queues, one each way, FIFO like a connection. *Breaking* a link loses a suffix of what is under way each
way and tells both ends, in order with what was not lost; a dial opens it again. What a node sends after its link went
down, and until it was told so, is dropped without a word. A new link carries what the dialler sends once it was told
that it is up; the other end may answer at once.

Memory is either shared (a message carries the sender's own arrays, as shared memory does) or copied (as TCP does).
Both ways, memory that nobody may read any more is poisoned, so that reading it shows up as absurd counts.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from windlass._wire.effects import Event, LinkDown, LinkUp, Received, Send, Sent
from windlass.types import MANAGER, Block, Bytes, Incarnation

POISON = 0x5A


class PoisonedHeap:
    """Private memory whose freed blocks are overwritten, and never given out again: a stale reader is found out."""

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}

    def allocate(self, nbytes: int) -> Block:
        block = Block(np.empty(nbytes, np.uint8))
        self.live[id(block)] = block
        return block

    def free(self, block: Block) -> None:
        if self.live.pop(id(block), None) is None:
            raise AssertionError("a block was freed twice, or by somebody who does not own it")
        block.array.fill(POISON)


@dataclass(slots=True)
class _Dialled(LinkUp):
    """As the dialler is told of it."""


class Box:
    """What is on its way to one node from one source; the explorer picks among the boxes that are not empty."""

    __slots__ = ("events", "index", "node", "priority", "source")

    def __init__(self, node: Incarnation, source: str, priority: float) -> None:
        self.node = node
        self.source = source
        self.priority = priority
        self.events: deque[Event] = deque()
        self.index = -1  # where it stands among the busy ones; -1 when it is empty


@dataclass(slots=True)
class Shots:
    """What the rig has done to a run; a test that asserts nothing about these proves little."""

    delivered: int = 0
    lost: int = 0
    breaks: int = 0
    departures: int = 0
    zombies: int = 0
    joins: int = 0
    resends: int = 0
    crashes: int = 0
    deposed: int = 0
    additions: int = 0
    drains: int = 0
    restarts: int = 0
    snapshots: int = 0
    melted: int = 0  # snapshots that had to begin anew

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
    links: dict[tuple[Incarnation, Incarnation], Box] = field(default_factory=dict)  # (from, to)
    open: set[tuple[Incarnation, Incarnation]] = field(default_factory=set)  # both directions are in it
    untold: Counter[tuple[Incarnation, Incarnation]] = field(default_factory=Counter)  # what a node must hear first
    dead: set[Incarnation] = field(default_factory=set)
    parted: set[Incarnation] = field(default_factory=set)  # who cannot reach the manager now

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
        event = box.events.popleft()
        if not box.events:
            self._idle(box)
        if isinstance(event, LinkDown | _Dialled):
            self.untold[box.node, event.peer] -= 1
        return event

    def _idle(self, box: Box) -> None:
        last = self.busy.pop()
        if last is not box:
            self.busy[box.index] = last
            last.index = box.index
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
        self.open |= {(dialler, peer), (peer, dialler)}
        self._report(peer, dialler, _Dialled(peer))
        self.put(self._link(dialler, peer), LinkUp(dialler))

    def _report(self, peer: Incarnation, node: Incarnation, event: LinkDown | LinkUp) -> None:
        """Tell a node of a change that it must know of before it may send again."""
        self.untold[node, peer] += 1
        self.put(self._link(peer, node), event)

    def disconnect(self, one: Incarnation, other: Incarnation, reason: str, *, is_death: bool = False) -> None:
        """Break an open link: a suffix of what is under way is lost, both ways."""
        if (one, other) not in self.open:
            return
        self.open -= {(one, other), (other, one)}
        for sender, receiver in ((one, other), (other, one)):
            box = self._link(sender, receiver)
            under_way = 0
            for event in reversed(box.events):
                if not isinstance(event, Received):
                    break
                under_way += 1
            lost = self.rng.randint(0, under_way)
            if self.is_shared:
                lost = under_way  # the reader's end is closed: what it has not taken by reference it never will
            for _ in range(lost):
                box.events.pop()
            self.shots.lost += lost
            self._report(sender, receiver, LinkDown(sender, reason, is_death))

    def kill(self, node: Incarnation) -> None:
        """The node's process is gone: its links break, and nothing reaches it any more."""
        for one, other in sorted(self.open):
            if one == node:
                self.disconnect(one, other, "its process died", is_death=True)
        self.dead.add(node)
        for box in self.boxes.values():
            if box.node == node and box.events:
                box.events.clear()
                if box.index >= 0:
                    self._idle(box)

    def revive(self, node: Incarnation) -> None:
        """A new process has the node's number and address. It knows of no link."""
        self.dead.discard(node)
        for who in [who for who in self.untold if who[0] == node]:
            del self.untold[who]

    def send(self, sender: Incarnation, send: Send) -> bool:
        """Queue a message; False when no link is open and it is dropped."""
        if (sender, send.peer) not in self.open or self.untold[sender, send.peer]:
            return False
        if self.is_shared:
            data: Sequence[Bytes] = [block.array for block in send.data]
        else:
            data = [block.array.copy() for block in send.data]
            for pin in send.pins:
                self.put(self.box(sender, "sent"), Sent(pin))
        self.put(self._link(sender, send.peer), Received(sender, send.message, tuple(data), self.is_shared))
        return True

    def recycle(self, data: tuple[Bytes, ...]) -> None:
        if not self.is_shared:
            for part in data:
                part.fill(POISON)
