"""The nodes' records read back, and what only all of them together can tell: whom each wait was for.

A worker knows that it waited; the servers know when whose push arrived. A wait for round n of a sequential key ends
after the last member's n-th push has arrived, so it was *on* that member, and for as long as that push was missing. A
pull of a bounded key after n own pushes is on whoever's push n - delay came last. What is left of a wait, and every
wait that missed nobody, is on the server that answered last: the update, and the way there and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

import msgspec

from windlass.trace.recorder import FRAME
from windlass.trace.spans import IN_FLIGHT, Batch, Category, Header, Span

NS_PER_MS = 1e6

_header_decoder = msgspec.msgpack.Decoder(Header)
_batch_decoder = msgspec.msgpack.Decoder(Batch)


class Record:
    """What one node has left behind. `header` is None if it never began."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name  # "server-0", say
        self.rank = int(name.rpartition("-")[2])
        self.dropped = 0
        self._file = file
        frames = self._frames()
        first = next(frames, None)
        self.header = _header_decoder.decode(first) if first is not None else None

    @property
    def is_server(self) -> bool:
        return self.name.startswith("server")

    def spans(self) -> list[Span]:
        """Every span that was written, in the order they began."""
        found: list[Span] = []
        self.dropped = 0
        frames = self._frames()
        next(frames, None)
        for frame in frames:
            batch = _batch_decoder.decode(frame)
            found += batch.spans
            self.dropped += batch.dropped
        found.sort(key=lambda span: (span.began_ns, -span.ended_ns))
        return found

    def _frames(self) -> Iterator[bytes]:
        """Up to the end, or to where a node was killed in the middle of a write."""
        self._file.seek(0)
        while len(head := self._file.read(FRAME.size)) == FRAME.size:
            (length,) = FRAME.unpack(head)
            body = self._file.read(length)
            if len(body) < length:
                return
            yield body


@dataclass(slots=True)
class Arrival:
    """When the last piece of a push arrived, and at which server."""

    ns: int
    server: str


@dataclass(slots=True)
class Index:
    """What the servers saw: whose push of which clock arrived when, and who answered it last."""

    names: dict[int, str] = field(default_factory=dict)
    arrivals: dict[tuple[int, int], dict[int, Arrival]] = field(default_factory=dict)  # by key and clock
    answers: dict[tuple[int, int, int], tuple[int, str]] = field(default_factory=dict)  # by worker, key and clock

    def note(self, server: str, spans: Iterable[Span]) -> None:
        seen: set[tuple[int, ...]] = set()
        for span in spans:
            if span.category == Category.STAGE and span.link not in seen:
                seen.add(span.link)  # a part that is sent again arrived when it came first
                who, key, clock, _ = span.link
                here = self.arrivals.setdefault((key, clock), {})
                if who not in here or here[who].ns < span.began_ns:
                    here[who] = Arrival(span.began_ns, server)
            elif span.category == Category.ANSWER:
                for start in range(0, len(span.link), 3):
                    who, key, clock = span.link[start : start + 3]
                    if self.answers.get((who, key, clock), (0, ""))[0] < span.ended_ns:
                        self.answers[(who, key, clock)] = (span.ended_ns, server)

    def last(self, key: int, clock: int) -> tuple[int, Arrival] | None:
        """Whose push came last, and when."""
        here = self.arrivals.get((key, clock), {})
        return max(here.items(), key=lambda one: one[1].ns, default=None)

    def absent(self, key: int, clock: int) -> list[int]:
        """Who took part the time before and not this time."""
        return sorted(self.arrivals.get((key, clock - 1), {}).keys() - self.arrivals.get((key, clock), {}).keys())


def annotate(spans: list[Span], me: int, index: Index) -> None:
    """Write into a worker's waits whom they were on."""
    ops: dict[int, list[Span]] = {}
    for span in spans:
        if span.category in IN_FLIGHT:
            ops.setdefault(span.link[3], []).append(span)
    for wait in spans:
        if wait.category == Category.WAIT and wait.link:
            # A task's number may be another's later on, so only what was under way meanwhile is meant.
            meant = [
                op for op in ops.get(wait.link[0], ()) if op.began_ns <= wait.ended_ns and op.ended_ns >= wait.began_ns
            ]
            if meant:
                _explain(wait, max(meant, key=lambda op: op.ended_ns), me, index)


def _explain(wait: Span, op: Span, me: int, index: Index) -> None:
    key, clock, delay, _ = op.link
    wait.args["key"] = op.args["key"]
    wait.args["clock"] = clock
    needed = clock - delay
    may_wait = delay == 0 or (delay > 0 and op.category != Category.PUSH)
    last = index.last(key, needed) if may_wait else None
    if last is not None and last[0] != me and last[1].ns > wait.began_ns:
        who, arrival = last
        own = index.arrivals.get((key, clock), {}).get(me)
        whom = index.names.get(who, f"incarnation {who}")
        wait.args["on_ms"] = (min(arrival.ns, wait.ended_ns) - wait.began_ns) / NS_PER_MS
        if own is not None:
            wait.args["behind_ms"] = (arrival.ns - own.ns) / NS_PER_MS
        wait.args["arrived_at"] = arrival.server
    elif may_wait and index.absent(key, needed):
        whom = ", ".join(index.names.get(who, f"incarnation {who}") for who in index.absent(key, needed))
        wait.args["on_ms"] = (wait.ended_ns - wait.began_ns) / NS_PER_MS
        wait.args["never_came"] = True
    else:
        whom = index.answers.get((me, key, clock), (0, "the servers"))[1]
        wait.args["on_ms"] = (wait.ended_ns - wait.began_ns) / NS_PER_MS
    wait.args["on"] = whom
    wait.name = f"wait on {whom}"
