"""The manager is killed, with SIGKILL, in real processes: what is under way goes on, and another takes its place."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windlass as wl
from tests.busy import is_within
from windlass.engines import _revival

SIZE = 20_000
LEASE = 1.0


def manager_pid(cluster: wl.Cluster) -> int:
    return next(node.pid for node in cluster.nodes() if node.role == "manager")


def term(cluster: wl.Cluster) -> int:
    return int(cluster.store()._manager_says()["generation"].partition(".")[0])


def wait_for(what: Callable[[], bool], seconds: float = 30.0) -> float:
    """How long it took to come true."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "it did not come true in time"
        time.sleep(0.01)
    return time.monotonic() - began


def train(store: wl.Store, pid: int) -> dict[str, Any]:
    """200 rounds; the manager is killed in the middle. Then a new key."""
    store.create("w", np.zeros(SIZE, np.float32), update="add")
    store.barrier()
    usual = worst = 0.0
    for step in range(200):
        if step == 100 and store.rank == 0:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        store.pushpull("w", np.ones(SIZE, np.float32))
        took = time.monotonic() - began
        usual, worst = (max(usual, took), worst) if step < 100 else (usual, max(worst, took))
    began = time.monotonic()
    store.create("later", np.zeros(10, np.float32), update="add")
    created = time.monotonic() - began
    store.push("later", np.ones(10, np.float32)).wait()
    return {"usual": usual, "worst": worst, "created": created, "w": store.pull("w"), "later": store.pull("later")}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_training_goes_on_while_the_manager_is_killed_and_another_comes(transport: str) -> None:
    with wl.Cluster(servers=2, workers=2, replicas=1, transport=transport) as cluster:
        killed = manager_pid(cluster)
        for seen in cluster.run(train, killed):
            assert is_within(seen["worst"], seen["usual"] + 2.0)
            assert is_within(seen["created"], 2.0)
            assert np.array_equal(seen["w"], np.full(SIZE, 400.0))
            assert np.array_equal(seen["later"], np.full(10, 2.0))
        wait_for(lambda: term(cluster) == 2)
        nodes = {node.name: node for node in cluster.nodes()}
        assert sorted(nodes) == ["manager", "server-0", "server-1", "worker-0", "worker-1"]
        assert all(node.state == "alive" for node in nodes.values())
        assert nodes["manager"].pid != killed


def test_workers_that_are_idle_come_back_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    with wl.Cluster(servers=1, workers=2) as cluster, caplog.at_level(logging.WARNING):
        for expected in (2, 3):
            killed = manager_pid(cluster)
            os.kill(killed, signal.SIGKILL)
            took = wait_for(lambda expected=expected: term(cluster) == expected)  # type: ignore[misc]
            assert is_within(took, 2.0)
            assert f"manager (pid {killed}) was killed by SIGKILL; another one is started" in caplog.text
            assert all(node.state == "alive" for node in cluster.nodes())
            assert cluster.run(add_one, expected) == [2.0 * (expected - 1)] * 2


def add_one(store: wl.Store, term: int) -> float:
    store.create("w", np.zeros(10, np.float32), update="add")
    store.push("w", np.ones(10, np.float32)).wait()
    return float(store.pull("w")[0])


def lose_both(store: wl.Store, manager: int, server: int) -> Any:
    store.create("w", np.zeros(SIZE, np.float32), update="add")
    store.barrier()
    for step in range(100):
        if step == 50 and store.rank == 0:
            os.kill(manager, signal.SIGKILL)
            os.kill(server, signal.SIGKILL)
        store.pushpull("w", np.ones(SIZE, np.float32))
    return store.pull("w")


def test_a_server_that_dies_while_there_is_no_manager_is_replaced_when_there_is_one() -> None:
    with wl.Cluster(servers=3, workers=2, replicas=1, lease_seconds=LEASE) as cluster:
        pids = {node.name: node.pid for node in cluster.nodes()}
        for value in cluster.run(lose_both, pids["manager"], pids["server-0"]):
            assert np.array_equal(value, np.full(SIZE, 200.0))
        states = {node.name: node.state for node in cluster.nodes()}
        assert states == {
            "manager": "alive", "server-0": "gone", "server-1": "alive", "server-2": "alive",
            "worker-0": "alive", "worker-1": "alive",
        }  # fmt: skip


def pull_until_lost(store: wl.Store, manager: int, server: int) -> str:
    store.create("w", np.zeros(SIZE, np.float32), update="add")
    try:
        store.barrier()  # whoever is still in it when the server dies hears of that here
        if store.rank == 0:
            os.kill(manager, signal.SIGKILL)
            os.kill(server, signal.SIGKILL)
        while True:
            store.pushpull("w", np.ones(SIZE, np.float32))
    except wl.ClusterError as error:
        return f"{type(error).__name__}: {error}"


def test_a_range_that_is_lost_while_there_is_no_manager_is_named_when_there_is_one() -> None:
    with wl.Cluster(servers=1, workers=2, lease_seconds=LEASE) as cluster:
        pids = {node.name: node.pid for node in cluster.nodes()}
        for text in cluster.run(pull_until_lost, pids["manager"], pids["server-0"]):
            assert text.startswith("LostRange: ")
            assert "held by server-0, which died" in text


def test_a_server_can_be_added_and_removed_under_the_next_manager() -> None:
    with wl.Cluster(servers=2, workers=1, replicas=1) as cluster:
        assert cluster.run(add_one, 1) == [1.0]
        os.kill(manager_pid(cluster), signal.SIGKILL)
        name = cluster.add_server()
        cluster.remove_server("server-0")
        assert cluster.run(add_one, 1) == [2.0]
        states = {node.name: node.state for node in cluster.nodes()}
        assert states[name] == "alive"
        assert states["server-0"] == "gone"


def test_a_worker_that_is_added_while_there_is_no_manager_joins_the_next() -> None:
    with wl.Cluster(servers=1, workers=1, lease_seconds=LEASE) as cluster:
        os.kill(manager_pid(cluster), signal.SIGKILL)
        assert cluster.add_worker() == "worker-1"
        assert cluster.run(lambda store: (store.rank, store.num_workers)) == [(0, 2), (1, 2)]


def test_a_server_that_is_to_leave_while_there_is_no_manager_hands_over_when_there_is_one() -> None:
    with wl.Cluster(servers=2, workers=1) as cluster:
        assert cluster.run(add_one, 1) == [1.0]
        pids = {node.name: node.pid for node in cluster.nodes()}
        os.kill(pids["manager"], signal.SIGKILL)
        os.kill(pids["server-0"], signal.SIGTERM)
        wait_for(lambda: {node.name: node.state for node in cluster.nodes()}["server-0"] == "gone")
        assert cluster.run(add_one, 1) == [2.0]


def test_a_manager_that_keeps_dying_fails_the_cluster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_revival, "MAX_RESTARTS", 1)
    with wl.Cluster(servers=1, workers=1) as cluster, caplog.at_level(logging.WARNING):
        os.kill(manager_pid(cluster), signal.SIGKILL)
        wait_for(lambda: term(cluster) == 2)
        os.kill(manager_pid(cluster), signal.SIGKILL)
        wait_for(lambda: "it is not started again" in caplog.text)
        with pytest.raises(wl.ClusterError, match="killed by SIGKILL; managers have died 2 times within 60 s"):
            cluster.run(add_one, 1)
        with pytest.raises(wl.ClusterError, match="the cluster cannot go on: close it, and open another"):
            cluster.nodes()


def test_two_clusters_cannot_have_one_journal_at_the_same_time(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with wl.Cluster(servers=1, workers=1, journal=path) as cluster:
        assert term(cluster) == 1
        script = (
            "import windlass as wl\n"
            f"wl.Cluster(servers=1, workers=1, journal={path!r})\n"
        )  # fmt: skip
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150)
        assert other.returncode != 0
        assert f"another manager holds the journal {path}" in other.stderr
        assert cluster.run(add_one, 1) == [1.0]
    with wl.Cluster(servers=1, workers=1, journal=path) as cluster:  # nothing of the old one is waited for
        assert cluster.run(add_one, 1) == [1.0]
        assert term(cluster) == 2


def test_nothing_is_left_of_a_journal_without_a_name() -> None:
    with wl.Cluster(servers=1, workers=1) as cluster:
        before = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
        assert any("windlass-journal" in name for name in before)
        assert term(cluster) == 1
    after = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)]
    assert not any("windlass-journal" in name for name in after)


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")
