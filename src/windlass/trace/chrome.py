"""Spans as the trace events that Perfetto (ui.perfetto.dev) and chrome://tracing show.

A node is a process, a lane one of its threads. The spans of a user's thread nest, as calls do, so they share a lane.
Pushes and pulls overlap, so each takes the first lane that is free when it begins: as many lanes as were ever under
way at once.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Any

from windlass.trace.spans import IN_FLIGHT, Category, Span

Json = dict[str, Any]

LANES = 1_000_000
"""Room for so many lanes of a kind: there are no more than a record has spans."""


def process(number: int, name: str, label: str) -> Iterator[Json]:
    """The events that name a process and keep it in its place."""
    yield _meta(number, 0, "process_name", name=name)
    yield _meta(number, 0, "process_labels", labels=label)
    yield _meta(number, 0, "process_sort_index", sort_index=number)


def events(number: int, spans: list[Span], origin_ns: int, is_server: bool) -> Iterator[Json]:
    """The events of one process: its lanes' names, then every span, in the order they began. The spans are in that
    order already."""
    lanes = Lanes(is_server)
    placed = [(lanes.place(span), span) for span in spans]
    for lane, name in lanes.names():
        yield _meta(number, lane, "thread_name", name=name)
        yield _meta(number, lane, "thread_sort_index", sort_index=lane)
    for lane, span in placed:
        event = {
            "ph": "X",
            "pid": number,
            "tid": lane,
            "cat": span.category,
            "name": span.name,
            "ts": (span.began_ns - origin_ns) / 1e3,
            "dur": (span.ended_ns - span.began_ns) / 1e3,
        }
        if span.args:
            event["args"] = span.args
        yield event


class Lanes:
    """Which lane each span is drawn on. Spans are placed in the order they began; of two that begin together the
    longer comes first."""

    def __init__(self, is_server: bool) -> None:
        self._threads = _Family(0, "work" if is_server else "compute")
        self._pushes = _Family(1, "push")
        self._pulls = _Family(2, "pull")
        self._open: dict[tuple[int, int], tuple[int, list[int]]] = {}  # by thread, and number if one does not do

    def place(self, span: Span) -> int:
        if span.category == Category.PULL:
            return self._pulls.take_free(span)
        if span.category in IN_FLIGHT:
            return self._pushes.take_free(span)
        for number in itertools.count():
            lane, ends = self._open.get((span.thread, number), (0, []))
            if not lane:
                lane = self._threads.add()
                self._open[(span.thread, number)] = (lane, ends)
            while ends and ends[-1] <= span.began_ns:
                ends.pop()
            if not ends or span.ended_ns <= ends[-1]:  # else it was begun in one call and ended in another
                ends.append(span.ended_ns)
                break
        return lane

    def names(self) -> Iterator[tuple[int, str]]:
        for family in (self._threads, self._pushes, self._pulls):
            for number in range(family.count):
                yield family.first + number, family.name if number == 0 else f"{family.name} {number + 1}"


class _Family:
    """Lanes of one kind, next to each other."""

    def __init__(self, position: int, name: str) -> None:
        self.first = position * LANES + 1
        self.name = name
        self.count = 0
        self._busy: list[tuple[int, int]] = []
        self._free: list[int] = []

    def add(self) -> int:
        self.count += 1
        return self.first + self.count - 1

    def take_free(self, span: Span) -> int:
        """The first lane on which nothing is under way."""
        while self._busy and self._busy[0][0] <= span.began_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        lane = heapq.heappop(self._free) if self._free else self.add()
        heapq.heappush(self._busy, (span.ended_ns, lane))
        return lane


def _meta(number: int, lane: int, what: str, **args: Any) -> Json:
    return {"ph": "M", "pid": number, "tid": lane, "name": what, "args": args}
