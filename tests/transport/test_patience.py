"""How a hub waits: awake where nobody else wants the core, asleep where somebody does."""

from __future__ import annotations

import os
import select
import time

import pytest

from windlass._transport.patience import MAX_GIVEN, Patience


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


class Yields:
    """Counted; each takes so long, as if somebody else had run."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.count, self._seconds = 0, seconds

    def __call__(self) -> None:
        self.count += 1
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass


def waiting(reading: int, yields: Yields) -> Patience:
    epoll = select.epoll()
    epoll.register(reading, select.EPOLLIN)
    return Patience(epoll, 8, yields)


def test_what_is_there_is_given_without_a_yield(pipe):
    yields = Yields()
    os.write(pipe[1], b"x")
    assert waiting(pipe[0], yields).wait(1.0) == [(pipe[0], select.EPOLLIN)]
    assert not yields.count


def test_a_core_that_others_want_is_given_away_a_few_times_and_then_left(pipe):
    yields = Yields(2e-5)
    assert waiting(pipe[0], yields).wait(0.0005) == []
    assert yields.count == MAX_GIVEN


def test_a_core_that_nobody_wants_is_kept_for_a_moment(pipe):
    yields = Yields()
    waits = waiting(pipe[0], yields)
    assert waits.wait(0.0008) == []
    before = yields.count
    assert before > MAX_GIVEN
    waits.wait(0.003)  # a long one: the next is slept through
    before = yields.count
    assert waits.wait(0.0005) == []
    assert yields.count == before
