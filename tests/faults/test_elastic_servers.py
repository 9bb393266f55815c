"""Servers come and go while workers push and pull: every promise holds."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import windlass as wl
from tests.faults.scenes import cluster, play, somewhere
from windlass.testing.havoc import Hand
from windlass.testing.rig import Script, bits, perform


@pytest.mark.parametrize("transport", ["threads", "tcp"])
def test_a_server_that_is_added_under_load_gets_its_share_and_nothing_is_lost(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 11, between=(0.1, 0.3))
        name = hand.add_server()
        hand.wait_until(lambda: any(name in chain for chain in hand.chains()), f"{name} is in a chain")
        hand.await_whole(2)

    with cluster(transport) as there:
        report = play(there, 11, plan)
    assert report.num_during("add") == 1


@pytest.mark.parametrize(("transport", "replicas"), [("threads", 1), ("shm", 0)])
def test_a_server_that_is_removed_under_load_hands_everything_over(transport: str, replicas: int) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 12, between=(0.1, 0.4))
        name = hand.rng.choice(hand.servers())
        hand.remove_server(name)
        hand.await_whole(replicas + 1)
        if transport != "threads":
            hand.await_end(name)

    with cluster(transport, replicas=replicas) as there:
        report = play(there, 12, plan)
    assert report.num_during("remove") == 1


@pytest.mark.parametrize(("transport", "replicas"), [("shm", 1), ("tcp", 0)])
def test_a_server_that_gets_sigterm_under_load_hands_everything_over_and_ends(transport: str, replicas: int) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 13, between=(0.1, 0.4))
        name = hand.rng.choice(hand.servers())
        hand.ask_to_leave(name)
        hand.await_end(name)
        hand.await_whole(replicas + 1)

    with cluster(transport, replicas=replicas) as there:
        report = play(there, 13, plan)
    assert report.num_during("terminate") == 1


@pytest.mark.parametrize("transport", ["tcp"])
def test_a_server_killed_while_another_is_added_and_a_third_leaves_loses_nothing(transport: str) -> None:
    def plan(hand: Hand) -> None:
        somewhere(hand, 14, between=(0.1, 0.3))
        going, dying = hand.rng.sample(hand.servers(), 2)
        hand.add_server()
        hand.ask_to_leave(going)
        hand.kill(dying)
        hand.await_end(going)
        hand.await_whole(2)

    with cluster(transport, servers=4) as there:
        report = play(there, 14, plan)
    assert (report.num_during("add"), report.num_during("terminate"), report.num_during("kill")) == (1, 1, 1)


def test_nobody_waits_for_a_beat_when_chains_change() -> None:
    """A head may answer when its successor has confirmed it, and asks every eighth of a lease; a new one at once."""
    lease_seconds = 120.0

    def plan(hand: Hand) -> None:
        hand.await_version("w", 3)
        for _ in range(3):
            name = hand.add_server()
            hand.wait_until(lambda name=name: any(name in chain for chain in hand.chains()), f"{name} is in a chain")
            hand.await_whole(2)
            hand.remove_server(hand.servers()[0])
            hand.await_whole(2)

    with cluster("shm", lease_seconds=lease_seconds) as there:
        keys = (bits("w", wl.Sequential(), num_slots=5),)
        report = perform(there, Script(keys, clock=90, seed=15, cuts=0, lag_seconds=0.01), plan)
    assert report.verdict.ok, report.verdict.reason
    assert (report.num_during("add"), report.num_during("remove")) == (3, 3)
    assert report.longest_seconds < lease_seconds / 8 / 2


def test_status_tells_that_an_update_replicates_the_aggregate_and_not_the_state_also_after_a_failover() -> None:
    size = 600_000

    def work(store: wl.Store, rounds: int) -> None:
        store.create("w", np.zeros(size, np.float32), update=wl.Adam(lr=0.1))
        store.create("arrives", np.zeros(1000, np.float32), update="add", consistency=wl.Eventual())
        for _ in range(rounds):
            store.push({"w": np.ones(size, np.float32), "arrives": np.ones(1000, np.float32)}).wait()

    def per_update(there: wl.Cluster, key: str) -> float:
        servers = there.store().status()["servers"].values()
        return sum(one["keys"][key]["replicated_bytes_per_update"] for one in servers if key in one["keys"])

    with wl.Cluster(servers=3, workers=3, replicas=1, chunk_bytes=64 << 10) as there:
        there.run(work, 10)
        assert (per_update(there, "w"), per_update(there, "arrives")) == (size * 4, 4000)
        os.kill(next(node.pid for node in there.nodes() if node.name == "server-0"), signal.SIGKILL)
        there.run(work, 10)
        assert per_update(there, "w") == pytest.approx(size * 4)
