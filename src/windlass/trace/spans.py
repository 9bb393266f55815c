"""What a node notes down while it is traced: spans, each with a beginning and an end, and what links them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Category(StrEnum):
    """What a span tells of. The first two are the user's, by `store.trace`; the rest is the store's own."""

    COMPUTE = "compute"
    STEP = "step"
    PUSH = "push"
    PULL = "pull"
    PUSHPULL = "pushpull"
    BARRIER = "barrier"
    COPY = "copy"
    WAIT = "wait"
    STAGE = "stage"
    UPDATE = "reduce+update"
    ANSWER = "answer"


IN_FLIGHT = frozenset({Category.PUSH, Category.PULL, Category.PUSHPULL, Category.BARRIER})
"""What goes on beside the thread that asked for it; these spans overlap."""

OWN = frozenset(Category) - {Category.COMPUTE, Category.STEP}
"""Categories that a user's span cannot have."""


class Span(msgspec.Struct, array_like=True, gc=False):
    """One thing that a node did, from `began_ns` to `ended_ns` of the monotonic clock that all processes of a machine
    share. `link` is how it is found from other spans, by category:

        push, pull, pushpull, barrier   key, clock, delay (0 sequential, -1 eventual), task
        wait                            task
        stage                           incarnation, key, clock, part
        answer                          incarnation, key, clock of each answer, one after the other
    """

    category: str
    name: str
    thread: int
    began_ns: int
    ended_ns: int
    args: dict[str, Any] = {}
    link: tuple[int, ...] = ()


class Header(msgspec.Struct, array_like=True):
    """The first thing in a node's record: who wrote it, and since when."""

    incarnation: int
    pid: int
    opened_ns: int


class Batch(msgspec.Struct, array_like=True):
    """What follows, again and again: some spans, and how many were dropped since the batch before."""

    dropped: int
    spans: list[Span]
