"""The checker finds what is wrong with histories written by hand, and says it in words."""

from __future__ import annotations

import numpy as np
import pytest

from windlass.filters import IdCache
from windlass.testing.checker import Verdict, judge
from windlass.testing.history import NEWEST, History, KeyShape, Pulled, Pushed, WorkerLog
from windlass.testing.saving import had_kept
from windlass.types import Bounded, Consistency, Eventual, Sequential

BITS = 8  # worker 0 owns bits 0 to 3, worker 1 bits 4 to 7
SLOTS = 2


class Scene:
    """Two workers on one key of two slots. Calls happen one after the other, unless `under_way` says otherwise."""

    def __init__(self, policy: Consistency) -> None:
        self.shape = KeyShape("w", policy, BITS, SLOTS)
        self.logs = [WorkerLog("worker-0"), WorkerLog("worker-1")]
        self.now = 0.0
        self.final: list[int] | None = None

    def push(self, worker: int, clock: int, *, lo: int = 0, hi: int = BITS * SLOTS, is_acked: bool = True) -> None:
        self.now += 1
        acked = self.now + 0.5 if is_acked else None
        pushed = Pushed("w", clock, 4 * worker + clock - 1, lo, hi, self.now, acked)
        self.logs[worker].events.append(pushed)

    def pull(self, worker: int, clock: int, *slots: list[tuple[int, int]], times: int = 1) -> None:
        """`slots` holds, for each slot, the (worker, clock) that the value shows."""
        self.now += 1
        self.logs[worker].events.append(
            Pulled("w", clock, 0, BITS * SLOTS, self.value(*slots, times=times), self.now, self.now + 0.5)
        )

    def value(self, *slots: list[tuple[int, int]], times: int = 1) -> np.ndarray:
        value = np.zeros((SLOTS, BITS), np.int64)
        for row, shown in zip(value, slots, strict=True):
            for who, clock in shown:
                row[4 * who + clock - 1] += times
        return value.reshape(-1)

    def judge(self, final: np.ndarray | None = None) -> Verdict:
        return judge(History({"w": self.shape}, self.logs, {} if final is None else {"w": final}))


BOTH = [(0, 1), (1, 1)]


def test_a_correct_sequential_run_has_no_violation() -> None:
    scene = Scene(Sequential())
    for clock in (1, 2):
        shown = [(who, each) for who in (0, 1) for each in range(1, clock + 1)]
        scene.push(0, clock)
        scene.push(1, clock)
        scene.pull(0, clock, shown, shown)
        scene.pull(1, clock, shown, shown)
    verdict = scene.judge(scene.value(shown, shown))
    assert verdict.ok, verdict.reason
    assert verdict.num_pulls == 4


def test_a_push_counted_twice_is_named_with_worker_key_and_pull() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.push(1, 1)
    scene.pull(0, 1, BOTH, BOTH, times=2)
    assert scene.judge().violations[0].reason == (
        "once: worker-0, 'w', call 2 (pull after 1 pushes), slot 0: "
        "expected push 1 of worker-0 at most once, got 2 times"
    )


def test_a_sequential_pull_that_lacks_a_member_is_named() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.push(1, 1)
    scene.pull(0, 1, BOTH, [(0, 1)])
    assert scene.judge().reason == (
        "sequential: worker-0, 'w', call 2 (pull after 1 pushes), slot 1: "
        "expected exactly the pushes of worker-1 up to 1, got no push 1"
    )


def test_a_sequential_pull_that_shows_a_later_round_is_named() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.push(1, 1)
    scene.push(1, 2)
    scene.pull(0, 1, BOTH, [*BOTH, (1, 2)])
    assert "expected exactly the pushes of worker-1 up to 1, got push 2" in scene.judge().reason


def test_a_sequential_answer_before_a_worker_pushed_at_all_is_named_though_nothing_marks_it() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.pull(0, 1, [(0, 1)], [(0, 1)])
    assert "expected exactly the pushes of worker-1 up to 1, got an answer when it had made 0" in scene.judge().reason


@pytest.mark.parametrize("policy", [Sequential(), Bounded(2), Eventual()])
def test_a_pull_without_an_own_earlier_push_is_named(policy: Consistency) -> None:
    scene = Scene(policy)
    scene.push(0, 1, is_acked=False)
    scene.push(1, 1, is_acked=False)
    scene.pull(0, 1, [(1, 1)], BOTH)
    where = "worker-0, 'w', call 2 (pull after 1 pushes), slot 0"
    assert f"own pushes: {where}: expected own push 1 to be in, got it is not" in scene.judge().reason


def test_a_gap_in_a_workers_pushes_is_named() -> None:
    scene = Scene(Eventual())
    scene.push(1, 1, is_acked=False)
    scene.push(1, 2, is_acked=False)
    scene.pull(0, 0, [(1, 2)], [])
    assert scene.judge().reason == (
        "order: worker-0, 'w', call 1 (pull after 0 pushes), slot 0: "
        "expected the pushes of worker-1 without a gap, got push 2 but not 1"
    )


def test_an_element_that_nobody_pushed_is_named() -> None:
    scene = Scene(Eventual())
    scene.push(0, 1, hi=BITS)
    scene.pull(0, 1, [(0, 1)], [(0, 1)])
    assert "never made" in scene.judge().reason


def test_a_push_seen_before_it_was_made_is_named() -> None:
    scene = Scene(Eventual())
    scene.pull(0, 0, [(1, 1)], [])
    scene.now += 10
    scene.push(1, 1)
    assert "expected no push 1 of worker-1 before it was made" in scene.judge().reason


def test_a_range_push_counts_as_a_push_and_leaves_no_mark_outside_its_range() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1, hi=BITS)
    scene.push(1, 1)
    scene.pull(0, 1, BOTH, [(1, 1)])
    assert scene.judge().ok


def test_a_bounded_pull_may_lead_by_its_delay_and_no_more() -> None:
    scene = Scene(Bounded(1))
    scene.push(0, 1)
    scene.pull(0, 1, [(0, 1)], [(0, 1)])
    scene.push(0, 2)
    scene.pull(0, 2, [(0, 1), (0, 2)], [(0, 1), (0, 2)])
    verdict = scene.judge()
    assert verdict.violations[0].reason == (
        "bounded: worker-0, 'w', call 4 (pull after 2 pushes), slot 0: "
        "expected the first 1 pushes of worker-1, delay is 1, got no push 1"
    )
    assert {violation.where for violation in verdict.violations} == {"call 4 (pull after 2 pushes)"}


def test_a_worker_that_joined_later_holds_nobody_back_before_it_entered() -> None:
    scene = Scene(Bounded(1))
    scene.logs[1].entered["w"] = 100.0
    scene.push(0, 1)
    scene.push(0, 2)
    scene.pull(0, 2, [(0, 1), (0, 2)], [(0, 1), (0, 2)])
    assert scene.judge().ok


def test_a_scan_shows_those_who_had_entered_when_the_pull_before_it_began() -> None:
    scene = Scene(Bounded(1))
    scene.push(0, 1)
    scene.push(0, 2)
    scene.pull(0, 2, [(0, 1), (0, 2)], [(0, 1), (0, 2)])
    [*_, scan] = scene.logs[0].events
    assert isinstance(scan, Pulled)
    scan.awaited_from, scan.invoked, scan.responded = scan.invoked, 10.0, 11.0
    scene.logs[1].entered["w"] = 5.0
    assert scene.judge().ok
    scene.logs[1].entered["w"] = 2.5
    assert {violation.rule for violation in scene.judge().violations} == {"bounded"}


@pytest.mark.parametrize("policy", [Bounded(3), Eventual()])
def test_an_acknowledged_push_missing_from_a_later_pull_is_named(policy: Consistency) -> None:
    scene = Scene(policy)
    scene.push(1, 1)
    scene.pull(0, 0, [(1, 1)], [])
    assert scene.judge().reason == (
        "acknowledged: worker-0, 'w', call 1 (pull after 0 pushes), slot 1: "
        "expected push 1 of worker-1, acknowledged before the pull began, got no push 1"
    )


def test_a_pull_that_shows_less_than_an_earlier_one_is_named() -> None:
    scene = Scene(Eventual())
    scene.push(1, 1, is_acked=False)
    scene.pull(0, 0, [(1, 1)], [])
    scene.pull(0, 0, [], [])
    assert "monotonic: worker-0, 'w', call 2 (pull after 0 pushes), slot 0" in scene.judge().reason


@pytest.mark.parametrize("policy", [Bounded(3), Eventual()])
def test_a_pull_that_is_asked_again_for_its_list_of_ids_may_show_more_than_one_that_was_under_way(
    policy: Consistency,
) -> None:
    scene = Scene(policy)
    scene.push(1, 1, is_acked=False)
    scene.pull(0, 0, [(1, 1)], [(1, 1)])
    scene.pull(0, 0, [], [])
    first, second = scene.logs[0].events
    assert isinstance(first, Pulled)
    assert isinstance(second, Pulled)
    first.responded = second.responded + 1
    assert {violation.rule for violation in scene.judge().violations} == {"monotonic"}
    scene.shape = KeyShape("w", policy, BITS, SLOTS, filters=(IdCache(),))
    assert scene.judge().ok
    scene.now = first.responded
    scene.pull(0, 0, [], [(1, 1)])
    assert [violation.reason.partition(": expected")[0] for violation in scene.judge().violations] == [
        "monotonic: worker-0, 'w', call 3 (pull after 0 pushes), slot 0"
    ]


def test_the_last_push_of_a_departed_worker_counts_everywhere_or_nowhere() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.push(1, 1, is_acked=False)
    scene.logs[1].departed = scene.now
    scene.pull(0, 1, BOTH, [(0, 1)])
    reason = scene.judge().reason
    assert "departed" in reason
    assert "expected push 1 of departed worker-1 everywhere or nowhere" in reason

    for shown in (BOTH, [(0, 1)]):
        scene.logs[0].events.pop()
        scene.pull(0, 1, shown, shown)
        assert scene.judge().ok


def test_an_acknowledged_push_of_a_departed_worker_may_not_vanish() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1)
    scene.push(1, 1)
    scene.logs[1].departed = scene.now
    scene.pull(0, 1, [(0, 1)], [(0, 1)])
    assert "push 1 is in by its acknowledgement" in scene.judge().reason


def test_an_acknowledged_push_missing_from_the_final_value_is_named() -> None:
    scene = Scene(Eventual())
    scene.push(1, 1)
    assert scene.judge(scene.value([(1, 1)], [])).reason == (
        "acknowledged: everybody, 'w', the final value, slot 1: "
        "expected acknowledged push 1 of worker-1 to be in, got it is not"
    )


def test_a_drivers_read_of_two_different_rounds_is_named() -> None:
    scene = Scene(Sequential())
    scene.push(0, 1, is_acked=False)
    scene.push(1, 1, is_acked=False)
    driver = WorkerLog("driver", since={"w": 4}, entered={"w": 1e9})
    scene.logs.append(driver)
    driver.events = [Pulled("w", NEWEST, 0, BITS * SLOTS, scene.value(BOTH, []), 10.0, 11.0)]
    assert scene.judge().reason == (
        "torn: driver, 'w', call 1 (read), slot 1: "
        "expected one and the same round everywhere, got round 1 on slot 0, but not round 1 on slot 1"
    )
    driver.events = [Pulled("w", NEWEST, 0, BITS * SLOTS, scene.value(BOTH, BOTH), 10.0, 11.0)]
    assert scene.judge().ok


def test_a_saved_residual_is_what_its_worker_had_kept_back_after_that_round() -> None:
    nothing, one, other = (np.array(kept) for kept in ([0, 0], [1, 0], [0, 2]))
    book = ([nothing, one, other], 3)  # it began after round 3
    assert had_kept(one, 4, book)
    assert not had_kept(other, 4, book)
    assert not had_kept(nothing, 4, book)
    assert not had_kept(other, 6, book)  # it has made no such push
    assert had_kept(other, -1, book)  # at any moment
    assert had_kept(nothing, 3, book)
    assert had_kept(nothing, 2, book)  # it was there, and had not begun
    assert not had_kept(one, 2, book)
    assert had_kept(nothing, 2, None)  # it never did
    assert not had_kept(one, 2, None)
