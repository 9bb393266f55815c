"""Servers are killed, come and go while workers push to tables and through filters: nobody notices but the clock."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import windlass as wl
from tests.faults.scenes import cluster
from windlass import filters as wf
from windlass.testing.havoc import Hand

STEPS = 24
DIM = 4


def _kept(store: wl.Store, key: str) -> np.ndarray:
    """What this worker's filters have kept back, by id."""
    found = np.zeros((500, DIM))
    for kept in store._entries[key].key.filtering.sender.dump().residual:
        found[kept.ids] += kept.values.reshape(-1, DIM)
    return found


def _train(store: wl.Store, victims: dict[int, int]) -> dict[str, Any]:
    """Push to tables of every kind; before the step of this number, this process is killed. What they are at the
    end, and what was pushed."""
    store.create_table("trained", dim=DIM, init=wl.Normal(0.1), update=wl.Adagrad(lr=0.1), reduce="mean")
    store.create_table("aged", dim=DIM, update=wl.Adam(lr=0.1), admit_after=2, max_rows=120, ttl_updates=9, slots=6)
    store.create_table("counted", dim=DIM, consistency=wl.Eventual())
    store.create_table("bounded", dim=DIM, consistency=wl.Bounded(2), slots=5)
    store.create_table("filtered", dim=DIM, filters=[wf.IdCache(), wf.TopK(0.3), wf.Int8()])
    store.create_table("capped", dim=DIM, update=wl.Adam(lr=0.1), max_bytes=300_000)
    store.create("w", np.zeros(500, np.float32), update="add", filters=[wf.Cast("bfloat16")])
    rng, counts, pushed = np.random.default_rng(store.rank), np.zeros(500), np.zeros((500, DIM))
    always = np.arange(0, 500, 5)
    refused: list[int | str] = []
    for step in range(STEPS):
        ids = rng.integers(0, 500, 120)
        rows = (rng.standard_normal((120, DIM)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
        names = ("trained", "aged", "counted", "bounded")
        values = {"trained": rows, "aged": rows, "counted": np.ones_like(rows), "bounded": np.ones_like(rows)}
        task = store.push(values, ids=dict.fromkeys(names, ids))
        store.pull("filtered", ids=always)
        store.push("filtered", rows[:100], ids=always)
        store.push("w", np.ones(500, np.float32))
        if store.rank == 0 and step in victims:
            os.kill(victims[step], signal.SIGKILL)
        task.wait()
        few = ids if step % 3 else np.concatenate([ids, np.arange(10_000, 15_000)])  # every third round is too much
        try:
            store.push("capped", np.ones((few.size, DIM), np.float32), ids=few).wait()
        except wl.UsageError as error:
            refused += [step] if "outgrow max_bytes" in str(error) else [str(error)]
        np.add.at(counts, ids, 1)
        pushed[always] += rows[:100]
    store.barrier()
    everything = np.arange(500)
    return {
        "trained": store.pull("trained", ids=everything).tobytes(),
        "aged": [part.tobytes() for part in store.pull("aged", range=(0, 500))],
        "capped": [part.tobytes() for part in store.pull("capped", range=(0, 20_000))],
        "refused": refused,
        "counted": store.pull("counted", ids=everything)[:, 0],
        "bounded": store.pull("bounded", ids=everything)[:, 0],
        "counts": counts,
        "filtered": store.pull("filtered", ids=everything),
        "sent": pushed - _kept(store, "filtered"),
        "w": (float(store.pull("w").min()), float(store.pull("w").max())),
    }


@pytest.fixture(scope="module")
def undisturbed() -> list[dict[str, Any]]:
    with cluster("threads") as there:
        return list(there.run(_train, {}))


def _check(results: list[dict[str, Any]], undisturbed: list[dict[str, Any]]) -> None:
    counts = sum(result["counts"] for result in results)
    sent = sum(result["sent"] for result in results)
    for result in results:
        assert result["trained"] == undisturbed[0]["trained"]
        assert result["aged"] == undisturbed[0]["aged"]
        assert result["capped"] == undisturbed[0]["capped"]
        assert result["refused"] == list(range(0, STEPS, 3))
        assert np.array_equal(result["counted"], counts)
        assert np.array_equal(result["bounded"], counts)
        assert np.allclose(result["filtered"], sent, rtol=1e-4, atol=1e-2)
        assert result["w"] == (3 * STEPS, 3 * STEPS)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_server_killed_in_the_middle_changes_no_bit_of_a_table(transport: str, undisturbed: Any) -> None:
    with cluster(transport) as there:
        pid = next(node.pid for node in there.nodes() if node.name == "server-1")
        results = there.run(_train, {STEPS // 2: pid})
        assert [node.name for node in there.nodes() if node.role == "server" and node.state != "alive"]
    _check(results, undisturbed)


def test_servers_that_come_and_go_under_load_change_no_bit_of_a_table(undisturbed: Any) -> None:
    with cluster("threads") as there:
        moved: list[str] = []

        def move() -> None:
            time.sleep(0.1)
            moved.append(there.add_server())
            there.remove_server("server-0")
            moved.append(there.add_server())

        mover = threading.Thread(target=move)
        mover.start()
        results = there.run(_train, {})
        mover.join()
        driver = there.store()
        chains = driver.status()["keys"]["trained"]["shards"][0]
    assert len(moved) == 2
    assert "server-0" not in chains
    _check(results, undisturbed)


def _push_and_die(store: wl.Store) -> None:
    store.create("w", np.zeros(100, np.float32), update="add", filters=[wf.TopK(0.1)], consistency=wl.Eventual())
    store.push("w", np.full(100, store.rank + 1, np.float32)).wait()
    store.barrier()
    if store.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.3)


def test_a_killed_workers_residual_is_told_as_lost() -> None:
    """At its death it had kept 90 numbers of 2 each; the others' residuals go with their processes, too."""
    with cluster("shm", workers=2, servers=1, replicas=0) as there:
        with pytest.raises(wl.ClusterError, match="SIGKILL"):
            there.run(_push_and_die)
        hand, driver = Hand(there, random.Random(1)), there.store()
        lost = [0.0]

        def is_told() -> bool:
            lost[0] = driver.status()["servers"]["server-0"]["keys"]["w"]["lost_residual_norm"]
            return lost[0] > 0

        hand.wait_until(is_told, "the residual is told as lost")
    assert any(lost[0] == pytest.approx(np.sqrt(90 * squares)) for squares in (4, 4 + 1))
