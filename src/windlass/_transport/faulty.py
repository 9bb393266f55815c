"""A hub whose links are as bad as the ledger says. `windlass chaos` writes there what is wrong; nodes of an undisturbed
cluster have the plain hub, and pay nothing for this one.

Faults act on frames, above the socket, and so on every transport alike (with shared memory the notices travel on the
socket, and what they speak of is as late as they are):

- *delay*: a frame is handed to its link so much later. Frames of one link stay in order.
- *drop*: a frame is lost, and with it the link: that is what loss looks like above TCP, once it gives up. Links to the
  manager are spared, which takes the end of one for the end of a node.
- *sides*: links between nodes of different sides are closed, and are not made, as long as they are apart.

A link is always closed with a goodbye. Without one, its other end would conclude that this process has died.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence

from windlass._ledger import Faults, Ledger
from windlass._transport.base import HubEvent
from windlass._transport.hub import SocketHub
from windlass._transport.link import MAX_COPIED_BYTES, Link
from windlass._transport.options import TransportOptions
from windlass._wire.effects import LinkDown, LinkUp, Send
from windlass.types import MANAGER, Block, Incarnation

LOOK_SECONDS = 0.05
"""How often a node that has nothing to do looks whether its links are to be cut."""
LOST = "chaos: a frame was lost, and the connection with it"
APART = "chaos: these two nodes are kept apart"


class FaultyHub(SocketHub):
    """`Hub`, with the faults of a ledger on its links."""

    def __init__(self, me: Incarnation, token: bytes, ledger: Ledger, *, options: TransportOptions) -> None:
        self.ledger = ledger
        self._row = ledger.row(me)
        self._rng = random.Random(int(me))
        self._seen = -1
        self._faults = Faults()
        self._side_of: dict[int, int] = {}
        self._late: deque[tuple[float, Send]] = deque()  # by when they are due
        super().__init__(me, token, options=options)

    # --- what is wrong now --------------------------------------------------------------------------------------------

    def _look(self) -> Faults:
        if self.ledger.sequence != self._seen and (read := self.ledger.read_faults()) is not None:
            self._seen, self._faults = read
            self._side_of = {who: side for side, nodes in enumerate(self._faults.sides) for who in nodes}
        if self._faults.until and time.monotonic() > self._faults.until:
            self._faults, self._side_of = Faults(), {}
        return self._faults

    def _is_apart(self, peer: Incarnation) -> bool:
        mine, other = self._side_of.get(self.me), self._side_of.get(peer)
        return mine is not None and other is not None and mine != other

    def _cut_apart(self) -> None:
        self._look()
        for peer in [peer for peer in self._links if self._is_apart(peer)] if self._side_of else ():
            self.hangup(peer, APART)

    # --- the hub ------------------------------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return bool(self._late) or super().has_unsent

    def dial(self, peer: Incarnation, addresses: Sequence[str]) -> None:
        self._look()
        if self._is_apart(peer):
            if self._row is not None:
                self._row.refuse()
            self._tell(LinkDown(peer, APART))
        else:
            super().dial(peer, addresses)

    def opened(self, link: Link) -> None:
        self._look()
        if not self._is_apart(link.peer):
            super().opened(link)
            return
        peer, is_dialled = link.peer, link.is_dialled
        self._say_goodbye(link, APART)
        self.forget(link)
        if is_dialled:
            self.unreachable(peer, APART)

    def send(self, send: Send) -> None:
        faults = self._look()
        peer = send.peer
        link = self._links.get(peer)
        if link is None or not link.is_known:
            return
        is_disturbed = peer in faults.nodes and self.me in faults.nodes
        if is_disturbed and faults.drop and MANAGER not in (peer, self.me) and self._rng.random() < faults.drop:
            if self._row is not None:
                self._row.lose_frame()
            self.hangup(peer, LOST)
            return
        seconds = faults.delay_seconds if is_disturbed else 0.0
        if not seconds and not self._late:
            super().send(send)
            return
        if seconds and self._row is not None:
            self._row.delay_frame()
        due = time.monotonic() + seconds
        self._late.append((max(due, self._late[-1][0]) if self._late else due, _kept(send)))

    def flush(self) -> None:
        self._release(time.monotonic())
        super().flush()

    def poll(self, timeout: float | None) -> list[HubEvent]:
        self._cut_apart()
        self._release(time.monotonic())
        wait = LOOK_SECONDS if timeout is None else min(timeout, LOOK_SECONDS)
        if self._late:
            wait = min(wait, max(0.0, self._late[0][0] - time.monotonic()))
        events = super().poll(wait)
        if self._late and not self._is_closed:
            self.flush()
        return events

    def own_unsent(self) -> None:
        self._late = deque((due, _owned(send)) for due, send in self._late)
        super().own_unsent()

    def close(self) -> None:
        if not self._is_closed:
            self._release(float("inf"))
        super().close()

    def _release(self, now: float) -> None:
        while self._late and self._late[0][0] <= now:
            super().send(self._late.popleft()[1])

    def _tell(self, event: LinkUp | LinkDown) -> None:
        """A link has come or gone: what is late was for the one before it, and is lost with it."""
        self._late = deque((due, send) for due, send in self._late if send.peer != event.peer)
        super()._tell(event)


def _kept(send: Send) -> Send:
    """As it can be kept: a hub copies little data at once, and its sender may write there when `send` has returned."""
    if sum(block.array.nbytes for block in send.data) > MAX_COPIED_BYTES:
        return send
    return Send(
        send.peer, send.message, tuple(Block(block.array.copy()) for block in send.data), send.pins, send.priority
    )


def _owned(send: Send) -> Send:
    data = tuple(Block(block.array.copy()) if block.segment < 0 else block for block in send.data)
    return Send(send.peer, send.message, data, send.pins, send.priority)
