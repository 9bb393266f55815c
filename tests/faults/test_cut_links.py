"""Two servers cannot reach each other, though the manager and all workers reach both: pushes go on after about a lease,
and nothing is lost."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import windlass as wl
from tests.busy import is_within
from tests.faults.scenes import PROCESSES, cluster, play, somewhere
from windlass.testing.havoc import Hand, Havoc, Mute

LEASE_SECONDS = 1.0
PATIENCE_SECONDS = 2.5
"""A lease, a quarter of one until the manager believes it, and what a busy machine takes on top."""


def _has_link(chains: list[list[str]], *names: str) -> bool:
    return any(set(names) == set(pair) for chain in chains for pair in pairwise(chain))


@pytest.mark.parametrize("transport", PROCESSES)
def test_chains_keep_off_a_link_that_is_cut_and_are_whole_again_on_other_servers(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 1, between=(0.1, 0.3))
        hand.keep_apart("server-0", "server-1")
        hand.wait_until(lambda: not _has_link(hand.chains(), "server-0", "server-1"), "no chain goes over the cut")
        hand.await_whole(2)  # server-2 reaches both
        hand.await_version("sequential-1", 28)  # rounds go on, though their keeper cannot reach all heads
        assert hand.cluster.store().status()["cuts"] == [["server-0", "server-1"]]

    with cluster(transport, chaos=True, lease_seconds=LEASE_SECONDS) as there:
        report = play(there, 1, plan)
        assert {node.state for node in there.nodes() if node.role == "server"} == {"alive"}
    assert report.num_during("part") == 1
    assert is_within(report.longest_seconds, PATIENCE_SECONDS)


def test_where_nobody_else_is_left_the_head_goes_on_alone_until_they_reach_each_other_again() -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 2, between=(0.1, 0.3))
        hand.keep_apart("server-0", "server-1")
        hand.await_whole(1)
        hand.let_meet()
        hand.await_whole(2)

    with cluster("tcp", servers=2, chaos=True, lease_seconds=LEASE_SECONDS) as there:
        report = play(there, 2, plan)
    assert is_within(report.longest_seconds, PATIENCE_SECONDS)


def test_a_cut_of_which_nobody_is_told_is_found_by_what_is_not_answered() -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 3, between=(0.1, 0.3))
        hand.mute("server-1")
        hand.wait_until(lambda: not _has_link(hand.chains(), "server-0", "server-1"), "no chain goes over the cut")

    with cluster("tcp", _server_state=Mute, lease_seconds=LEASE_SECONDS) as there:
        report = play(there, 3, plan)
    assert is_within(report.longest_seconds, PATIENCE_SECONDS)


def _count_until_past_a_gap(store: wl.Store, gap_seconds: float, rounds: int) -> tuple[int, float]:
    """Push and pull until a round has taken that long, and so many rounds more; how many there were, and the longest
    pause between two."""
    store.create("w", np.zeros(60_000, np.float32), update="add")
    store.create("enough", np.zeros(1, np.float32), reduce="max", update="assign")
    before, count, longest, left = time.monotonic(), 0, 0.0, rounds
    while True:
        store.pushpull("w", np.ones(60_000, np.float32))
        now = time.monotonic()
        longest, count, before = max(longest, now - before), count + 1, now
        left -= longest > gap_seconds
        if store.pushpull("enough", np.full(1, store.rank == 0 and left <= 0, np.float32))[0]:
            return count, longest


def test_without_replicas_rounds_go_through_the_manager_where_the_keeper_cannot_reach_a_head() -> None:
    def plan(hand: Hand) -> None:
        hand.await_version("w", 10)
        hand.keep_apart("server-0", "server-1")

    options: dict[str, Any] = {"servers": 2, "replicas": 0, "chaos": True, "lease_seconds": LEASE_SECONDS}
    with cluster("tcp", **options) as there, Havoc(there, plan, 4) as hand:
        counts = there.run(_count_until_past_a_gap, 0.8 * LEASE_SECONDS, 30)
        value = there.store().pull("w")
    assert value.min() == value.max() == sum(count for count, _ in counts)
    assert max(longest for _, longest in counts) < PATIENCE_SECONDS
    assert [shot.what for shot in hand.shots] == ["part"]
