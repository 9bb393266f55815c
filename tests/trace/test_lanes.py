"""How spans are laid out: what overlaps has lanes of its own, what nests shares one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.trace.checks import IN_FLIGHT, check_nesting
from windlass.trace import chrome
from windlass.trace.spans import Category, Span

SPANS = st.lists(
    st.builds(
        lambda category, thread, began, length: Span(category, "x", thread, began, began + length),
        st.sampled_from(["push", "pull", "pushpull", "compute", "wait"]),
        st.integers(1, 2),
        st.integers(0, 40),
        st.integers(0, 20),
    ),
    max_size=25,
)


def laid_out(spans: list[Span]) -> tuple[list[dict], dict[int, str]]:
    spans.sort(key=lambda span: (span.began_ns, -span.ended_ns))
    events = list(chrome.events(1, spans, 0, False))
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [event for event in events if event["ph"] == "X"], names


@given(SPANS)
def test_whatever_the_spans_each_lane_nests_and_every_span_is_drawn_once(spans):
    events, names = laid_out(spans)
    assert len(events) == len(spans)
    lanes: dict[int, list[dict]] = {}
    for event in events:
        lanes.setdefault(event["tid"], []).append(event)
    for number, lane in lanes.items():
        check_nesting(lane, slack_us=1e-6)
        kinds = {event["cat"] in IN_FLIGHT for event in lane}
        assert len(kinds) == 1
        assert names[number].split()[0] in {"compute", "push", "pull"}
    assert len(set(names.values())) == len(names)


@given(SPANS)
def test_pushes_have_as_many_lanes_as_were_ever_under_way_at_once(spans):
    spans = [span for span in spans if span.category == "push" and span.ended_ns > span.began_ns]
    events, _ = laid_out(spans)
    most = max((sum(one.began_ns <= at < one.ended_ns for one in spans) for at in range(60)), default=0)
    assert len({event["tid"] for event in events}) == most


def test_calls_of_one_thread_share_a_lane_and_another_thread_has_its_own():
    spans = [
        Span(Category.STEP, "step", 5, 0, 100),
        Span(Category.COMPUTE, "forward", 5, 0, 50),
        Span(Category.WAIT, "wait", 5, 50, 90),
        Span(Category.COMPUTE, "loader", 6, 10, 95),
        Span(Category.PUSH, "push w", 0, 40, 80),
        Span(Category.PULL, "pull w", 0, 40, 90),
    ]
    events, names = laid_out(spans)
    assert {event["name"]: names[event["tid"]] for event in events} == {
        "step": "compute",
        "forward": "compute",
        "wait": "compute",
        "loader": "compute 2",
        "push w": "push",
        "pull w": "pull",
    }


def test_times_are_microseconds_from_the_first_record():
    [_, _, event] = chrome.events(3, [Span("compute", "x", 1, 5_000_000, 7_500_500)], 1_000_000, False)
    assert (event["pid"], event["ts"], event["dur"]) == (3, 4000.0, 2500.5)
