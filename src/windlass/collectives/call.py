"""One collective call: what every member must say alike, and what is this member's own."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from windlass.collectives import schedule as schedules
from windlass.collectives.schedule import Schedule
from windlass.collectives.strategies import Machines, Strategy, plan
from windlass.collectives.tensors import Kind, kind
from windlass.errors import UsageError
from windlass.store.reduce import BUILT_IN, Reducer


class DifferentCalls(UsageError):
    """Members have made different calls. Every member raises it in the same call, so the group stays in step."""


def notice(text: str, nbytes: int) -> bytes:
    """A call in words, in exactly so many bytes; what is too long ends in a sum of all of it."""
    said = text.encode()
    if len(said) > nbytes:
        said = said[: nbytes - 9] + f" {zlib.crc32(said):08x}".encode()
    return said.ljust(nbytes, b"\0")


def check_alike(notices: Sequence[bytes], rank: int) -> None:
    """Raise DifferentCalls, naming the first member whose notice is not this one's."""
    texts = [each.rstrip(b"\0").decode(errors="replace") for each in notices]
    for other, text in enumerate(texts):
        if text != texts[rank]:
            raise DifferentCalls(
                f"rank {other} called {text}, while this one, rank {rank}, called {texts[rank]}; "
                "all members must make the same calls in the same order"
            )


class Verb(StrEnum):
    ALLREDUCE = "allreduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    BARRIER = "barrier"
    BUFFER = "buffer"


@dataclass(frozen=True, eq=False, slots=True)
class Terms:
    """What every member must agree on. The same object for the same terms, mostly: a key for what can be prepared."""

    verb: Verb
    kind: Kind
    reducer: Reducer
    strategy: Strategy
    root: int
    text: str = field(init=False)
    reduces: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reduces", self.verb in (Verb.ALLREDUCE, Verb.REDUCE_SCATTER))
        object.__setattr__(self, "text", self._in_words())

    def _in_words(self) -> str:
        """Members whose words differ have not made the same call."""
        if self.verb is Verb.BARRIER:
            return "barrier"
        said = f"{self.verb} of {self.kind}"
        if self.reduces:
            said += f", reduce='{self.reducer.name}'"
        if self.verb is Verb.BROADCAST:
            said += f", root={self.root}"
        return said if self.strategy is Strategy.AUTO else f"{said}, strategy='{self.strategy}'"

    def schedule(self, members: int, machines: Machines | None, default: Strategy) -> Schedule:
        """What carries it out, by its own strategy, or by this one if it has none. `machines` are tuples."""
        strategy = default if self.strategy is Strategy.AUTO else self.strategy
        return _schedule(self.verb, strategy, members, self.kind.size, self.root, machines)


class Call:
    """One call of one member: the terms, its tensor (None where there is none), and until when it may wait."""

    __slots__ = ("deadline", "tensor", "terms", "timeout")

    def __init__(self, terms: Terms, tensor: Any, timeout: float) -> None:
        self.terms, self.tensor, self.timeout = terms, tensor, timeout
        self.deadline = time.monotonic() + timeout


@lru_cache(1024)
def terms(
    verb: Verb,
    kind: Kind,
    reducer: Reducer = BUILT_IN["sum"],
    strategy: Strategy = Strategy.AUTO,
    root: int = 0,
) -> Terms:
    return Terms(verb, kind, reducer, strategy, root)


BARRIER = terms(Verb.BARRIER, kind("float32", ()))


@lru_cache(256)
def _schedule(
    verb: Verb, strategy: Strategy, members: int, size: int, root: int, machines: Machines | None
) -> Schedule:
    whole = plan(strategy, members, size, machines)
    if verb is Verb.REDUCE_SCATTER:
        return schedules.reduce_scatter(whole)
    if verb is Verb.ALL_GATHER:
        return schedules.all_gather(whole)
    return schedules.broadcast(whole, root) if verb is Verb.BROADCAST else whole
