"""What a trace tells in numbers: how much of the communication was hidden behind compute, and who waited for whom."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from windlass.errors import UsageError
from windlass.trace.intervals import Interval, difference, intersection, length, union
from windlass.trace.spans import Category

Event = dict[str, Any]
Trace = str | os.PathLike[str] | Iterable[Event]

COMMUNICATION = frozenset({Category.PUSH, Category.PULL, Category.PUSHPULL, Category.COPY})
BLOCKED = frozenset({Category.WAIT, Category.COPY})
US_PER_SECOND = 1e6


@dataclass(frozen=True, slots=True)
class Overlap:
    """One worker in one step, or in all its time where no step is marked (`step` is then None).

    Communication goes on while any push or pull is under way, or a push copies its value. It is *hidden* while the
    worker computes: inside a span of category "compute", and in none of its waits and copies. The rest is exposed.
    """

    worker: str
    step: int | None
    seconds: float
    compute_seconds: float
    communication_seconds: float
    hidden_seconds: float

    @property
    def exposed_seconds(self) -> float:
        return self.communication_seconds - self.hidden_seconds

    @property
    def share_hidden(self) -> float:
        """Between 0 and 1; 1 where there was no communication, because none was exposed."""
        return self.hidden_seconds / self.communication_seconds if self.communication_seconds else 1.0


def overlap(trace: Trace) -> list[Overlap]:
    """For each worker and each of its steps, in order: how long it computed, communicated, and did both. `trace` is
    the path of a trace, or its events. A step is a span of category "step"; what goes on between two steps counts for
    neither."""
    rows: list[Overlap] = []
    for name, spans in _workers(trace).items():
        communication = union(_times(spans, COMMUNICATION))
        compute = _computing(spans)
        steps = sorted(_times(spans, {Category.STEP}))
        if not steps and spans:
            everything = union([(span["ts"], span["ts"] + span["dur"]) for span in spans])
            steps = [(everything[0][0], everything[-1][1])] if everything else []
            rows += [_row(name, None, step, compute, communication) for step in steps]
        else:
            rows += [_row(name, number, step, compute, communication) for number, step in enumerate(steps)]
    return rows


def share_hidden(rows: Iterable[Overlap]) -> float:
    """Of all communication in these rows, the share that was hidden; 1 where there was none."""
    rows = list(rows)
    total = sum(row.communication_seconds for row in rows)
    return sum(row.hidden_seconds for row in rows) / total if total else 1.0


def waits(trace: Trace) -> dict[str, dict[str, float]]:
    """For each worker, the seconds that it was blocked, by whom it waited for. A wait that went on after the push it
    was on had arrived counts, from then on, as one on that push's server."""
    found: dict[str, dict[str, float]] = {}
    for name, spans in _workers(trace).items():
        seconds = found.setdefault(name, {})
        for span in spans:
            if span["cat"] == Category.WAIT:
                args = span.get("args", {})
                whom, server = args.get("on", "unknown"), args.get("arrived_at")
                on_us = min(span["dur"], args.get("on_ms", span["dur"] / 1e3) * 1e3)
                seconds[whom] = seconds.get(whom, 0.0) + on_us / US_PER_SECOND
                if server is not None:
                    seconds[server] = seconds.get(server, 0.0) + (span["dur"] - on_us) / US_PER_SECOND
    return found


def load(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a trace file, as the Chrome trace format has them. Raises UsageError for anything else."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        found = msgspec.json.decode(data)
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise UsageError(f"'{os.fspath(path)}' cannot be read as a trace: {error}") from error
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise UsageError(f"'{os.fspath(path)}' is no trace: expected an object with traceEvents")
    return events


def _workers(trace: Trace) -> dict[str, list[Event]]:
    """The spans of every worker, by its name."""
    events = load(trace) if isinstance(trace, str | os.PathLike) else list(trace)
    names = {one["pid"]: one["args"]["name"] for one in events if one["ph"] == "M" and one["name"] == "process_name"}
    found: dict[str, list[Event]] = {name: [] for name in names.values() if name.startswith("worker")}
    for event in events:
        if event["ph"] == "X" and names.get(event["pid"]) in found:
            found[names[event["pid"]]].append(event)
    return found


def _times(spans: list[Event], categories: Iterable[str]) -> list[Interval]:
    wanted = frozenset(categories)
    return [(span["ts"], span["ts"] + span["dur"]) for span in spans if span["cat"] in wanted]


def _computing(spans: list[Event]) -> list[Interval]:
    """When any thread of the worker was inside a compute span and not blocked there."""
    by_lane: dict[int, list[Event]] = {}
    for span in spans:
        by_lane.setdefault(span["tid"], []).append(span)
    found: list[Interval] = []
    for lane in by_lane.values():
        found += difference(union(_times(lane, {Category.COMPUTE})), union(_times(lane, BLOCKED)))
    return union(found)


def _row(
    worker: str, number: int | None, step: Interval, compute: list[Interval], communication: list[Interval]
) -> Overlap:
    computed = intersection(compute, [step])
    communicated = intersection(communication, [step])
    return Overlap(
        worker=worker,
        step=number,
        seconds=length([step]) / US_PER_SECOND,
        compute_seconds=length(computed) / US_PER_SECOND,
        communication_seconds=length(communicated) / US_PER_SECOND,
        hidden_seconds=length(intersection(computed, communicated)) / US_PER_SECOND,
    )
