"""Rows that come late, and rows that go: admission, least recently used, time to live. The same on every server."""

from __future__ import annotations

import time

import numpy as np
import pytest

import windlass as wl

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
