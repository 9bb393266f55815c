"""How a hub waits: awake where nobody else wants the core, asleep where somebody does."""

from __future__ import annotations

import select

from windlass._transport.patience import AWAKE_SECONDS, GIVEN_SECONDS, MAX_GIVEN, Patience

READY = [(3, select.EPOLLIN)]


class Machine:
    """A clock, an epoll object on which something is ready or nothing comes, and a yield that takes so long. Time
    passes only in what is called."""

    def __init__(self, yield_seconds: float, *, is_ready: bool = False) -> None:
        self.now = 0.0
        self.num_yields = 0
        self._yield_seconds = yield_seconds
        self._is_ready = is_ready

    def patience(self) -> Patience:
        return Patience(self, 8, self._give_way, lambda: self.now)  # type: ignore[arg-type]

    def poll(self, seconds: float, max_ready: int) -> list[tuple[int, int]]:
        if self._is_ready:
            return READY
        self.now += seconds
        return []

    def _give_way(self) -> None:
        self.num_yields += 1
        self.now += self._yield_seconds


def test_what_is_there_is_given_without_a_yield() -> None:
    machine = Machine(GIVEN_SECONDS / 3, is_ready=True)
    assert machine.patience().wait(1.0) == READY
    assert (machine.num_yields, machine.now) == (0, 0.0)


def test_a_core_that_others_want_is_given_away_a_few_times_and_then_left() -> None:
    machine = Machine(10 * GIVEN_SECONDS)
    assert machine.patience().wait(AWAKE_SECONDS / 2) == []
    assert machine.num_yields == MAX_GIVEN


def test_a_core_that_nobody_wants_is_kept_for_a_moment() -> None:
    machine = Machine(GIVEN_SECONDS / 3)
    waits = machine.patience()
    assert waits.wait(AWAKE_SECONDS / 2) == []
    assert machine.num_yields > 10 * MAX_GIVEN
    before = machine.num_yields
    waits.wait(AWAKE_SECONDS / 2)  # a short one after a short one is met awake, too
    assert machine.num_yields > before
    waits.wait(3 * AWAKE_SECONDS)  # a long one: the next is slept through
    before = machine.num_yields
    assert waits.wait(AWAKE_SECONDS / 2) == []
    assert machine.num_yields == before
    waits.wait(AWAKE_SECONDS / 2)  # that was a short one again
    assert machine.num_yields > before
