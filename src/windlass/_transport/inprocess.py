"""Links between nodes of one process: a message is handed over as the object it is, its data by reference.

A `Network` is the air that hubs share; two networks never meet. Under `engine="threads"` each node polls its hub in a
thread of its own. An embedded store has no threads: there, polling one hub lets every other node of the network take
its turn first (`on_idle`), until nobody has anything left to do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from windlass._transport.base import HubEvent
from windlass._wire.effects import LinkDown, LinkUp, Received, Send
from windlass.types import Block, Bytes, Heap, Incarnation

LINKS = (LinkUp, LinkDown)


class Network:
    """The hubs of one process, by incarnation. Thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hubs: dict[Incarnation, InProcessHub] = {}

    def hub(self, me: Incarnation, on_idle: Callable[[], bool] | None = None) -> InProcessHub:
        """Join the network. `on_idle` lets other nodes work; it says whether any of them did."""
        hub = InProcessHub(self, me, on_idle)
        with self.lock:
            self.hubs[me] = hub
        return hub


class InProcessHub:
    """One node's end. See `Hub` for the contract."""

    def __init__(self, network: Network, me: Incarnation, on_idle: Callable[[], bool] | None) -> None:
        self.me = me
        self.memory = Heap()
        self._network = network
        self._on_idle = on_idle
        self._inbox: deque[HubEvent] = deque()
        self._ready = threading.Event()
        self._linked: set[Incarnation] = set()
        self._told: set[Incarnation] = set()  # links whose LinkUp was handed over: only these can be sent on
        self._is_closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return (f"inprocess:{self.me}",)

    @property
    def copied_bytes(self) -> int:
        return -1

    @property
    def has_unsent(self) -> bool:
        return False

    def dial(self, peer: Incarnation, addresses: Sequence[str]) -> None:
        if peer in self._linked:
            return
        with self._network.lock:
            other = self._network.hubs.get(peer)
            if other is None or self._is_closed:
                self._deliver(LinkDown(peer, "no such node in this process"))
                return
            self._linked.add(peer)
            other._linked.add(self.me)
        self._deliver(LinkUp(peer))
        other._deliver(LinkUp(self.me))

    def send(self, send: Send) -> None:
        if send.peer in self._linked and send.peer in self._told:
            other = self._network.hubs.get(send.peer)
            if other is not None:
                data = tuple([block.array for block in send.data])
                other._deliver(Received(self.me, send.message, data, True))

    def flush(self) -> None:
        pass

    def poll(self, timeout: float | None) -> list[HubEvent]:
        if not self._inbox and self._on_idle is not None:
            while not self._inbox and self._on_idle():
                pass
            if not self._inbox and timeout:  # nobody can ever answer: the wait can only end by its deadline
                time.sleep(min(timeout, 0.01))
        elif not self._inbox:
            if timeout != 0:  # to wait for no time at all takes its time, too
                self._ready.wait(timeout)
            if self._ready.is_set():
                self._ready.clear()
        events: list[HubEvent] = []
        while self._inbox:
            event = self._inbox[0]
            if isinstance(event, LINKS):  # alone, so that nothing is sent on a link before it is known
                if events:
                    break
                (self._told.add if isinstance(event, LinkUp) else self._told.discard)(event.peer)
                return [self._inbox.popleft()]
            events.append(self._inbox.popleft())
        return events

    def own_unsent(self) -> None:
        pass  # a message is handed over whole

    def recycle(self, data: tuple[Bytes, ...]) -> None:
        pass  # the memory is the sender's

    def shares_memory_with(self, peer: Incarnation) -> bool:
        return True

    def dedicated(self, nbytes: int) -> Block:
        return self.memory.allocate(nbytes)

    def contiguous(self, arrays: Sequence[Bytes]) -> Bytes | None:
        return arrays[0] if len(arrays) == 1 else None

    def hangup(self, peer: Incarnation, reason: str) -> None:
        if peer not in self._linked:
            return
        other = self._network.hubs.get(peer)
        self._linked.discard(peer)
        self._told.discard(peer)
        self._deliver(LinkDown(peer, reason))
        if other is not None:
            other._linked.discard(self.me)
            other._told.discard(self.me)
            other._deliver(LinkDown(self.me, reason))

    def wake(self) -> None:
        self._ready.set()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with self._network.lock:
            self._network.hubs.pop(self.me, None)
        for peer in list(self._linked):
            self.hangup(peer, "closed")

    def _deliver(self, event: HubEvent) -> None:
        self._inbox.append(event)
        if self._on_idle is None:
            self._ready.set()
