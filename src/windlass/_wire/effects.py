"""What happens to a node (events) and what it decides to do (effects).

A state machine's only door is `handle(event, now) -> list[Effect]`. A service, or the simulator, feeds it events and
carries out its effects in order. Nothing here touches a socket, a thread or a clock. From what most of them hold
nothing leads back to them, so the garbage collector need not look at them (`gc=False`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._wire.messages import AnyMessage
from windlass.types import Block, Bytes, Incarnation

# --- events ---------------------------------------------------------------------------------------------------------


class Received(msgspec.Struct, gc=False):
    """A message came. `data` holds one buffer per piece. Where `is_shared` the buffers are the sender's own memory:
    they must not be written, and the sender is told (Ack, Release) when they have been read."""

    peer: Incarnation
    message: AnyMessage
    data: tuple[Bytes, ...] = ()
    is_shared: bool = False


class LinkUp(msgspec.Struct, gc=False):
    """A link to this peer is open and both sides have proved the token."""

    peer: Incarnation


class LinkDown(msgspec.Struct, gc=False):
    """The link to this peer is gone, or could not be made; what was in flight on it may be lost. `is_death`: and the
    peer's process is known to be gone, or to have closed the link itself for good. `is_goodbye`: it said that it
    leaves."""

    peer: Incarnation
    reason: str
    is_death: bool = False
    is_goodbye: bool = False


class Sent(msgspec.Struct, gc=False):
    """The bytes that this pin kept have been copied off; reported only where a link does not carry references."""

    pin: int


class Tick(msgspec.Struct, gc=False):
    """Time has passed."""


class Later(msgspec.Struct):
    """As an effect: hand `work` back to the state machine soon, after other events had their turn. As an event: do
    it now. This is how one `handle` stays within one chunk of data."""

    work: Any


class Leave(msgspec.Struct, gc=False):
    """This node is asked to go, and has some time for it."""


Event = Received | LinkUp | LinkDown | Sent | Tick | Leave | Later

# --- effects --------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, gc=False):
    """Send a message; dropped without a word when no link to the peer is open (resending is the state machines').
    The blocks must stay unchanged until `pins` are reported Sent or released by the peer. On a link that has more to
    send than it can take a higher `priority` goes first; messages of one priority stay in order."""

    peer: Incarnation
    message: AnyMessage
    data: tuple[Block, ...] = ()
    pins: tuple[int, ...] = ()
    priority: int = 0


class Dial(msgspec.Struct, gc=False):
    """Open a link to this peer at one of these addresses; LinkUp or LinkDown will tell."""

    peer: Incarnation
    addresses: tuple[str, ...]


class Hangup(msgspec.Struct, gc=False):
    """Close the link to this peer, saying why."""

    peer: Incarnation
    reason: str


class Recycle(msgspec.Struct, gc=False):
    """The state machine no longer needs these received buffers."""

    data: tuple[Bytes, ...]


class Persist(msgspec.Struct, gc=False):
    """Have this record on disk before anything that comes later in the list is done. Skipped where nobody keeps any."""

    record: Any


class Log(msgspec.Struct, gc=False):
    """Something that a person should be able to read later."""

    level: str
    text: str


class Stop(msgspec.Struct, gc=False):
    """This node's work is over (the manager is gone, or it was told to leave)."""

    reason: str


Effect = Send | Dial | Hangup | Recycle | Later | Persist | Log | Stop
