"""Sketches keep their bounds, whoever filled them; shortest paths are the shortest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windlass as wl
from windlass.apps.sketch import CountMin, Edges, HyperLogLog, dijkstra, random_edges, shortest_paths, zipf_ids

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=200)


def array(ids):
    return np.array(ids, np.int64)


@pytest.fixture(scope="module")
def cluster():
    with wl.Cluster(servers=2, workers=2, engine="threads") as cluster:
        yield cluster


# --- CountMin ---------------------------------------------------------------------------------------------------------


@given(IDS, st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_an_estimate_is_never_below_the_count(ids, seed):
    sketch = CountMin(epsilon=0.3, delta=0.3, seed=seed)
    sketch.insert(array(ids))
    assert sketch.total == len(ids)
    assert (sketch.estimate(array(ids)) >= [ids.count(each) for each in ids]).all()
    assert CountMin(epsilon=1e-6).estimate(array(ids)).sum() == 0


@given(
    epsilon=st.sampled_from([0.02, 0.05, 0.2]),
    delta=st.sampled_from([0.3, 0.1, 0.02]),
    share=st.floats(0.5, 1),
    first=st.integers(-(2**62), 2**62),
    step=st.sampled_from([1, 3, 64, 2**32, 2**40 + 1]),
)
@settings(max_examples=15, deadline=None)
def test_at_most_delta_of_all_estimates_are_beyond_epsilon(epsilon, delta, share, first, step):
    """Against Markov's inequality where it is tightest: some ids each have just too much to share a place with."""
    heavy = max(1, int(share / epsilon))
    ids = array([(first + i * step + 2**63) % 2**64 - 2**63 for i in range(heavy + 400)])
    times = np.ones(ids.size, np.int64)
    times[:heavy] = 400 * 1000 // heavy
    beyond = []
    for seed in range(150):
        sketch = CountMin(epsilon=epsilon, delta=delta, seed=seed)
        sketch.insert(ids, times)
        beyond.append((sketch.estimate(ids) - times > sketch.error).mean())
    assert np.mean(beyond) <= delta


def test_a_row_errs_in_at_most_one_of_e_and_two_rows_at_once_in_the_square_of_that():
    ids = np.arange(419)
    times = np.where(ids < 19, 20_000, 1)
    beyond = {1: [], 2: []}
    for depth, found in beyond.items():
        for seed in range(200):
            sketch = CountMin(epsilon=0.05, delta=0.36, seed=seed)
            sketch.counts = sketch.counts[:depth]
            sketch.insert(ids, times)
            found.append((sketch.estimate(ids) - times > sketch.error).mean())
    one, two = np.mean(beyond[1]), np.mean(beyond[2])
    assert 0.2 < one < 1 / np.e  # so one row would not do for such a delta, and the test above can fail
    assert two == pytest.approx(one**2, rel=0.25)


@given(IDS, IDS)
@settings(max_examples=20, deadline=None)
def test_pushed_sketches_add_up_to_the_sketch_of_all_ids(one, two):
    whole, part = CountMin(epsilon=0.01), CountMin(epsilon=0.01)
    whole.insert(array(one + two))
    with wl.Store() as store:
        part.create(store, "counts")
        for ids in (one, two):
            part.insert(array(ids))
            part.push(store, "counts")
            assert part.total == 0
        part.create(store, "counts")
        merged = part.pull(store, "counts")
    assert np.array_equal(merged.counts, whole.counts)


def test_workers_count_together(cluster):
    def work(store):
        sketch = CountMin(epsilon=1e-3)
        sketch.create(store, "counts")
        for part in range(3):
            sketch.insert(zipf_ids(5000, num_ids=1000, seed=(store.rank, part)))
            sketch.push(store, "counts")
        return sketch.pull(store, "counts").counts

    expected = CountMin(epsilon=1e-3)
    for rank in range(2):
        for part in range(3):
            expected.insert(zipf_ids(5000, num_ids=1000, seed=(rank, part)))
    for counts in cluster.run(work):
        assert np.array_equal(counts, expected.counts)


def test_a_sketch_of_another_seed_is_refused(cluster):
    def work(store, make):
        make(0).create(store, "seeds")
        store.barrier()
        make(1).create(store, "seeds")

    for make in (lambda seed: CountMin(seed=seed), lambda seed: HyperLogLog(seed=seed)):
        with wl.Store() as store, pytest.raises(wl.UsageError, match="'seeds' was made with another seed"):
            work(store, make)
    with pytest.raises(wl.UsageError, match="another seed"):
        cluster.run(work, lambda seed: HyperLogLog(seed=seed))


def test_times_count_an_id_so_often():
    sketch = CountMin()
    sketch.insert([7, -7, 7], times=[2, 0, 40])
    assert sketch.estimate([7, -7, 8]).tolist() == [42, 0, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: CountMin(epsilon=0), "epsilon must be between 0 and 1"),
        (lambda: CountMin(delta=1), "delta must be between 0 and 1"),
        (lambda: CountMin(epsilon=1e-12), "epsilon must be at least 6.3e-10"),
        (lambda: CountMin().insert([1.5]), "ids must be int64"),
        (lambda: CountMin().insert([[1]]), "ids must be one-dimensional"),
        (lambda: CountMin().insert([1, 2], times=[1]), "times must be 2 whole numbers"),
        (lambda: CountMin().insert([1], times=[-1]), "must not be negative"),
        (lambda: HyperLogLog(precision=3), "precision must be a whole number from 4 to 24"),
        (lambda: HyperLogLog().insert(["a"]), "ids must be int64"),
        (lambda: Edges(2, array([0]), array([2]), np.ones(1)), "nodes are from 0 to 1"),
        (lambda: Edges(2, array([0]), array([1]), -np.ones(1)), "not negative"),
        (lambda: Edges(2, array([0]), array([1]), np.array([np.nan])), "must be numbers"),
        (lambda: Edges(2, array([0]), array([1, 0]), np.ones(1)), "a source, a target and a length"),
        (lambda: Edges(2, np.ones(1), array([1]), np.ones(1)), "whole number for each edge, got float64"),
    ],
)
def test_bad_input_is_told(call, text):
    with pytest.raises(wl.UsageError, match=text):
        call()


# --- HyperLogLog ------------------------------------------------------------------------------------------------------


@given(
    count=st.integers(0, 30) | st.integers(30, 100_000),
    first=st.integers(-(2**62), 2**62),
    step=st.sampled_from([1, 2, 1024, 2**31]),
    seed=st.integers(0, 1000),
    precision=st.sampled_from([8, 10, 12]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_an_estimate_is_near_the_number_of_different_ids(count, first, step, seed, precision):
    sketch = HyperLogLog(precision=precision, seed=seed)
    sketch.insert(array([(first + i * step + 2**63) % 2**64 - 2**63 for i in range(count)]))
    assert abs(sketch.estimate() - count) <= 4 * sketch.standard_error * count


def test_estimates_have_the_standard_error_and_no_bias():
    for count in (100, 1500, 20_000):
        off = []
        for seed in range(200):
            sketch = HyperLogLog(precision=9, seed=seed)
            sketch.insert(np.arange(count))
            off.append(sketch.estimate() / count - 1)
        assert np.std(off) < 1.2 * sketch.standard_error
        assert abs(np.mean(off)) < 4 * sketch.standard_error / np.sqrt(200)


def test_full_registers_are_counted_on():
    sketch = HyperLogLog(precision=4)
    sketch.registers[:] = 61
    assert sketch.estimate() == np.inf
    sketch.registers[:8] = 60
    assert 1e18 < sketch.estimate() < 1e20


@given(IDS, IDS)
@settings(max_examples=20, deadline=None)
def test_merged_registers_are_those_of_all_ids_and_repeating_changes_nothing(one, two):
    whole, parts = HyperLogLog(precision=6), [HyperLogLog(precision=6) for _ in range(2)]
    whole.insert(array(one + two))
    with wl.Store() as store:
        for part, ids in zip(parts, (one, two), strict=True):
            part.create(store, "ids")
            for _ in range(2):
                part.insert(array(ids))
                part.push(store, "ids")
        merged = parts[0].pull(store, "ids")
    assert np.array_equal(merged.registers, whole.registers)
    assert "about 0 ids" in repr(HyperLogLog())


def test_workers_see_the_different_ids_of_all(cluster):
    def work(store):
        sketch = HyperLogLog(precision=12)
        sketch.create(store, "ids")
        sketch.insert(np.arange(6000) + 4000 * store.rank)
        sketch.push(store, "ids")
        return sketch.pull(store, "ids").estimate()

    first, second = cluster.run(work)
    assert first == second == pytest.approx(10_000, rel=0.05)


# --- shortest paths ---------------------------------------------------------------------------------------------------


@given(nodes=st.integers(1, 12), edges=st.integers(0, 40), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_both_ways_find_what_min_plus_powers_of_the_matrix_say(nodes, edges, seed):
    graph = random_edges(nodes, edges, seed=seed)
    matrix = np.full((nodes, nodes), np.inf)
    np.minimum.at(matrix, (graph.sources, graph.targets), graph.lengths)
    expected = np.where(np.arange(nodes) == 0, 0.0, np.inf)
    for _ in range(nodes):
        expected = np.minimum(expected, (expected[:, None] + matrix).min(axis=0))
    assert np.array_equal(dijkstra(graph, 0), expected)
    with wl.Store() as store:
        assert np.array_equal(shortest_paths(store, graph, 0).distances, expected)


def test_workers_that_have_parts_of_the_edges_find_the_same(cluster):
    graph = random_edges(2000, 9000)

    def work(store):
        return shortest_paths(store, graph.part(store.rank, store.num_workers), 5)

    first, second = cluster.run(work)
    assert np.array_equal(first.distances, dijkstra(graph, 5))
    assert np.array_equal(second.distances, first.distances)
    assert 2 < first.rounds == second.rounds < 50


def test_a_line_that_goes_to_and_fro_between_workers_takes_a_round_for_each_node(cluster):
    nodes = np.arange(20)
    order = np.argsort(nodes % 2, kind="stable")  # even numbers are the first worker's
    graph = Edges(20, np.argsort(order)[nodes[:-1]], np.argsort(order)[nodes[1:]], np.ones(19))

    def work(store):
        return shortest_paths(store, graph.part(store.rank, 2), 0, key="line")

    for found in cluster.run(work):
        assert found.distances[np.argsort(order)].tolist() == list(range(20))
        assert found.rounds == 20


def test_a_key_with_distances_from_another_node_is_refused():
    graph = random_edges(50, 200)
    with wl.Store() as store:
        shortest_paths(store, graph, 0)
        with pytest.raises(wl.UsageError, match="'distances' has distances from another node; use another key"):
            shortest_paths(store, graph, 1)
        with pytest.raises(wl.UsageError, match="nodes are from 0 to 49"):
            shortest_paths(store, graph, 50)
