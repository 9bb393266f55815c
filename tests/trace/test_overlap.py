"""How much communication is hidden: on events made by hand, and on sets of times against counting."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from windlass import trace
from windlass.trace.intervals import difference, intersection, length, union


def span(category: str, began_ms: float, ended_ms: float, *, pid: int = 1, tid: int = 1, **args: Any) -> dict[str, Any]:
    times = {"ts": began_ms * 1e3, "dur": (ended_ms - began_ms) * 1e3}
    return {"ph": "X", "cat": category, "name": category, "pid": pid, "tid": tid, "args": args, **times}


def name(pid: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": text}}


def test_communication_under_compute_is_hidden_and_the_rest_is_exposed():
    events = [
        name(1, "worker-0"),
        span("step", 0, 100),
        span("compute", 0, 60),
        span("push", 40, 80, tid=2),  # 20 ms under compute
        span("push", 50, 90, tid=3),  # overlaps the other: counted once
        span("wait", 60, 95),
        span("pull", 90, 95, tid=4),
    ]
    (row,) = trace.overlap(events)
    assert (row.worker, row.step) == ("worker-0", 0)
    assert row.seconds == pytest.approx(0.100)
    assert row.compute_seconds == pytest.approx(0.060)
    assert row.communication_seconds == pytest.approx(0.055)
    assert row.hidden_seconds == pytest.approx(0.020)
    assert row.exposed_seconds == pytest.approx(0.035)
    assert row.share_hidden == pytest.approx(20 / 55)


def test_a_wait_or_a_copy_inside_a_compute_span_hides_nothing():
    events = [
        name(1, "worker-0"),
        span("compute", 0, 100),
        span("copy", 10, 20),
        span("push", 20, 60, tid=2),
        span("wait", 30, 60),
    ]
    (row,) = trace.overlap(events)
    assert row.step is None
    assert row.compute_seconds == pytest.approx(0.060)
    assert row.communication_seconds == pytest.approx(0.050)
    assert row.hidden_seconds == pytest.approx(0.010)


def test_a_wait_of_one_thread_does_not_stop_another_from_computing():
    events = [
        name(1, "worker-0"),
        span("compute", 0, 50, tid=1),
        span("wait", 0, 50, tid=2),
        span("pull", 0, 50, tid=3),
    ]
    (row,) = trace.overlap(events)
    assert row.share_hidden == 1.0


def test_each_step_of_each_worker_has_a_row_and_servers_have_none():
    events = [name(1, "server-0"), name(2, "worker-0"), name(3, "worker-1")]
    for pid in (2, 3):
        for step in range(3):
            events.append(span("step", 100 * step, 100 * step + 90, pid=pid))
            events.append(span("compute", 100 * step, 100 * step + 50, pid=pid))
        events.append(span("push", 95, 210, pid=pid, tid=2))  # ten of step 1's, and on into step 2
    events.append(span("reduce+update", 0, 300, pid=1))
    rows = trace.overlap(events)
    assert [(row.worker, row.step) for row in rows] == [(f"worker-{w}", step) for w in range(2) for step in range(3)]
    assert [round(row.communication_seconds * 1e3) for row in rows[:3]] == [0, 90, 10]
    assert [round(row.hidden_seconds * 1e3) for row in rows[:3]] == [0, 50, 10]
    assert rows[0].share_hidden == 1.0  # nothing was exposed
    assert trace.share_hidden(rows) == pytest.approx(60 / 100)
    assert trace.share_hidden([]) == 1.0


def test_a_barrier_is_no_communication():
    events = [name(1, "worker-0"), span("compute", 0, 10), span("barrier", 10, 90, tid=2), span("wait", 10, 90)]
    (row,) = trace.overlap(events)
    assert row.communication_seconds == 0


def test_waits_are_added_up_by_whom_they_were_on():
    events = [
        name(1, "worker-0"),
        span("wait", 0, 30, on="worker-1", on_ms=25.0, arrived_at="server-0"),
        span("wait", 40, 50, on="worker-1", on_ms=10.0, arrived_at="server-1"),
        span("wait", 60, 64, on="server-1", on_ms=4.0),
        span("wait", 70, 71, on="the manager"),
    ]
    (found,) = trace.waits(events).values()
    assert {whom: round(seconds * 1e3, 6) for whom, seconds in found.items()} == {
        "worker-1": 35,
        "server-0": 5,
        "server-1": 4,
        "the manager": 1,
    }


def test_what_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "x.json"
    with pytest.raises(wl.UsageError, match="cannot be read as a trace"):
        trace.overlap(path)
    path.write_text("{")
    with pytest.raises(wl.UsageError, match="cannot be read as a trace"):
        trace.overlap(path)
    path.write_text('{"a": 1}')
    with pytest.raises(wl.UsageError, match="expected an object with traceEvents"):
        trace.overlap(path)
    path.write_text(json.dumps({"traceEvents": [name(1, "worker-0"), span("push", 0, 1)]}))
    assert len(trace.overlap(str(path))) == 1


INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: tuple(sorted(ends))), max_size=8
)


def points(intervals) -> set[int]:
    return {point for began, ended in intervals for point in range(began, ended)}


@given(INTERVALS, INTERVALS)
def test_sets_of_times_agree_with_counting_the_moments_in_them(one, other):
    a, b = union(one), union(other)
    assert points(a) == points(one)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(a))
    assert points(intersection(a, b)) == points(a) & points(b)
    assert points(difference(a, b)) == points(a) - points(b)
    assert length(a) == len(points(a))
