"""Servers are killed and stopped while workers push and pull: every promise holds, and nobody notices but the clock."""

from __future__ import annotations

import os
import signal
import time
from itertools import count

import numpy as np
import pytest

import windlass as wl
from tests.busy import is_within
from tests.faults.scenes import PROCESSES, cluster, play, somewhere
from windlass.testing.havoc import Brittle, Hand

STEPS = 40


@pytest.mark.parametrize(("transport", "replicas"), [("shm", 1), ("tcp", 2)])
def test_a_server_killed_at_any_moment_loses_nothing(transport: str, replicas: int) -> None:
    seed = replicas

    def plan(hand: Hand) -> None:
        somewhere(hand, seed)
        hand.kill(hand.rng.choice(hand.servers()))

    with cluster(transport, replicas=replicas) as there:
        report = play(there, seed, plan)
    assert report.num_during("kill") == 1
    assert report.cuts > 3


@pytest.mark.parametrize("transport", ["shm"])
def test_two_servers_killed_one_after_the_other_lose_nothing_once_the_chains_are_whole_between(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 3, between=(0.1, 0.3))
        hand.kill(hand.rng.choice(hand.servers()))
        hand.await_whole(2)
        hand.kill(hand.rng.choice(hand.servers()))

    with cluster(transport, servers=4) as there:
        report = play(there, 3, plan)
    assert report.num_during("kill") == 2


@pytest.mark.parametrize("transport", ["tcp"])
def test_two_servers_killed_together_lose_nothing_when_there_are_two_replicas(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 4)
        for name in hand.rng.sample(hand.servers(), 2):
            hand.kill(name)

    with cluster(transport, servers=4, replicas=2) as there:
        report = play(there, 4, plan)
    assert report.num_during("kill") == 2


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_server_that_wakes_up_after_its_lease_neither_applies_nor_answers_and_ends(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 5, between=(0.1, 0.3))
        name = hand.rng.choice(hand.servers())
        hand.stop(name)
        hand.wait_until(lambda: not any(name in chain for chain in hand.chains()), f"{name} is in no chain")
        hand.await_version("sequential-5", 14)  # others speak for its shards
        hand.resume(name)
        hand.await_end(name)  # by itself

    with cluster(transport) as there:
        report = play(there, 5, plan)
    assert (report.num_during("stop"), report.num_during("resume")) == (1, 1)


@pytest.mark.parametrize("transport", ["shm"])
def test_a_server_that_wakes_up_within_its_lease_goes_on(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 6)
        name = hand.rng.choice(hand.servers())
        hand.stop(name)
        time.sleep(0.3)
        hand.resume(name)

    with cluster(transport, lease_seconds=3.0) as there:
        report = play(there, 6, plan)
        assert [node.state for node in there.nodes() if node.name.startswith("server-")] == ["alive"] * 3
    assert report.num_during("resume") == 1


def test_a_manager_that_was_stopped_for_longer_than_a_lease_blames_nobody() -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 9)
        (manager,) = [node.pid for node in hand.cluster.nodes() if node.role == "manager"]
        os.kill(manager, signal.SIGSTOP)
        time.sleep(1.6)
        os.kill(manager, signal.SIGCONT)

    with cluster("shm") as there:
        before = there.store().status()["generation"]
        play(there, 9, plan)
        time.sleep(0.3)
        assert there.store().status()["generation"] == before


@pytest.mark.parametrize("transport", ["tcp"])
def test_links_between_servers_that_break_again_and_again_lose_nothing(transport: str) -> None:
    def plan(hand: Hand) -> None:
        for version in range(2, 20, 2):
            hand.await_version("sequential-7", version)
            hand.cut_links(hand.rng.choice(hand.servers()))
        hand.kill(hand.rng.choice(hand.servers()))

    with cluster(transport, _server_state=Brittle) as there:
        report = play(there, 7, plan)
    assert (report.num_during("cut"), report.num_during("kill")) == (9, 1)


@pytest.mark.parametrize("transport", ["tcp"])
def test_without_replicas_the_loss_of_a_server_names_the_range_and_the_server(transport: str) -> None:
    def work(store: wl.Store, pid: int) -> tuple[str, int, int, str, str]:
        store.create("w", np.zeros(1024, np.float32), update="add")  # one slot, on one server
        store.create("v", np.zeros(1024, np.float32), update="add")  # and the next on the other
        try:
            for step in count():
                store.pushpull({"w": np.ones(1024, np.float32), "v": np.ones(1024, np.float32)})
                if store.rank == 0 and step == 1:  # its second round: everybody has had the first
                    os.kill(pid, signal.SIGKILL)
        except wl.LostRange as error:
            return error.key, error.lo, error.hi, error.server, str(error)

    with cluster(transport, servers=2, replicas=0) as there:
        pid = next(node.pid for node in there.nodes() if node.name == "server-1")
        for key, lo, hi, server, text in there.run(work, pid):
            assert key in ("w", "v")
            assert (lo, hi, server) == (0, 1024, "server-1")
            assert f"elements [0, 1024) of '{key}' were held by server-1, which died, and by no replica" in text


def _train(store: wl.Store, steps: int, victim: int) -> list[bytes]:
    """Momentum on float32 gradients, whose sums depend on their order. The value after each step."""
    store.create("w", np.zeros(5000, np.float32), update=wl.SGD(lr=0.1, momentum=0.9), reduce="mean")
    rng = np.random.default_rng(store.rank)
    values = []
    for step in range(steps):
        grad = (rng.standard_normal(5000) * 10.0 ** rng.integers(-4, 4)).astype(np.float32)
        task = store.pushpull("w", grad, wait=False)
        if step == steps // 2 and store.rank == 0 and victim:
            os.kill(victim, signal.SIGKILL)
        values.append(np.array(task.wait()).tobytes())
    return values


@pytest.fixture(scope="module")
def undisturbed() -> list[list[bytes]]:
    with cluster("threads", deterministic=True) as there:
        return there.run(_train, STEPS, 0)


@pytest.mark.parametrize("transport", PROCESSES)
def test_a_deterministic_run_gives_the_same_bits_with_a_failover_in_its_middle(
    transport: str, undisturbed: list[list[bytes]]
) -> None:
    with cluster(transport, deterministic=True) as there:
        victim = next(node.pid for node in there.nodes() if node.name == "server-1")
        assert there.run(_train, STEPS, victim) == undisturbed
        assert [node.state for node in there.nodes() if node.name == "server-1"] == ["gone"]


def test_a_killed_process_is_seen_by_its_link_within_a_tenth_of_a_second() -> None:
    with cluster("shm", servers=3, workers=1, lease_seconds=30.0, on_worker_loss="continue") as there:
        for role in ("server", "worker"):
            victim = next(node for node in there.nodes() if node.role == role)
            began = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            while next(node.state for node in there.nodes() if node.pid == victim.pid) == "alive":
                assert time.monotonic() - began < 20
            assert is_within(time.monotonic() - began, 0.1)
