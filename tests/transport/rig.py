"""Two or more hubs in one process, polled in turn until something holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from windlass._transport.base import HubEvent
from windlass._transport.hub import SocketHub
from windlass._transport.options import TransportOptions
from windlass._wire.effects import LinkUp, Received, Send
from windlass._wire.messages import Ack, AnyMessage
from windlass.types import Block, Incarnation, KeyId

TOKEN = b"the token of this cluster"
FORMS = {"unix": "unix", "tcp": "tcp:127.0.0.1:0"}

E = TypeVar("E")


@dataclass(eq=False)
class Node:
    """A hub and everything that it has reported."""

    hub: SocketHub
    events: list[HubEvent] = field(default_factory=list)

    @property
    def me(self) -> Incarnation:
        return self.hub.me

    def poll(self, timeout: float | None = 0) -> list[HubEvent]:
        events = self.hub.poll(timeout)
        self.events += events
        return events

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def messages(self) -> list[AnyMessage]:
        return [event.message for event in self.of(Received)]

    def send(self, peer: Node, message: AnyMessage, *data: Block, pins: tuple[int, ...] = ()) -> None:
        self.hub.send(Send(peer.me, message, data, pins))


def node(me: int, *listen: str, token: bytes = TOKEN, options: TransportOptions | None = None) -> Node:
    return Node(SocketHub(Incarnation(me), token, options=options or TransportOptions(listen=tuple(listen))))


def expect_soon(nodes: Sequence[Node], holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Poll the nodes in turn until it holds; fail, showing their events, if it does not in time."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"waited {seconds} s: {[one.events[-5:] for one in nodes]}"
        came = [one.poll(0) for one in nodes]  # every node has its turn
        if not any(came):
            nodes[0].poll(0.001)


@contextmanager
def linked(form: str, *, a: TransportOptions | None = None, b: TransportOptions | None = None) -> Iterator[list[Node]]:
    """Nodes 1 and 2 with an open link: 1 listens, 2 has dialled. `a` and `b` are their options."""
    one = node(1, form, options=a)
    two = node(2, options=b)
    try:
        two.hub.dial(one.me, one.hub.addresses)
        expect_soon([one, two], lambda: bool(one.of(LinkUp) and two.of(LinkUp)))
        yield [one, two]
    finally:
        two.hub.close()
        one.hub.close()


def ack(clock: int) -> Ack:
    return Ack(key=KeyId(1), shard=0, clock=clock)


def private(*values: int, nbytes: int = 64) -> list[Block]:
    return [Block(np.full(nbytes, value, np.uint8)) for value in values]


def open_files() -> set[str]:
    """What /proc says is open, by target: a leak shows what leaked."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            pass  # the descriptor of listdir itself
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
