"""Tables beside what else a cluster does: leased work, jobs that share servers, chaos."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import windlass as wl
from windlass import filters as wf

NUM_IDS = 90


def leased(store: wl.Store, consistency: Any) -> float:
    """Each sample is an id, and pushes 1 to its row: of every worker, of every epoch."""
    store.create_table("seen", dim=1, consistency=consistency)
    store.create_table("filtered", dim=1, consistency=consistency, filters=[wf.IdCache(), wf.Zstd()])
    for batch in store.batches(NUM_IDS, batch_size=7, epochs=2):
        ids, ones = batch.indices, np.ones((len(batch.indices), 1), np.float32)
        store.push({"seen": ones, "filtered": ones}, ids={"seen": ids, "filtered": ids}, completes=batch)
    store.barrier()
    return float(store.pull("seen", ids=[0])[0, 0])


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Eventual()])
def test_every_sample_of_leased_work_is_counted_once_an_epoch_in_a_table(consistency):
    with wl.Cluster(servers=2, workers=3, engine="threads", timeout=20) as cluster:
        cluster.run(leased, consistency)
        for name in ("seen", "filtered"):
            rows = cluster.store().pull(name, ids=np.arange(NUM_IDS + 1))
            assert (rows[:-1] == 2).all()
            assert len(cluster.store().table(name)) == NUM_IDS


def job(store: wl.Store, dim: int, steps: int) -> tuple[int, float]:
    table = store.create_table("emb", dim=dim, init=wl.Normal(1.0))
    start = store.pull("emb", ids=[5]).copy()
    for _ in range(steps):
        store.push("emb", np.ones((1, dim), np.float32), ids=[5])
    return len(table), float((store.pull("emb", ids=[5]) - start).round().max())


def test_tables_of_jobs_that_share_servers_do_not_meet():
    with wl.Cluster(workers=2) as first, first.share("second", workers=3) as second:
        found: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: found.update(second=second.run(job, 5, 4)))
        thread.start()
        found["first"] = first.run(job, 3, 2)
        thread.join()
        assert {one[1] for one in found["first"]} == {4}
        assert {one[1] for one in found["second"]} == {12}
        assert (len(first.store().table("emb")), len(second.store().table("emb"))) == (1, 1)
        assert (first.store().table("emb").dim, second.store().table("emb").dim) == (3, 5)


def disturbed(store: wl.Store) -> int:
    """Push until the driver says that it is enough; worker 0 hears it, and tells the others."""
    store.create_table("rounds", dim=2, filters=[wf.IdCache(), wf.Cast("float16")])
    store.create_table("loose", dim=2, consistency=wl.Eventual())
    store.create("enough", np.zeros(1, np.float32), reduce="max")
    store.create("told", np.zeros(1, np.float32), update="add", consistency=wl.Eventual())
    rng, pushes = np.random.default_rng(store.rank), 0
    while True:
        ids = rng.integers(0, 2000, 400)
        ones = np.ones((400, 2), np.float32)
        store.push("loose", ones, ids=ids)
        store.pushpull("rounds", ones, ids=ids)
        pushes += 1
        is_told = store.rank == 0 and store.pull("told")[0] > 0
        if store.pushpull("enough", np.full(1, is_told, np.float32))[0]:
            store.barrier()
            return pushes


def tell_when_done(cluster: wl.Cluster, chaos: wl.Chaos) -> None:
    assert chaos.wait(60.0)
    cluster.store().assign("told", np.ones(1, np.float32))


def test_the_books_of_chaos_balance_with_tables_and_filters():
    options = {"servers": 3, "workers": 2, "replicas": 1, "lease_seconds": 1.0, "timeout": 20.0, "chaos": True}
    with wl.Cluster(**options) as cluster:
        with wl.Chaos(cluster, seed=3, seconds=1.5, kill=["server:1"], drop=0.01, every=0.8) as chaos:
            telling = threading.Thread(target=tell_when_done, args=(cluster, chaos))
            telling.start()
            pushes = cluster.run(disturbed)
            telling.join()
        driver = cluster.store()
        for name in ("rounds", "loose"):
            assert driver.pull(name, range=(0, 2000))[1][:, 0].sum() == 400 * sum(pushes)
    report = chaos.report
    assert report.ok, report.reason
    assert (report.num_lost, report.num_twice) == (0, 0)
    assert report.findings.num_acked > 2 * sum(pushes)
    assert {fault.what for fault in report.faults} == {"kill"}


def test_whether_an_id_is_in_a_table_is_asked_of_one_server_only() -> None:
    def work(store: wl.Store) -> list[bool]:
        store.create_table("t", dim=1, consistency=wl.Eventual())
        ids = np.arange(40)
        store.push("t", np.ones((40, 1), np.float32), ids=ids).wait()
        table, entry, state = store.table("t"), store._entries["t"], store._client.state
        slots = [int(np.flatnonzero(np.diff(entry.route(np.array([id])).bounds))[0]) for id in range(80)]
        holders = {id: entry.key.head(entry.key.shard_of(slot)) for id, slot in enumerate(slots)}
        asleep, awake = (who for who, node in state.nodes.items() if node.role == "server")
        assert set(holders.values()) == {asleep, awake}
        os.kill(state.nodes[asleep].pid, signal.SIGSTOP)
        try:
            return [(id in table) == (id < 40) for id, who in holders.items() if who == awake]
        finally:
            os.kill(state.nodes[asleep].pid, signal.SIGCONT)

    with wl.Cluster(servers=2, lease_seconds=60.0, timeout=5.0) as cluster:
        (found,) = cluster.run(work)
    assert len(found) > 20
    assert all(found)
