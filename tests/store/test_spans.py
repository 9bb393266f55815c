from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import UsageError
from windlass.store.spans import Spans, segments

SIZE = 12
RANGES = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))


def test_a_fresh_slot_is_one_span() -> None:
    assert list(Spans(5)) == [(0, 5, 0)]


def test_a_part_that_advances_is_a_span_of_its_own_until_the_rest_catches_up() -> None:
    spans = Spans(10)
    spans.advance(2, 5)
    assert list(spans) == [(0, 2, 0), (2, 5, 1), (5, 10, 0)]
    spans.advance(0, 2)
    assert list(spans) == [(0, 5, 1), (5, 10, 0)]
    spans.advance(5, 10)
    assert list(spans) == [(0, 10, 1)]


def test_an_empty_slot_and_an_empty_range_take_no_step() -> None:
    spans = Spans(0)
    spans.advance(0, 0)
    assert list(spans) == [(0, 0, 0)]
    assert spans.cut(0, 0) == []
    spans = Spans(3)
    spans.advance(2, 2)
    assert list(spans) == [(0, 3, 0)]


@given(st.lists(RANGES, max_size=12), RANGES)
def test_spans_count_every_element_and_stay_minimal(ranges: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    spans, steps = Spans(SIZE), [0] * SIZE
    for lo, hi in ranges:
        spans.advance(lo, hi)
        for i in range(lo, hi):
            steps[i] += 1
    assert [step for lo, hi, step in spans for _ in range(lo, hi)] == steps
    listed = list(spans)
    assert all(a[2] != b[2] and a[1] == b[0] for a, b in pairwise(listed))
    cut = spans.cut(*asked)
    assert [(i, step) for lo, hi, step in cut for i in range(lo, hi)] == [(i, steps[i]) for i in range(*asked)]
    assert list(Spans.restore(SIZE, spans.dump())) == listed


@pytest.mark.parametrize("dumped", [[], [[0, 3, 1]], [[0, 2, 1], [3, 5, 0]], [[0, 5, -1]], [[1, 5, 0]]])
def test_spans_that_do_not_tile_the_slot_are_refused(dumped: list[list[int]]) -> None:
    with pytest.raises(UsageError, match="must follow each other from 0 to 5"):
        Spans.restore(5, dumped)


@given(st.lists(RANGES, max_size=6))
def test_segments_tile_exactly_what_is_covered_and_keep_the_order(ranges: list[tuple[int, int]]) -> None:
    by_element = {}
    previous = 0
    for lo, hi, covering in segments(ranges):
        assert previous <= lo < hi
        previous = hi
        by_element.update(dict.fromkeys(range(lo, hi), covering))
    for i in range(SIZE):
        expected = [index for index, (lo, hi) in enumerate(ranges) if lo <= i < hi]
        assert by_element.get(i, []) == expected
