"""Threads that share a store take turns at its links."""

from __future__ import annotations

import threading
import time

import pytest

from windlass.worker.turn import Turn


def _started(*functions) -> list[threading.Thread]:
    threads = [threading.Thread(target=one, daemon=True) for one in functions]
    for thread in threads:
        thread.start()
    return threads


def _until(holds) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_who_gives_way_does_not_get_the_turn_back_before_whoever_asked_for_it() -> None:
    woken: list[str] = []
    turn, may_give = Turn(lambda: woken.append("holder")), threading.Event()

    def asks() -> None:
        turn.take()
        may_give.wait()
        turn.give()

    turn.take()
    (other,) = _started(asks)
    _until(lambda: turn.requests == 1)
    assert woken == ["holder"]
    turn.give()
    assert not turn.take_or(lambda: False, 0)
    may_give.set()
    other.join(10)
    assert turn.take_or(lambda: False, 0)


def test_who_waits_for_work_that_another_does_goes_when_it_is_done_without_the_turn() -> None:
    turn, done, got = Turn(lambda: None), [False, False], []
    turn.take()
    threads = _started(*(lambda one=one: got.append((one, turn.take_or(lambda: done[one], 10))) for one in range(2)))
    _until(lambda: len(turn._waiting) == 2)
    done[0] = True
    turn.tell()
    _until(lambda: got == [(0, False)])
    turn.give()
    for thread in threads:
        thread.join(10)
    assert got == [(0, False), (1, True)]


def test_who_has_waited_long_enough_leaves_and_is_passed_over() -> None:
    turn = Turn(lambda: None)
    turn.take()
    assert not turn.take_or(lambda: False, 0.01)
    turn.give()
    assert turn.try_background()


def test_an_exception_in_the_wait_for_the_turn_leaves_it_to_others() -> None:
    class Interrupted(Exception):
        pass

    class Lock:
        def acquire(self, timeout: float) -> None:
            raise Interrupted

        def release(self) -> None:
            pass

    turn = Turn(lambda: None)
    turn.take()
    sleeper = turn._ask()
    sleeper.sleep = Lock()  # type: ignore[assignment]
    with pytest.raises(Interrupted):
        turn._sleep(sleeper, turn._asking, -1)
    assert turn.requests == 0
    turn.give()
    assert turn.try_background()


def test_many_threads_all_have_their_turns() -> None:
    turn, count, inside = Turn(lambda: None), [0] * 8, [0]

    def works(one: int) -> None:
        for _ in range(200):
            turn.take()
            inside[0] += 1
            assert inside[0] == 1
            count[one] += 1
            inside[0] -= 1
            turn.give()

    for thread in _started(*(lambda one=one: works(one) for one in range(8))):
        thread.join(30)
    assert count == [200] * 8
