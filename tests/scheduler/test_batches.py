"""store.batches(): each sample counts once an epoch, on real processes, whoever is killed."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import windlass as wl
from windlass.testing.havoc import Hand


def count_samples(store, size, batch_size, epochs, pause=0.0, late=None, **options):
    """Adds 1 for each sample, and each batch, that was worked on. After some batches a worker that comes later is
    waited for, which makes the file `late`."""
    if late is not None and store._client.state.is_late:
        late.touch()
    store.create("samples", np.zeros(size), update="add")
    store.create("batches", np.zeros(3), update="add")
    mine = 0
    for batch in store.batches(size, batch_size=batch_size, epochs=epochs, **options):
        seen = np.zeros(size)
        seen[batch.indices] += 1
        time.sleep(pause)
        for _ in range(6000 if mine == 10 and late is not None else 0):
            if not late.exists():
                time.sleep(0.01)
        store.push("samples", seen, completes=batch)
        store.pushpull("batches", np.ones(3), completes=batch)
        mine += 1
    return mine, store.pull("samples"), store.pull("batches")


def check(results, size, batch_size, epochs):
    batches = -(-size // batch_size) * epochs
    told = [one for one in results if not isinstance(one, wl.LostWorker)]
    for _, samples, batches in told:
        np.testing.assert_array_equal(samples, epochs)
        np.testing.assert_array_equal(batches, batches)
    return told


@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Bounded(2), wl.Eventual()])
def test_every_sample_counts_once_an_epoch(engine, consistency):
    with wl.Cluster(servers=2, workers=3, engine=engine, consistency=consistency) as cluster:
        told = check(cluster.run(count_samples, 1000, 70, 2), 1000, 70, 2)
        assert sum(mine for mine, *_ in told) >= 30  # of batches that two have done, one counts
        again = cluster.run(count_samples, 1000, 70, 1)  # a run's work is its own
        np.testing.assert_array_equal(again[0][1], 3)


def test_an_embedded_store_leases_work_too():
    store = wl.Store()
    _, samples, _ = count_samples(store, 10, 3, 2)
    assert samples.tolist() == [2] * 10


def test_the_order_of_samples_is_another_one_in_each_epoch_and_the_same_for_a_seed():
    orders = []
    for name in ("a", "b"):
        store = wl.Store()
        orders.append([batch.indices.tolist() for batch in store.batches(6, batch_size=3, epochs=2, seed=5, name=name)])
    first, second = np.concatenate(orders[0][:2]), np.concatenate(orders[0][2:])
    assert orders[0] == orders[1]
    assert sorted(first) == sorted(second) == list(range(6))
    assert first.tolist() != second.tolist()
    plain = [batch.indices.tolist() for batch in wl.Store().batches(5, batch_size=2, shuffle=False)]
    assert plain == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("on_loss", "consistency"), [("continue", wl.Sequential()), ("wait", wl.Sequential()),
                                                       ("continue", wl.Eventual())])  # fmt: skip
def test_nothing_is_missed_or_repeated_when_a_worker_a_server_and_the_manager_are_killed(on_loss, consistency):
    with wl.Cluster(
        servers=3, workers=3, replicas=1, consistency=consistency, on_worker_loss=on_loss, lease_seconds=2.0
    ) as cluster:
        killed = []

        def havoc():
            for name, updates in (("worker-1", 10), ("server-1", 20), ("manager", 30)):
                Hand(cluster, random.Random(0)).await_version("samples", updates)
                pid = next(node.pid for node in cluster.nodes() if node.name == name and node.state == "alive")
                os.kill(pid, signal.SIGKILL)
                killed.append(name)

        thread = threading.Thread(target=havoc)
        thread.start()
        results = cluster.run(count_samples, 4000, 40, 2, pause=0.01)
        thread.join()
        told = check(results, 4000, 40, 2)
        assert killed == ["worker-1", "server-1", "manager"], "the work was done before all were killed"
        assert len(told) == (3 if on_loss == "wait" else 2)
        if on_loss == "continue":
            assert isinstance(results[1], wl.LostWorker)
            assert "worker-1" in results[1].reason
            assert "SIGKILL" in results[1].reason


def test_a_worker_that_is_added_takes_its_part_of_the_work(tmp_path):
    with wl.Cluster(servers=1, workers=2) as cluster:
        added = []

        def add():
            Hand(cluster, random.Random(0)).await_version("samples", 3)
            added.append(cluster.add_worker())

        thread = threading.Thread(target=add)
        thread.start()
        results = cluster.run(count_samples, 3000, 20, 1, pause=0.01, late=tmp_path / "late")
        thread.join()
        assert added == ["worker-2"]
        told = check(results, 3000, 20, 1)
        assert len(told) == 3
        assert all(mine > 5 for mine, *_ in told)
        assert len(cluster.run(lambda store: store.rank)) == 3  # and stays


def together(store, size, batch_size, global_batch, dies):
    """The samples that each round's workers had between them."""
    store.create("round", np.zeros(1))
    sizes, mine = [], 0.0
    for batch in store.batches(size, batch_size=batch_size, global_batch=global_batch):
        if dies and store.rank == 1 and batch.number > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        mine += batch.weight * global_batch
        if batch.is_last:
            sizes.append(float(store.pushpull("round", np.full(1, mine), completes=batch)[0]))
            mine = 0.0
    return sizes


def test_the_global_batch_stays_the_same_when_a_worker_is_lost():
    with wl.Cluster(servers=1, workers=3, on_worker_loss="continue") as cluster:
        results = cluster.run(together, 600, 5, 30, True)
        sizes = results[0]
        short = [size for size in sizes if size != 30]
        assert len(short) <= 2, sizes  # the round in which it was lost, and perhaps the last
        assert sum(sizes) == 600


def rounds_of(store, size, leaver=None):
    """How many samples had been counted after each round that this worker had a part in. The leaver breaks off after
    its first. Who comes later lets the others make some steps before it asks for work."""
    store.create("seen", np.zeros(size), update="add")
    counted, mine = [], np.zeros(size)
    time.sleep(0.3 if store._client.state.is_late else 0)
    for batch in store.batches(size, batch_size=5, epochs=2, global_batch=20):
        time.sleep(0.002)
        mine[batch.indices] += 1
        if batch.is_last:
            counted.append(float(store.pushpull("seen", mine, completes=batch).sum()))
            mine = np.zeros(size)
            if store.rank == leaver:
                break
    return counted


@pytest.mark.timeout(60)
def test_who_leaves_the_loop_has_no_share_of_later_steps():
    with wl.Cluster(servers=1, workers=3) as cluster:
        counted = cluster.run(rounds_of, 200, 1)
    assert len(counted[1]) == 1
    sizes = np.diff([0.0, *sorted(set().union(*counted))])
    assert sum(sizes) == 400
    assert sum(sizes != 20) <= 2, sizes  # the step that had begun when it left, and the last one of that epoch


@pytest.mark.timeout(60)
def test_no_step_is_short_of_what_somebody_would_do_who_has_yet_to_come_in():
    with wl.Cluster(servers=1, workers=2) as cluster:

        def add():
            Hand(cluster, random.Random(0)).await_version("seen", 2)
            cluster.add_worker()

        thread = threading.Thread(target=add)
        thread.start()
        counted = cluster.run(rounds_of, 4000)
        thread.join()
    assert counted[2], "the third had a part in some rounds"
    assert sorted(set().union(*counted)) == [20.0 * step for step in range(1, 401)]


def test_a_worker_that_is_silent_for_its_lease_is_lost():
    def work(store):
        store.create("w", np.zeros(1), update="add")
        for step in range(40):
            if step == 5 and store.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            store.pushpull("w", np.ones(1))
        return float(store.pull("w")[0])

    with wl.Cluster(servers=1, workers=2, on_worker_loss="continue", worker_lease_seconds=1.0) as cluster:
        result, lost = cluster.run(work)
        assert isinstance(lost, wl.LostWorker)
        assert "was not heard of for 1 s" in lost.reason
        assert 45 <= result <= 46


def test_a_silent_workers_seat_is_taken_by_another():
    def work(store):
        store.create("w", np.zeros(1), update="add")
        for done, batch in enumerate(store.batches(80, batch_size=2)):
            if done == 5 and store.rank == 1 and not store._client.state.is_late:
                os.kill(os.getpid(), signal.SIGSTOP)
            store.pushpull("w", np.full(1, float(len(batch))), completes=batch)
        return float(store.pull("w")[0])

    with wl.Cluster(servers=1, workers=2, on_worker_loss="wait", worker_lease_seconds=1.0) as cluster:
        assert cluster.run(work) == [80, 80]


def test_pushes_that_complete_nothing_are_as_ever_and_nobody_waits_for_ever():
    def work(store):
        store.create("w", np.zeros(1), update="add")
        for _batch in store.batches(20, batch_size=1):
            store.push("w", np.ones(1))
        return float(store.pull("w")[0])

    with wl.Cluster(servers=1, workers=3, timeout=30) as cluster:
        assert cluster.run(work) == [20, 20, 20]


def test_batches_that_are_not_pushed_to_every_key_end_with_a_warning_not_never():
    store = wl.Store()
    for key in ("k", "j"):
        store.create(key, np.zeros(1), update="add")
    given = 0
    for batch in store.batches(6, batch_size=2, epochs=2):
        given += 1
        store.push("k", np.ones(1), completes=batch)
        if batch.epoch == 0:
            store.push("j", np.ones(1), completes=batch)
    assert store.pull("k")[0] == 6
    assert given < 20


def test_mistakes_are_told_in_words():
    store = wl.Store()
    store.create("w", np.zeros(2))
    for bad in ({"batch_size": 0}, {"batch_size": 2, "epochs": -1}, {"batch_size": 4, "global_batch": 6}):
        with pytest.raises(wl.UsageError, match="expects"):
            store.batches(10, **bad)
    with pytest.raises(wl.UsageError, match="completes expects a batch"):
        store.push("w", np.ones(2), completes=3)
    some = next(store.batches(10, batch_size=2, global_batch=4))
    with pytest.raises(wl.UsageError, match=r"not the last of its step: push once, when batch\.is_last"):
        store.push("w", np.ones(2), completes=some)
    next(store.batches(10, batch_size=5, name="mine"))
    with pytest.raises(wl.UsageError, match=r"'mine'.*was begun as 10 samples in batches of 5"):
        next(store.batches(10, batch_size=2, name="mine"))
    with pytest.raises(wl.UsageError, match="on_worker_loss expects"):
        wl.Cluster(on_worker_loss="cry")


def test_a_loop_that_is_left_early_gives_its_batches_back():
    def work(store):
        store.create("w", np.zeros(1), update="add")
        done = 0
        for batch in store.batches(60, batch_size=2):
            if store.rank == 0 and done == 3:
                break
            store.pushpull("w", np.full(1, float(len(batch))), completes=batch)
            done += 1
        return done, float(store.pull("w")[0])

    with wl.Cluster(servers=1, workers=2) as cluster:
        (few, _), (most, value) = cluster.run(work)
        assert few == 3
        assert few + most == 30
        assert value == 60
