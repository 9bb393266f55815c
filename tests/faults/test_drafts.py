"""What a round was drafted of is applied whole or not at all, on every shard and every replica."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass

import numpy as np
import pytest

import windlass as wl
from tests.faults.scenes import cluster
from windlass.testing.havoc import Hand

SIZE, CHUNK_BYTES = 60_000, 4096
ROUNDS = 25


@dataclass(frozen=True)
class Picky(wl.Updater):
    """Adds, but fails where it is given a 13, with half of its stretch done."""

    def update(self, value, grad, state, step):
        half = value.size // 2
        value[:half] += grad[:half]
        if (grad == 26).any():
            raise ValueError("thirteen of each")
        value[half:] += grad[half:]


def train(store: wl.Store, server: int, after: int) -> list[float]:
    """All elements of a push are the same, so one that differs from another lacks part of a push. The last worker's
    next push after so many is under way when it dies, and takes a server with it."""
    store.create("w", np.zeros(SIZE), update="add")
    for number in range(ROUNDS):
        task = store.push("w", np.full(SIZE, 1.0 if store.rank == 2 else 1000.0))
        if store.rank == 2 and number == after:
            os.kill(server, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        task.wait()
    return sorted(set(store.pull("w").tolist()))


@pytest.mark.parametrize(("server", "after"), [("server-0", 5), ("server-1", 10), ("server-2", 15)])
def test_the_last_push_of_a_worker_that_dies_together_with_a_server_counts_everywhere_or_nowhere(server, after):
    with cluster("shm", on_worker_loss="continue", chunk_bytes=CHUNK_BYTES) as there:
        pid = next(node.pid for node in there.nodes() if node.name == server)
        *results, lost = there.run(train, pid, after)
    assert isinstance(lost, wl.LostWorker)
    assert results[0] == results[1]
    assert len(results[0]) == 1, "some elements lack part of a push"
    others, dead = divmod(results[0][0], 1000)
    assert others == 2 * ROUNDS
    assert dead in (after, after + 1)


@dataclass(frozen=True)
class Scribbling(wl.Updater):
    """Overwrites the aggregate, as it may."""

    def update(self, value, grad, state, step):
        value += grad
        grad[:] = -777


def push_twice(store: wl.Store) -> None:
    store.create("w", np.zeros(SIZE), update=Scribbling())
    for _ in range(2):
        store.push("w", np.ones(SIZE)).wait()


def test_an_updater_may_overwrite_what_it_is_given_and_replicas_have_it_all_the_same():
    with cluster("shm", workers=2, chunk_bytes=10 * 4096) as there:
        there.run(push_twice)
        hand = Hand(there, random.Random(0))
        hand.kill("server-0")
        assert set(there.store().pull("w").tolist()) == {4.0}


def fail_once(store: wl.Store) -> tuple[str, list[float]]:
    store.create("w", np.zeros(SIZE), update=Picky())
    store.push("w", np.ones(SIZE)).wait()
    odd = np.ones(SIZE)
    odd[SIZE // 2] = 13
    with pytest.raises(wl.UsageError) as caught:
        store.push("w", odd).wait()
    store.push("w", np.ones(SIZE)).wait()
    return str(caught.value), store.pull("w").tolist()


def test_replicas_of_a_round_whose_update_failed_are_what_their_head_is():
    """The head leaves out what comes after the slot that failed; so do those that have all of the draft."""
    with cluster("shm", workers=2, chunk_bytes=CHUNK_BYTES) as there:
        results = there.run(fail_once)
        value = results[0][1]
        assert all("thirteen of each" in said for said, _ in results)
        assert results[1][1] == value
        assert sorted(set(value)) == [4.0, 6.0], "all was taken, or nothing"
        hand = Hand(there, random.Random(0))
        for name in ("server-0", "server-1"):
            hand.await_whole(2)
            hand.kill(name)
            assert there.store().pull("w").tolist() == value
