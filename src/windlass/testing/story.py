"""A run in words: one event a line, compact enough to read a hundred of them."""

from __future__ import annotations

from typing import Any

from windlass._wire import messages as m
from windlass._wire.effects import Later, LinkDown, LinkUp, Received


def event_text(event: Any) -> str:
    """One event, compact, for a story."""
    if isinstance(event, Received):
        return _compact(event.message)
    if isinstance(event, LinkUp):
        return "link up"
    if isinstance(event, LinkDown):
        return f"link down ({event.reason})"
    if isinstance(event, Later):
        return f"later {event.work[-1]!r:.80}"
    return repr(event)


def _compact(message: Any) -> str:
    if isinstance(message, m.Membership):
        moves = " ".join(f"{move.key}/{move.shard}->{move.chain}" for move in message.moves)
        return f"Membership {message.term}.{message.number} [{' '.join(node.name for node in message.nodes)}] {moves}"
    if isinstance(message, m.Declare):
        return f"Declare {message.spec.name} {message.spec.consistency!r}"
    if isinstance(message, m.Declared | m.Place):
        return f"{type(message).__name__} {message.spec.name} key={message.key} chains={message.chains}"
    fields = [
        f"{name}={value}" for name in message.__struct_fields__
        if (value := getattr(message, name)) not in (None, "", ()) and name not in ("term", "version")
    ]  # fmt: skip
    return f"{type(message).__name__} {' '.join(fields)}"
