"""What every trace must be, and how tests look into one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
IN_FLIGHT = {"push", "pull", "pushpull", "barrier"}


def read(path: Path) -> dict[str, Any]:
    """A trace that is valid: one JSON object, named processes and lanes, lanes whose spans lie one after the other or
    one inside the other, no span that ends before it begins."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        trace: dict[str, Any] = json.load(file)
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X"}
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    lanes = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    spans: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["pid"] in processes
            assert (event["pid"], event["tid"]) in lanes
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            spans.setdefault((event["pid"], event["tid"]), []).append(event)
    for lane in spans.values():
        check_nesting(lane)
    return trace


def check_nesting(lane: list[Event], slack_us: float = 0.01) -> None:
    """Spans of one lane are given in the order they began; what is in flight does not even nest."""
    open_until: list[float] = []
    for span in lane:
        while open_until and open_until[-1] <= span["ts"] + slack_us:
            open_until.pop()
        ended = span["ts"] + span["dur"]
        if span["cat"] in IN_FLIGHT:
            assert not open_until, span
        assert not open_until or ended <= open_until[-1] + slack_us, span
        open_until.append(ended)


def spans_of(trace: dict[str, Any], node: str, *categories: str) -> list[Event]:
    events = trace["traceEvents"]
    (number,) = (one["pid"] for one in events if one["name"] == "process_name" and one["args"]["name"] == node)
    return [
        one
        for one in events
        if one["ph"] == "X" and one["pid"] == number and (not categories or one["cat"] in categories)
    ]


def nodes_of(trace: dict[str, Any]) -> list[str]:
    return [one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "process_name"]
