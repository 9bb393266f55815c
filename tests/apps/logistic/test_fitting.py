from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import windlass as wl
from tests.apps.logistic.data import least_objective, make, objective
from windlass.apps import logistic
from windlass.apps.logistic.proximal import BlockProximal, Proximal

ROWS = make()
L1 = 2.0


@pytest.fixture(scope="module")
def cluster():
    with wl.Cluster(engine="threads", servers=2, workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def least():
    return {intercept: least_objective(ROWS, L1, intercept=intercept) for intercept in (False, True)}


def fit(cluster, **plan):
    def work(store):
        return logistic.fit(store, ROWS.part(store.rank, store.num_workers), logistic.Plan(l1=L1, **plan))

    return cluster.run(work)


def true_objective(model):
    """Of the weights alone, whatever the workers' margins say."""
    weights = np.zeros(int(ROWS.ids.max()) + 1)
    weights[model.ids] = model.weights
    return objective(ROWS, weights, model.bias, L1)


@pytest.mark.parametrize("algorithm", [1, 3])
@pytest.mark.parametrize("intercept", [False, True])
def test_every_worker_gets_a_model_with_the_least_objective(cluster, least, algorithm, intercept):
    first, second = fit(cluster, algorithm=algorithm, intercept=intercept)
    model = first.model
    assert model.objective == pytest.approx(least[intercept], rel=1e-4)
    assert np.array_equal(model.weights, second.model.weights)
    assert model.bias == second.model.bias
    assert (model.bias == 0) == (not intercept)
    assert true_objective(model) == pytest.approx(model.objective, rel=1e-5)
    assert 0 < model.ids.size <= ROWS.ids.max()
    assert first.history[-1].nonzeros == model.ids.size
    assert first.census.rows == 400


@pytest.mark.parametrize("algorithm", [1, 3])
@pytest.mark.parametrize("consistency", [wl.Bounded(2), wl.Eventual()])
def test_without_rounds_it_comes_to_the_same(cluster, least, algorithm, consistency):
    first, second = fit(cluster, algorithm=algorithm, consistency=consistency)
    assert true_objective(first.model) == pytest.approx(least[True], rel=1e-4)
    assert true_objective(first.model) == pytest.approx(first.model.objective, rel=1e-4)
    assert np.array_equal(first.model.weights, second.model.weights)
    assert first.model.bias == second.model.bias


@pytest.mark.parametrize("algorithm", [1, 3])
@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Eventual()])
def test_passes_at_the_end_of_the_way_do_not_leave_it_again(cluster, least, algorithm, consistency):
    """Leads there are those of rounding errors, which must not add up to something that looks like a way down."""
    passes = {1: 800, 3: 150}[algorithm]
    model = fit(cluster, algorithm=algorithm, consistency=consistency, tolerance=0.0, max_passes=passes)[0].model
    assert model.objective == pytest.approx(true_objective(model), rel=1e-6)
    assert model.objective == pytest.approx(least[True], rel=1e-5)


@pytest.mark.parametrize("update", [Proximal(), BlockProximal()], ids=lambda update: type(update).__name__)
def test_only_the_first_step_of_a_turn_begins_ahead(update):
    """Where every worker's push is a step of its own, the lead is taken once, as where all of them are one."""
    store, size = wl.Store(), 1 if isinstance(update, Proximal) else 2  # the latter has the second derivative beside it
    store.create("w", np.zeros(size, np.float32), update=update, consistency=wl.Eventual())
    found = [
        float(store.pushpull("w", np.array(change[:size], np.float32), hyper={"turn": turn, "lead": 2})[0])
        for turn, change in ((1, [-1, 1]), (2, [0, 0]), (3, [1, 0]), (3, [0, 0]), (4, [0, 0]))
    ]
    assert found == [1, 2, 4, 4, 8]


@pytest.mark.parametrize("delay", [1, 3])
def test_blocks_may_be_under_way_while_the_next_is_computed(cluster, least, delay):
    fitted = fit(cluster, delay=delay)[0]
    assert fitted.model.objective == pytest.approx(least[True], rel=1e-4)


def test_sequential_fits_repeat_bit_for_bit(cluster):
    first, again = fit(cluster, seed=3)[0], fit(cluster, seed=3)[0]
    assert np.array_equal(first.model.weights, again.model.weights)
    assert [each.objective for each in first.history] == [each.objective for each in again.history]


def test_the_objective_falls_in_every_pass_but_for_rounding(cluster):
    history = fit(cluster)[0].history
    assert history[0].objective == pytest.approx(len(ROWS) * np.log(2))
    assert all(b.objective <= a.objective * (1 + 1e-6) for a, b in pairwise(history))


def test_blocks_get_there_with_less_than_half_of_the_bytes(cluster, least):
    enough = least[True] * 1.0001

    def traffic(algorithm):
        history = fit(cluster, algorithm=algorithm)[0].history
        return next(each.pushed_bytes + each.pulled_bytes for each in history if each.objective <= enough)

    assert traffic(3) < traffic(1) / 2


def test_filters_leave_out_ids_that_servers_know_and_what_cannot_move_a_weight(cluster):
    told = []

    class Spy:
        """Stands before a store, and looks at what its filters did before the keys are deleted."""

        def __init__(self, store):
            self._store = store

        def __getattr__(self, name):
            return getattr(self._store, name)

        def pull(self, *args, **kwargs):
            told.append(self._store.status()["filters"]["logistic/weights"]["filters"])
            return self._store.pull(*args, **kwargs)

    def work(store):
        logistic.fit(Spy(store), ROWS.part(store.rank, store.num_workers), logistic.Plan(l1=L1))

    cluster.run(work)
    for cache, kkt in told:
        rows = cache["before"] // 16  # 8 bytes of id, two floats
        assert cache["after"] < 8 * rows + 8 * rows / 4  # few of the ids
        assert kkt["after"] < kkt["before"]


def test_a_penalty_above_every_gradient_leaves_the_bias_alone(cluster):
    def work(store):
        return logistic.fit(store, ROWS.part(store.rank, store.num_workers), logistic.Plan(l1=1e6))

    model = cluster.run(work)[0].model
    positive = ROWS.positive / len(ROWS)
    assert model.ids.size == 0
    assert model.bias == pytest.approx(np.log(positive / (1 - positive)), rel=1e-3)


def test_any_int64_may_be_a_features_id(cluster):
    far = logistic.Rows(ROWS.starts, (1 << 62) - ROWS.ids * 1_000_003, ROWS.values, ROWS.labels)

    def work(store):
        return logistic.fit(store, far.part(store.rank, store.num_workers), logistic.Plan(l1=L1))

    fitted = cluster.run(work)[0]
    assert fitted.model.objective == pytest.approx(least_objective(ROWS, L1, intercept=True), rel=1e-4)
    assert set(fitted.model.ids.tolist()) <= set(far.ids.tolist())


def test_a_worker_without_examples_takes_part(cluster, least):
    def work(store):
        mine = ROWS if store.rank else ROWS.take(0, 0)
        return logistic.fit(store, mine, logistic.Plan(l1=L1))

    assert cluster.run(work)[0].model.objective == pytest.approx(least[True], rel=1e-4)


@pytest.mark.parametrize("algorithm", [1, 3])
def test_one_process_is_enough(least, algorithm):
    with wl.Store() as store:
        fitted = logistic.fit(store, ROWS, logistic.Plan(l1=L1, algorithm=algorithm))
        assert store.keys() == []
    assert fitted.model.objective == pytest.approx(least[True], rel=1e-4)


def test_without_a_penalty_no_weight_is_0(cluster):
    def work(store):
        mine = ROWS.part(store.rank, store.num_workers)
        return logistic.fit(store, mine, logistic.Plan(l1=0.0, max_passes=30))

    fitted = cluster.run(work)[0]
    assert fitted.model.ids.size == np.unique(ROWS.ids).size


@pytest.mark.parametrize(
    ("rows", "plan", "text"),
    [
        (ROWS.take(0, 0), {}, "no worker has any"),
        (ROWS.take(0, 1), {}, "all labelled"),
        (ROWS, {"l1": -1.0}, "l1 must be a finite number"),
        (ROWS, {"algorithm": 2}, "algorithm 1 or 3"),
        (ROWS, {"algorithm": 1, "delay": 1}, "no blocks"),
        (ROWS, {"delay": -1}, "delay must be"),
    ],
)
def test_what_cannot_be_fitted_is_said(rows, plan, text):
    store = wl.Store()
    with pytest.raises(wl.UsageError, match=text):
        logistic.fit(store, rows, logistic.Plan(**plan))


def test_algorithm_1_says_that_it_cannot_keep_a_weight_for_every_large_id():
    far = logistic.Rows(ROWS.starts, ROWS.ids + (1 << 40), ROWS.values, ROWS.labels)
    with pytest.raises(wl.UsageError, match="take algorithm 3"):
        logistic.fit(wl.Store(), far, logistic.Plan(algorithm=1))
