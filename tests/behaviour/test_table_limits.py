"""Rows that come late, and rows that go: admission, least recently used, time to live. The same on every server."""

from __future__ import annotations

import contextlib
import time
from collections import Counter

import numpy as np
import pytest

import windlass as wl
from windlass.store.batch import route

from .conftest import WORKERS


def push(store, key, ids, times=1):
    """All workers push ones to these ids, so many times."""
    for _ in range(times):
        store.push(key, np.ones((len(ids), 2), np.float32), ids=ids)


def test_an_id_gets_its_row_with_its_nth_push_and_what_came_before_is_dropped(cluster, key):
    def work(store):
        table = store.create_table(key, dim=2, admit_after=3)
        push(store, key, [1, 2], times=2)
        before = (store.pull(key, ids=[1, 2]).max(), len(table), table.num_candidates)
        push(store, key, [2])
        push(store, key, [2])
        return before, store.pull(key, ids=[1, 2])[:, 0].tolist(), len(table), table.num_candidates

    assert cluster.run(work) == [((0, 0, 2), [0, 2 * WORKERS], 1, 1)] * WORKERS


def test_of_too_many_rows_the_least_recently_pushed_to_go(cluster, key):
    def work(store):
        table = store.create_table(key, dim=2, max_rows=100, slots=1)
        for lo in range(0, 100, 10):
            push(store, key, np.arange(lo, lo + 10))
        push(store, key, np.arange(10))
        store.pull(key, ids=np.arange(10, 20))  # to be pulled is no use
        push(store, key, np.arange(1000, 1010))
        kept = sorted(table)
        return len(kept) <= 100, set(range(10)) <= set(kept), set(range(1000, 1010)) <= set(kept), 10 in kept

    assert cluster.run(work) == [(True, True, True, False)] * WORKERS


def test_a_row_that_went_begins_anew(cluster, key):
    def work(store):
        store.create_table(key, dim=2, max_rows=1, slots=1, update=wl.Adagrad(lr=1.0), init=5.0)
        push(store, key, [1], times=3)
        push(store, key, [2])
        first = store.pull(key, ids=[1]).tolist()
        push(store, key, [1])
        return first, store.pull(key, ids=[1]).tolist()

    assert cluster.run(work) == [([[5, 5]], [[4, 4]])] * WORKERS


def test_a_row_goes_after_so_many_updates_without_a_push(cluster, key):
    def work(store):
        table = store.create_table(key, dim=2, ttl_updates=4, slots=1)
        push(store, key, [1, 2])
        push(store, key, [2], times=3)
        before = sorted(table)
        push(store, key, [2], times=3)
        return before, sorted(table)

    assert cluster.run(work) == [([1, 2], [2])] * WORKERS


def test_a_row_goes_after_so_many_seconds_without_a_push(cluster, key):
    def alone(store):
        table = store.create_table(key, dim=2, ttl_seconds=0.4, slots=1, consistency=wl.Eventual())
        if store.rank:
            return None
        push(store, key, [1, 2])
        before = sorted(table)
        for _ in range(7):
            time.sleep(0.1)
            push(store, key, [2])
        return before, sorted(table)

    assert cluster.run(alone)[0] == ([1, 2], [2])


@pytest.mark.parametrize("limit", [{"max_rows": 40}, {"ttl_updates": 3}, {"admit_after": 2}])
def test_replicas_keep_the_rows_that_their_head_keeps(limit):
    """The servers are asked one after the other: each is removed, and the next speaks for the table."""

    def work(store):
        store.create_table("emb", dim=2, slots=4, update=wl.Adagrad(lr=0.1), **limit)
        rng = np.random.default_rng(7)
        for _ in range(12):
            push(store, "emb", rng.integers(0, 120, 25))
        store.pull("emb", ids=[0])

    with wl.Cluster(servers=3, workers=2, replicas=2, engine="threads", timeout=20) as cluster:
        cluster.run(work)
        seen = []
        for name in ("server-0", "server-1"):
            seen.append(cluster.store().pull("emb", range=(0, 200)))
            cluster.remove_server(name)
        seen.append(cluster.store().pull("emb", range=(0, 200)))
    assert 0 < seen[0][0].size < 120
    for ids, rows in seen[1:]:
        assert np.array_equal(ids, seen[0][0])
        assert np.array_equal(rows, seen[0][1])


WAY = route(np.arange(50_000), 16)
LIGHT = np.concatenate([WAY.ids[WAY.bounds[slot] : WAY.bounds[slot] + 5] for slot in range(15)])
CROWD = np.concatenate([LIGHT, WAY.ids[WAY.bounds[15] :]])  # which the last slot has no room for
NO_ROUNDS = [wl.Bounded(2), wl.Eventual()]


def ones(ids):
    return np.ones((len(ids), 4), np.float32)


@pytest.mark.parametrize("consistency", NO_ROUNDS)
@pytest.mark.parametrize("call", ["push", "pushpull", "many", "filtered"])
def test_a_push_that_one_shard_has_no_room_for_is_taken_by_none(cluster, key, consistency, call):
    def work(store):
        filters = [wl.filters.IdCache()] if call == "filtered" else []
        table = store.create_table(key, dim=4, max_bytes=300_000, consistency=consistency, filters=filters)
        store.push(key, ones(LIGHT), ids=LIGHT).wait()
        store.barrier()
        before = store.pull(key, ids=LIGHT).max()
        store.barrier()
        calls = {
            "push": lambda: store.push(key, ones(CROWD), ids=CROWD).wait(),
            "pushpull": lambda: store.pushpull(key, ones(CROWD), ids=CROWD),
            "many": lambda: store.push({key: ones(CROWD)}, ids={key: CROWD}).wait(),
            "filtered": lambda: store.push(key, ones(CROWD), ids=CROWD).wait(),
        }
        with pytest.raises(wl.UsageError) as caught:
            calls[call]()
        store.barrier()
        counts = len(table), store.pull(key, ids=LIGHT).max() - before
        store.barrier()
        store.push(key, ones(LIGHT), ids=LIGHT).wait()  # what has its rows needs no room
        return str(caught.value), counts, store.version(key)

    for said, counts, version in cluster.run(work):
        assert said.startswith(f"'{key}' has taken nothing of this push: the table would outgrow max_bytes")
        assert counts == (LIGHT.size, 0)
        assert version > WORKERS


@pytest.mark.parametrize("consistency", NO_ROUNDS)
@pytest.mark.parametrize("options", [{}, {"admit_after": 2}])
def test_workers_that_fill_a_table_together_have_whole_pushes_in_it(cluster, key, consistency, options):
    """Each push is one of a worker's own ids, with some of every slot, and several are under way at once. With
    `admit_after` two workers push the same ids, and who comes second makes the row."""
    size, num = 160, 30

    def work(store):
        store.create_table(key, dim=4, max_bytes=120_000, consistency=consistency, **options)
        store.barrier()
        first = 0 if options else store.rank * size * num
        taken = []
        for lo in range(first, first + size * num, 3 * size):
            tasks = []
            for some in range(lo, lo + 3 * size, size):
                ids = np.arange(some, some + size)
                with contextlib.suppress(wl.UsageError):  # of an earlier push: this one was not made
                    tasks.append((some, store.push(key, ones(ids), ids=ids)))
            for some, task in tasks:
                with contextlib.suppress(wl.UsageError):
                    task.wait()
                    taken.append(some)
        return taken

    results = cluster.run(work)
    table = cluster.store().table(key)  # waits for nobody: a worker may have come when it was full, and pushed nothing
    times = Counter(some for taken in results for some in taken)
    rows = [some for some, count in times.items() if count >= options.get("admit_after", 1)]
    assert 0 < len(times) < num * (1 if options else WORKERS)  # it was full
    assert sorted(table) == sorted(id for some in rows for id in range(some, some + size))
    assert table.num_candidates == size * (len(times) - len(rows))


@pytest.mark.parametrize("consistency", [*NO_ROUNDS, wl.Sequential()])
def test_rows_that_one_shard_has_no_room_for_are_assigned_to_none_and_hold_no_room(cluster, key, consistency):
    driver = cluster.store()
    table = driver.create_table(key, dim=4, max_bytes=300_000, consistency=consistency)
    most = np.concatenate([WAY.ids[WAY.bounds[slot] :][:350] for slot in range(16)])
    with pytest.raises(wl.UsageError, match="has taken nothing of this push: the table would outgrow"):
        driver.assign(key, ones(CROWD), ids=CROWD)
    assert len(table) == 0
    driver.assign(key, ones(most), ids=most)
    assert len(table) == most.size
