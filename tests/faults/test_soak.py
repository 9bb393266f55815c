"""Anything at any moment, for long: `make soak`."""

from __future__ import annotations

import time

import pytest

from tests.faults.scenes import CLOCK, PROCESSES, cluster, play
from windlass.testing.havoc import Hand

KINDS = ("kill", "stop", "add", "remove", "terminate")


def anything(hand: Hand, seed: int, length: int) -> None:
    """One fault after another, each at a random moment, each when the chains are whole again."""
    for share in sorted(hand.rng.uniform(0.05, 0.9) for _ in range(3)):
        hand.await_version(f"sequential-{seed}", int(CLOCK * share))
        hand.await_whole(length)
        servers = hand.servers()
        kind = hand.rng.choice(KINDS) if len(servers) > length + 1 else "add"
        name = hand.rng.choice(servers)
        if kind == "kill":
            hand.kill(name)
        elif kind == "stop":
            hand.stop(name)
            time.sleep(hand.rng.uniform(1.5, 3.0))
            hand.resume(name)
            hand.await_end(name)
        elif kind == "add":
            hand.add_server()
        elif kind == "remove":
            hand.remove_server(name)
        else:
            hand.ask_to_leave(name)
            hand.await_end(name)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", PROCESSES)
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_promise_holds_whatever_happens_to_the_servers(transport: str, replicas: int) -> None:
    for seed in range(100, 130):
        with cluster(transport, servers=replicas + 3, replicas=replicas) as there:
            report = play(there, seed, lambda hand, seed=seed: anything(hand, seed, replicas + 1))
        assert len(report.shots) >= 3, (seed, report.shots)
