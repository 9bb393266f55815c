"""A message in words, for a story: what a reader of the protocol wants to see of it, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windlass._wire import messages as m
from windlass.types import Incarnation

Name = Callable[[Incarnation], str]
UNTOLD = (m.Beat, m.Hold, m.Release, m.Join)
"""What would drown the rest."""


def tell(message: m.AnyMessage, name: Name) -> str:
    """One line; empty for what is not told."""
    if isinstance(message, UNTOLD):
        return ""
    kind = type(message).__name__
    where = f" w/{shard}" if (shard := getattr(message, "shard", -1)) >= 0 else ""
    return f"{kind}{where} {_what(message, name)}".rstrip()


def _what(message: m.AnyMessage, name: Name) -> str:
    def names(members: Iterable[Incarnation], between: str = " ") -> str:
        return between.join(map(name, members)) or "nobody"

    match message:
        case m.Membership(moves=moves):
            told = [
                f"w/{move.shard} on {names(move.chain, ' > ')}"
                + (f", {name(move.learner)} learns" if move.learner else "")
                + (", settled" if move.is_settled else "")
                for move in moves
            ]
            return f"{message.term}.{message.number} {'; '.join(told)}"
        case m.Push(completes=completes):
            return f"clock {message.clock}" + (f", completes batch {completes.numbers[0]}" if completes else "")
        case m.Take(done=done):
            return f"batch {done[0]} is done" if done else ""
        case m.Granted(batches=batches, is_over=is_over):
            return "all is done" if is_over else f"batch {batches[0]}" if batches else "nothing to do"
        case m.Tallied(shard=shard, floor=floor, above=above):
            counted = ", ".join(map(str, (*range(floor), *above)))
            return f"counted batch {counted}" if counted else "counted none" if shard >= 0 else "that was all"
        case m.Attach(request=request):
            return f"request {request}" + (", only asks" if message.clock == -2 else "")
        case m.Detach(request=request) | m.Done(request=request):
            return f"request {request}"
        case m.Ack():
            return f"clock {message.clock}{message.error and ': ' + message.error}"
        case m.Pull() | m.Pulled():
            return f"after push {message.clock}"
        case m.Staged(drafted=drafted):
            return f"round {message.round} of {names(drafted)}"
        case m.Propose() | m.Close():
            return f"round {message.round} of {names(message.members)}"
        case m.Replicate(entry=entry):
            told_entry = f": {_entry(entry, name)}" if entry is not None else f", part {message.part}"
            return f"entry {message.index}{told_entry}"
        case m.Replicated():
            return f"up to entry {message.index}{', send what follows' if message.resumes else ''}"
        case m.Show() | m.ShowSlot():
            slot = f"slot {message.slot} " if isinstance(message, m.ShowSlot) else ""
            return f"{slot}after entry {message.index}"
        case m.Shown():
            return "has it" if message.is_answer else "that was all"
        case m.Recruited():
            return f"{name(message.learner)} has everything"
        case m.Settled():
            return f"in generation {message.term}.{message.number}"
        case m.Freeze(round=round):
            return "how far are you?" if round is None else f"after round {round}"
        case m.Frozen(frost=frost, count=count):
            return f"{frost.value}, round {count}"
        case m.Dump(slot=slot):
            return f"slot {slot}"
        case m.Dumped(names=names_):
            return "" if names_ else "kept no more"
        case m.Drain():
            return name(message.server)
        case m.PassOn(peer=peer, message=told_message):
            return f"({name(peer)}): {tell(told_message, name)}"
        case _:
            return ""


def _entry(entry: m.LogEntry, name: Name) -> str:
    if entry.kind in (m.Kind.ROUND, m.Kind.DRAFT):
        draft = "draft of " if entry.kind is m.Kind.DRAFT else ""
        return f"{draft}round {entry.clock} of {' '.join(map(name, entry.members))}"
    return f"{entry.kind.value} {name(entry.who) if entry.who else ''}".rstrip()
