"""Real clusters under chaos: the faults happen, and nothing is lost; with a mistake planted in the servers the report
says so."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass.server.state import ServerState
from windlass.testing.mutants import AcksUnreplicated, ClosesHalf, CountsLeasesAgain, CountsResends, DropsMember

LEASE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0


def _cluster(**options: Any) -> wl.Cluster:
    chosen = {"servers": 3, "workers": 2, "replicas": 1, "lease_seconds": LEASE_SECONDS, "timeout": 20.0} | options
    return wl.Cluster(chaos=True, **chosen)


def _work(store: wl.Store) -> int:
    """Push to keys of both kinds until the driver says that it is enough; worker 0 hears it, and tells the others."""
    store.create("rounds", np.zeros(60_000, np.float32), update="add")
    store.create("any", np.zeros(5000, np.float32), update="add", consistency=wl.Eventual())
    store.create("enough", np.zeros(1, np.float32), reduce="max", update="assign")
    store.create("told", np.zeros(1, np.float32), update="add", consistency=wl.Eventual())
    pushes = 0
    while True:
        store.push("any", np.ones(5000, np.float32))
        store.pushpull("rounds", np.ones(60_000, np.float32))
        pushes += 1
        is_told = store.rank == 0 and store.pull("told")[0] > 0
        if store.pushpull("enough", np.full(1, is_told, np.float32))[0]:
            store.barrier()
            return pushes


def _tell_when_done(cluster: wl.Cluster, chaos: wl.Chaos) -> None:
    assert chaos.wait(30.0)
    cluster.store().assign("told", np.ones(1, np.float32))


def _disturbed(cluster: wl.Cluster, seconds: float, seed: int = 1, **faults: Any) -> Any:
    """The report, after a run whose values are as if nothing had happened."""
    with wl.Chaos(cluster, seed=seed, seconds=seconds, **faults) as chaos:
        telling = threading.Thread(target=_tell_when_done, args=(cluster, chaos))
        telling.start()
        pushes = cluster.run(_work)
        telling.join()
    for key in ("rounds", "any"):
        value = cluster.store().pull(key)
        assert value.min() == value.max() == sum(pushes)
    report = chaos.report
    assert report.ok, report.to_dict()
    assert (report.num_lost, report.num_twice) == (0, 0)
    assert report.findings.num_acked > 3 * sum(pushes)
    return report


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.soak)])
def test_servers_are_killed_and_replaced_one_after_the_other(transport: str) -> None:
    with _cluster(transport=transport) as cluster:
        report = _disturbed(cluster, 3.0, kill=["server:1", "server:any"], every=1.5)
        names = sorted(node.name for node in cluster.nodes() if node.role == "server" and node.state == "alive")
    assert names == ["server-0", "server-1", "server-2"]
    assert [fault.what for fault in report.faults] == ["kill"] * 2, report.to_dict()
    assert "server-1" in {fault.who for fault in report.faults}
    assert report.faults[0].recovery_seconds is not None
    assert all(fault.recovery_seconds or "no key in use" in fault.note for fault in report.faults)
    assert all(fault.note.startswith("replaced") for fault in report.faults)


def test_stopped_nodes_are_waked_and_a_silent_server_is_replaced() -> None:
    with _cluster() as cluster:
        report = _disturbed(cluster, 5.0, stop=["server:0", "worker:1"], every=2.0)
    assert sorted(fault.who for fault in report.faults) == ["server-0", "worker-1"], report.to_dict()
    short, long = sorted(fault.held_seconds for fault in report.faults)
    assert 0.1 <= short < LEASE_SECONDS < long < 3.0


@pytest.mark.parametrize("transport", ["shm", pytest.param("tcp", marks=pytest.mark.soak)])
def test_frames_are_lost_and_late(transport: str) -> None:
    with _cluster(transport=transport) as cluster:
        report = _disturbed(cluster, 1.0, drop=0.02, delay=0.002)
    assert report.frames_lost > 3
    assert report.frames_late > 100
    assert report.faults == ()


def test_nodes_that_are_kept_apart_meet_again() -> None:
    with _cluster() as cluster:
        report = _disturbed(cluster, 1.0, partition=["server:0,worker:1|server:1,server:2"], every=1.5)
    assert [fault.who for fault in report.faults] == ["server-0,worker-1|server-1,server-2"]
    assert report.links_refused > 0
    assert report.longest_push_seconds > 0.1


def test_a_server_that_woke_up_in_time_and_was_killed_later_is_replaced_once() -> None:
    with _cluster(lease_seconds=3.0) as cluster:
        report = _disturbed(cluster, 4.5, stop=["server:0"], kill=["server:0"], every=2.0, seed=6)
        servers = [node.name for node in cluster.nodes() if node.role == "server" and node.state == "alive"]
    assert [fault.what for fault in report.faults] == ["stop", "kill"], report.to_dict()
    assert report.faults[0].held_seconds < 3.0
    assert [fault.note.startswith("replaced") for fault in report.faults] == [False, True]
    assert sorted(servers) == ["server-0", "server-1", "server-2"]


def test_the_manager_is_killed_and_comes_back() -> None:
    with _cluster() as cluster:
        report = _disturbed(cluster, 1.0, kill=["manager"], every=5.0)
    (fault,) = report.faults
    assert fault.who == "manager"
    assert fault.recovery_seconds is not None


def test_a_fault_that_cannot_be_fired_is_said_and_not_counted() -> None:
    """Of two servers with a replica each none may be killed while the other is alone."""
    with _cluster(servers=2) as cluster:
        report = _disturbed(cluster, 1.2, kill=["server:any"], every=0.4, replace=False)
    assert len(report.faults) == 1
    assert len(report.unfired) == 2
    assert all("under-replicated" in one.reason for one in report.unfired)
    assert report.faults[0].note.startswith("not replaced")


def test_a_server_is_spared_until_the_manager_has_noticed_the_death_of_the_one_before() -> None:
    with _cluster() as cluster:
        report = _disturbed(cluster, 0.03, kill=["server:0", "server:1", "server:2"], every=0.01)
    assert report.faults, report.to_dict()
    assert len(report.faults) + len(report.unfired) == 3


def _flagged(flag: Path, is_so: Callable[[], object]) -> threading.Thread:
    """A thread that makes a file, which workers look for, as soon as something is so."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.01)
        flag.touch()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_any_server_is_one_whose_loss_is_felt(tmp_path: Path) -> None:
    """Two of five servers hold the only key."""

    def work(store: wl.Store, over: Path) -> None:
        store.create("w", np.zeros(1000, np.float32), update="add")
        while not over.exists():
            store.push("w", np.ones(1000, np.float32)).wait()

    for seed in (1, 2):
        over = tmp_path / str(seed)
        with (
            _cluster(servers=5, workers=1) as cluster,
            wl.Chaos(cluster, kill=["server:any"], every=1.0, seconds=1.0, seed=seed) as chaos,
        ):
            waiting = _flagged(over, lambda chaos=chaos: chaos.wait(0))
            cluster.run(work, over)
            waiting.join()
        assert [fault.recovery_seconds is not None for fault in chaos.report.faults] == [True], chaos.report.to_dict()


def test_without_replicas_the_loss_is_told() -> None:
    with _cluster(servers=2, replicas=0) as cluster:
        chaos = wl.Chaos(cluster, kill=["server:0", "server:1"], every=0.3, seconds=0.6, seed=1)
        with pytest.raises(wl.LostRange), chaos:
            cluster.run(_work)
        report = chaos.report
    assert report.num_lost > 0
    assert not report.ok
    assert "LostRange" in report.job
    assert "by design" in report.warnings[0]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_cluster_must_know_that_it_will_be_disturbed() -> None:
    with wl.Cluster() as cluster, pytest.raises(wl.UsageError, match=r"wl.Cluster\(chaos=True\)"):
        wl.Chaos(cluster, kill=["server:0"])
    with pytest.raises(wl.UsageError, match="chaos expects True or False, and engine='processes'"):
        wl.Cluster(engine="threads", chaos=True)


def _meet(store: wl.Store) -> None:
    for _ in range(8):
        store.barrier()
        time.sleep(0.1)


def test_a_target_that_the_cluster_does_not_have_is_refused_and_a_job_without_pushes_proves_nothing() -> None:
    with _cluster() as cluster:
        with wl.Chaos(cluster, kill=["server:any"], seconds=1.0) as chaos:
            cluster.run(lambda store: None)
        assert chaos.report.reason == "no fault was fired: nothing is shown"
        with wl.Chaos(cluster, kill=["server:any"], seconds=0.2) as chaos:
            cluster.run(_meet)  # a job that has not begun to work
        assert chaos.report.faults == ()
        with pytest.raises(wl.UsageError, match="the cluster has 3 servers"):
            wl.Chaos(cluster, kill=["server:7"])
        with pytest.raises(wl.UsageError, match="drop expects a share"):
            wl.Chaos(cluster, drop=1.2)
        with pytest.raises(wl.UsageError, match="kill expects a list"):
            wl.Chaos(cluster, kill="server:1")  # type: ignore[arg-type]
        with pytest.raises(wl.UsageError, match="no report before the end"):
            _ = wl.Chaos(cluster, kill=["server:1"]).report


# --- planted mistakes -------------------------------------------------------------------------------------------------


def _push(store: wl.Store, pushes: int, begun: Path) -> None:
    """Pieces of 4 kB: of each shard of the first key two, which by TCP come in two messages. The first push tells chaos
    that the job is at work; the others come when it has begun."""
    store.create("rounds", np.zeros(24_000, np.float32), update="add")
    store.create("any", np.zeros(3000, np.float32), update="add", consistency=wl.Eventual())
    for _ in range(pushes):
        tasks = [store.push("any", np.ones(3000, np.float32)), store.push("rounds", np.ones(24_000, np.float32))]
        store.wait(*tasks)
        while not begun.exists():
            time.sleep(0.01)


def _under_loss(kind: type[ServerState], begun: Path) -> Any:
    with _cluster(servers=2, transport="tcp", chunk_bytes=4096, _server_state=kind) as cluster:
        with wl.Chaos(cluster, drop=0.02, seed=1) as chaos:
            waiting = _flagged(begun, lambda: chaos._session.firing.began_at)
            cluster.run(_push, 40, begun)
            waiting.join()
        return chaos.report


def test_servers_without_a_mistake_pass_where_the_planted_ones_do_not(tmp_path: Path) -> None:
    report = _under_loss(ServerState, tmp_path / "begun")
    assert report.frames_lost > 10
    assert report.ok, report.to_dict()


def test_counting_a_resend_twice_turns_the_report_red(tmp_path: Path) -> None:
    report = _under_loss(CountsResends, tmp_path / "begun")
    assert report.num_twice > 0
    assert report.status == 1


@pytest.mark.parametrize("kind", [DropsMember, ClosesHalf])
def test_a_round_without_all_of_its_pushes_turns_the_report_red(kind: type[ServerState], tmp_path: Path) -> None:
    report = _under_loss(kind, tmp_path / "begun")
    assert report.num_lost > 0
    assert {one.key for one in report.findings.lost} == {"rounds"}


def _lose_a_head_that_is_kept_apart(kind: type[ServerState], over: Path) -> Any:
    """The two servers of a chain cannot reach each other, and the head dies meanwhile. What it has acknowledged alone
    is lost."""

    def work(store: wl.Store) -> None:
        store.create("w", np.zeros(1000, np.float32), update="add", consistency=wl.Eventual())
        while not over.exists():
            store.push("w", np.ones(1000, np.float32)).wait(timeout=5.0)

    with _cluster(servers=2, workers=1, lease_seconds=2.0, _server_state=kind) as cluster:
        chaos = wl.Chaos(cluster, partition=["server:0|server:1"], every=60.0, seconds=1.0, seed=2)

        def kill() -> bool:
            if not chaos._session.firing.faults:
                return False
            time.sleep(0.25)
            (chain,) = cluster.store().status()["keys"]["w"]["shards"]
            os.kill(next(node.pid for node in cluster.nodes() if node.name == chain[0]), signal.SIGKILL)
            time.sleep(0.4)  # pushes that come afterwards
            return True

        try:
            with chaos:
                killer = _flagged(over, kill)
                cluster.run(work)
        except wl.TimeoutError:
            assert kind is not ServerState  # the new head waits for pushes that it never saw
        killer.join()
        return chaos.report


def test_a_head_that_dies_while_its_chain_is_cut_takes_nothing_with_it(tmp_path: Path) -> None:
    report = _lose_a_head_that_is_kept_apart(ServerState, tmp_path / "over")
    assert report.ok, report.to_dict()


def test_acknowledging_before_the_chain_has_it_turns_the_report_red(tmp_path: Path) -> None:
    report = _lose_a_head_that_is_kept_apart(AcksUnreplicated, tmp_path / "over")
    assert report.num_lost > 0
    assert "was acknowledged, and a shard has counted" in report.findings.lost[0].reason


def _repeat_work(kind: type[ServerState], begun: Path) -> Any:
    """Of 20 batches of 5 samples, worker 0 gives one twice, as whoever was slow, and taken for dead, may do."""

    def work(store: wl.Store) -> None:
        store.create("w", np.zeros(12_000, np.float32), update="add", consistency=wl.Eventual())
        is_done = store.rank > 0
        for number, batch in enumerate(store.batches(100, batch_size=5)):
            while number and not begun.exists():
                time.sleep(0.01)
            for _ in range(1 if is_done else 2):
                store.push("w", np.ones(12_000, np.float32), completes=batch).wait()
            is_done = True

    with _cluster(servers=2, _server_state=kind) as cluster:
        with wl.Chaos(cluster, delay=0.001, seed=1) as chaos:
            waiting = _flagged(begun, lambda: chaos._session.firing.began_at)
            cluster.run(work)
            waiting.join()
        value = cluster.store().pull("w")
        assert value.min() == value.max() == (20 if kind is ServerState else 21)
        return chaos.report


def test_work_that_is_done_twice_counts_once_and_no_sample_is_repeated(tmp_path: Path) -> None:
    report = _repeat_work(ServerState, tmp_path / "begun")
    assert report.ok, report.to_dict()
    assert report.to_dict()["samples"] == {"repeated": 0, "missed": 0, "total": 100}


def test_counting_work_twice_turns_the_report_red_though_no_push_counts_twice(tmp_path: Path) -> None:
    report = _repeat_work(CountsLeasesAgain, tmp_path / "begun")
    assert report.to_dict()["samples"] == {"repeated": 5, "missed": 0, "total": 100}
    assert (report.num_lost, report.num_twice) == (0, 0)
    assert report.reason == "5 samples repeated, 0 missed"
    assert report.status == 1
