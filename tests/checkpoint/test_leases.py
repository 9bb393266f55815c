"""Leased work and checkpoints: what a checkpoint counts is done, and nothing else is."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import windlass as wl
from windlass.checkpoint import Reader

SIZE, BATCH, WIDTH = 60, 5, 40
CHUNK_BYTES = 4096  # five slots a key
CONSISTENCIES = [wl.Sequential(), wl.Bounded(2), wl.Eventual()]


def count(store, epochs, consistency, stop_at=None, path=None, name="train"):
    """Counts every sample, in a row of each key; saves and stops in the middle if told to."""
    for key in ("seen", "too"):
        store.create(key, np.zeros((SIZE, WIDTH), np.int64), update="add", consistency=consistency)
    for done, batch in enumerate(store.batches(SIZE, batch_size=BATCH, epochs=epochs, name=name), 1):
        mine = np.zeros((SIZE, WIDTH), np.int64)
        mine[batch.indices] = 1
        for task in [store.push(key, mine, completes=batch) for key in ("seen", "too")]:
            task.wait()
        if done == stop_at:
            if store.rank == 0:
                store.save(path, name="half")
            return None
    found = [store.pull(key) for key in ("seen", "too")]
    assert all((value == value[:, :1]).all() for value in found)
    return [value[:, 0].tolist() for value in found]


@pytest.mark.parametrize("consistency", CONSISTENCIES, ids=str)
@pytest.mark.parametrize("servers", [1, 3])
def test_named_work_goes_on_in_another_cluster_with_what_the_checkpoint_does_not_count(tmp_path, consistency, servers):
    with wl.Cluster(servers=2, workers=1, engine="threads", chunk_bytes=CHUNK_BYTES) as cluster:
        cluster.run(count, 3, consistency, 17, tmp_path)  # an epoch has 12 batches
    with wl.Cluster(servers=servers, workers=2, engine="threads", chunk_bytes=CHUNK_BYTES) as cluster:
        cluster.store().load(tmp_path)
        assert cluster.store().pull("seen").sum() == 17 * BATCH * WIDTH
        assert cluster.run(count, 3, consistency) == [[[3] * SIZE] * 2] * 2


def test_work_without_a_name_begins_anew_after_a_load(tmp_path):
    with wl.Cluster(servers=1, workers=1, engine="threads") as cluster:
        cluster.run(count, 1, wl.Sequential(), 7, tmp_path, None)
    with wl.Cluster(servers=1, workers=1, engine="threads") as cluster:
        cluster.store().load(tmp_path)
        [[seen, _]] = cluster.run(count, 1, wl.Sequential(), None, None, None)
        assert sum(seen) == 7 * BATCH + SIZE


def test_a_load_takes_back_what_was_counted_after_the_checkpoint_in_the_same_cluster(tmp_path):
    with wl.Cluster(servers=2, workers=1, engine="threads") as cluster:
        cluster.run(count, 2, wl.Sequential(), 14, tmp_path)
        assert cluster.run(count, 2, wl.Sequential()) == [[[2] * SIZE] * 2]
        assert cluster.run(count, 2, wl.Sequential()) == [[[2] * SIZE] * 2]  # it is done, and stays so
        cluster.store().load(tmp_path)
        assert cluster.run(count, 2, wl.Sequential()) == [[[2] * SIZE] * 2]


def save_then_kill(store, victim, folder):
    store.create("seen", np.zeros(SIZE, np.int64), update="add")
    for batch in store.batches(SIZE, batch_size=BATCH, epochs=2):
        mine = np.zeros(SIZE, np.int64)
        mine[batch.indices] = 1
        store.push("seen", mine, completes=batch).wait()
        done, flag = int(store.pull("seen").sum()) // BATCH, f"{folder}/killed"
        if done == 9 and not os.path.exists(flag):
            store.save(f"{folder}/saved", name="half")
        if done == 15 and not os.path.exists(flag):
            open(flag, "w").close()
            os.kill(victim, signal.SIGKILL)
    return store.pull("seen").tolist()


def test_a_run_that_goes_back_to_a_checkpoint_counts_every_sample_once_an_epoch(tmp_path):
    with wl.Cluster(servers=1, workers=1, on_server_loss="restore") as cluster:
        victim = next(node.pid for node in cluster.nodes() if node.role == "server")
        assert cluster.run(save_then_kill, victim, str(tmp_path)) == [[2] * SIZE]
        assert os.path.exists(tmp_path / "killed")


def test_a_replica_of_what_was_loaded_knows_what_is_counted(tmp_path):
    with wl.Cluster(servers=2, workers=1, engine="threads") as cluster:
        cluster.run(count, 1, wl.Sequential(), 8, tmp_path)
    with wl.Cluster(servers=3, workers=2, replicas=1) as cluster:
        cluster.store().load(tmp_path)
        os.kill(next(node.pid for node in cluster.nodes() if node.role == "server"), signal.SIGKILL)
        assert cluster.run(count, 1, wl.Sequential()) == [[[1] * SIZE] * 2] * 2


def test_slots_that_were_cut_otherwise_count_what_all_of_them_do():
    from windlass.consistency import CountedBatches

    book = CountedBatches()
    book.restore(0, {"a": [4, [6, 7]], "b": [1, []]})
    assert book.dump() == {"a": [4, [6, 7]], "b": [1, []]}
    book.restore(1, {"a": [5, [7]]})
    assert book.dump() == {"a": [4, [7]]}
    book.restore(1, {})
    assert book.dump() == {}


@pytest.mark.parametrize("leases", [7, {"a": 3}, {"a": [-1, []]}, {"a": [0, ["x"]]}, {"a": [0, [-2]]}])
def test_leases_that_are_none_are_found_in_a_manifest(leases):
    from windlass.checkpoint.manifest import _are_leases

    assert not _are_leases(leases)
    assert _are_leases({"a": [3, [5, 6]]})


def test_what_a_checkpoint_counts_is_written_with_every_slot(tmp_path):
    with wl.Cluster(servers=2, workers=1, engine="threads", chunk_bytes=CHUNK_BYTES) as cluster:
        cluster.run(count, 1, wl.Sequential(), 4, tmp_path)
    reader = Reader(tmp_path)
    leases = [slot.meta["leases"] for key in reader.manifest.keys for slot in key.slots]
    assert len(leases) == 2 * 5
    assert all(one == {"train": [4, []]} for one in leases)
