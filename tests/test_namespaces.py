"""Two jobs on the same servers: each has members, ranks, keys, rounds and leased work of its own."""

import threading

import numpy as np
import pytest

import windlass as wl


def train(store, steps, value):
    store.create("w", np.zeros(4), update="add")
    for _ in range(steps):
        store.pushpull("w", np.full(4, value))
    samples = sum(len(batch) for batch in store.batches(40, batch_size=3))
    store.barrier()
    return store.rank, store.num_workers, store.keys(), float(store.pull("w")[0]), samples


def test_two_jobs_share_the_servers_and_do_not_meet():
    with wl.Cluster(servers=2, workers=2) as first, first.share("second", workers=3) as second:
        found = {}
        thread = threading.Thread(target=lambda: found.update(second=second.run(train, 5, 10.0)))
        thread.start()
        found["first"] = first.run(train, 20, 1.0)
        thread.join()
        assert [one[:4] for one in found["first"]] == [(rank, 2, ["w"], 40.0) for rank in range(2)]
        assert [one[:4] for one in found["second"]] == [(rank, 3, ["w"], 150.0) for rank in range(3)]
        assert [sum(one[4] for one in found[job]) for job in ("first", "second")] == [40, 40]
        with pytest.raises(ZeroDivisionError):
            second.run(lambda store: 1 / 0 if store.rank == 1 else store.barrier())
        assert first.run(train, 1, 1.0)[0][3] == 42, "the other job's failure is its own"
        names = set(first.store().status()["keys"])
        assert {"w", "second/w"} <= names
        assert [node.name for node in first.nodes() if node.name.startswith("second/")]


def test_what_a_job_may_not_do_to_servers_it_shares_is_told():
    with wl.Cluster() as first:
        for bad in ("", "a/b", 3):
            with pytest.raises(wl.UsageError, match="namespace expects"):
                first.share(bad)
        with first.share("second") as second:
            with pytest.raises(wl.UsageError, match="add one there"):
                second.add_server()
            with pytest.raises(wl.UsageError, match="a job in namespace 'second' already"):
                first.share("second")
            with pytest.raises(wl.UsageError, match="servers of its own"):
                second.share("third")


def test_a_job_loads_its_own_checkpoint_and_nobody_elses_values(tmp_path):
    with wl.Cluster(workers=1) as first, first.share("second") as second:
        for job, value in ((first, 1.0), (second, 7.0)):
            job.run(train, 1, value)
        path = second.store().save(tmp_path)
        for job in (first, second):
            job.run(train, 1, 100.0)
        first.store().load(path)
        assert first.store().pull("w")[0] == 7
        assert second.store().pull("w")[0] == 107
