"""Filters as a user declares them: what has arrived and what was kept back are what was pushed, on every transport."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import windlass as wl
from tests.behaviour.own_filter import Halves
from windlass import filters as wf

from .conftest import WORKERS

SIZE = 30_000  # two slots
STEPS = 4

DENSE = [
    [wf.SmallGradient(0.8)],
    [wf.RandomSkip(0.7)],
    [wf.RandomK(0.1)],
    [wf.TopK(0.05)],
    [wf.Cast("float16")],
    [wf.Cast("bfloat16")],
    [wf.Int8()],
    [wf.OneBit()],
    [wf.Zstd()],
    [wf.TopK(0.1), wf.Int8(), wf.Zstd()],
    [wf.SmallGradient(0.5), wf.RandomSkip(0.3), wf.Cast("bfloat16")],
    [Halves()],
]
ROWS = [
    [wf.IdCache()],
    [wf.IdCache(), wf.Int8()],
    [wf.IdCache(), wf.TopK(0.2), wf.Int8(), wf.Zstd()],
    [wf.SmallGradient(2.0)],
    [wf.RandomK(0.25), wf.Cast("float16")],
    [wf.OneBit(), wf.Zstd()],
]


def named(chain):
    return "+".join(type(each).__name__ for each in chain)


def kept_back(store, key):
    """What this worker's filters have kept of a key: its residual, as a checkpoint would have it."""
    return store._entries[key].key.filtering.sender.dump().residual


@pytest.mark.parametrize("filters", DENSE, ids=named)
def test_what_arrived_and_what_was_kept_back_are_what_was_pushed(cluster, key, filters):
    def work(store):
        store.create(key, np.zeros(SIZE, np.float32), update="add", filters=filters)
        rng, true = np.random.default_rng(store.rank), np.zeros(SIZE)
        for _ in range(STEPS):
            gradient = rng.standard_normal(SIZE).astype(np.float32)
            store.push(key, gradient)
            true += gradient
        for kept in kept_back(store, key):
            true[kept.lo : kept.lo + kept.values.size] -= kept.values
        return true, store.pull(key), store.status()["filters"][key]

    results = cluster.run(work)
    sent = sum(true for true, _, _ in results)
    for _, value, status in results:
        assert np.allclose(value, sent, atol=2e-4)
        assert [each["filter"] for each in status["filters"]] == [str(each) for each in filters]
        assert status["filters"][0]["before"] == 4 * SIZE * STEPS
        sizes = [status["filters"][0]["before"], *(each["after"] for each in status["filters"])]
        assert sizes == sorted(sizes, reverse=True) or type(filters[0]) is wf.RandomSkip


@pytest.mark.parametrize("filters", ROWS, ids=named)
def test_rows_that_arrived_and_rows_that_were_kept_back_are_what_was_pushed(cluster, key, filters):
    def work(store):
        store.create_table(key, dim=6, filters=filters)
        rng, true = np.random.default_rng(store.rank), np.zeros((400, 6))
        for step in range(STEPS):
            ids = np.arange(0, 400, 2) if step % 2 else rng.integers(0, 400, 300)
            rows = rng.standard_normal((ids.size, 6)).astype(np.float32)
            store.pushpull(key, rows, ids=ids)
            np.add.at(true, ids, rows)
        for kept in kept_back(store, key):
            true[kept.ids] -= kept.values.reshape(-1, 6)
        return true, store.pull(key, ids=np.arange(400))

    results = cluster.run(work)
    sent = sum(true for true, _ in results)
    for _, rows in results:
        assert np.allclose(rows, sent, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_filters_take_every_floating_type(cluster, key, dtype):
    def work(store):
        store.create(key, torch.zeros(1000, dtype=dtype), update="add", filters=[wf.TopK(0.5), wf.Int8(pull=True)])
        for _ in range(3):
            store.push(key, torch.linspace(-1, 1, 1000).to(dtype))
        return store.pull(key)

    line = torch.linspace(-1, 1, 1000).double() * 3 * WORKERS
    for got in cluster.run(work):
        assert got.dtype is dtype
        assert torch.allclose(got.double(), line, atol=2.5)  # what was kept back is less than that
        assert torch.corrcoef(torch.stack([got.double(), line]))[0, 1] > 0.97


@pytest.mark.parametrize(
    "filters", [[wf.Cast("bfloat16", pull=True)], [wf.Int8(pull=True)], [wf.Zstd(pull=True)]], ids=named
)
def test_the_answers_of_pulls_are_filtered_where_asked(cluster, key, filters):
    def work(store):
        store.create(key, np.zeros(SIZE, np.float32), update="add", filters=filters)
        store.create_table(f"{key}/rows", dim=5, filters=filters)
        ramp = np.arange(SIZE, dtype=np.float32) / SIZE
        store.push(key, ramp)
        store.push(f"{key}/rows", ramp.reshape(-1, 5), ids=np.arange(SIZE // 5))
        ids = np.arange(SIZE // 5)[::-3]
        return store.pull(key), store.pull(f"{key}/rows", ids=ids), store.pull(key, range=(SIZE // 2, SIZE // 2 + 10))

    ramp = np.arange(SIZE, dtype=np.float32) / SIZE * WORKERS
    for value, rows, part in cluster.run(work):
        assert np.allclose(value, ramp, atol=0.05)
        assert np.allclose(rows, ramp.reshape(-1, 5)[::-3], atol=0.05)
        assert np.allclose(part, ramp[SIZE // 2 : SIZE // 2 + 10], atol=0.05)


def test_an_id_list_is_sent_once_and_named_by_its_digest_from_then_on(cluster, key):
    def work(store):
        store.create_table(key, dim=1, filters=[wf.IdCache()])
        ids, rows = np.arange(5000), np.ones((5000, 1), np.float32)
        sizes = []
        for _ in range(3):
            store.pull(key, ids=ids)
            store.push(key, rows, ids=ids).wait()
            told = store.status()["filters"][key]["filters"][0]
            sizes.append((told["before"], told["after"]))
        return sizes, store.pull(key, ids=ids).min()

    for sizes, least in cluster.run(work):
        assert least == 3 * WORKERS
        (before, after), *_, (all_before, all_after) = sizes
        assert before == 5000 * 12
        assert all_before == 3 * before
        assert after <= 4 * 5000 + 1000  # the pull had told the ids
        assert all_after == 3 * after


class Shrinking(wl.Updater):
    def threshold(self, state):
        return 0.5

    def update(self, value, grad, state, step):
        moved = value - grad
        value[...] = np.sign(moved) * np.maximum(np.abs(moved) - 0.5, 0)


@pytest.mark.parametrize("update", ["add", "merge", wl.SGD(lr=0.1), wl.Adam()], ids=str)
def test_kkt_is_refused_where_the_updater_has_no_threshold(update):
    wanted = r"'w': KKT\(.*\) goes by the updater's threshold, and \w+ has none: use wl.FTRL"
    with wl.Store() as store:
        with pytest.raises(wl.UsageError, match=wanted):
            store.create("w", np.zeros(4, np.float32), update=update, filters=[wf.KKT()])
        with pytest.raises(wl.UsageError, match=wanted):
            store.create_table("w", dim=4, update=update, filters=["kkt"])
        assert not store.keys()


@pytest.mark.parametrize("update", [wl.FTRL(lr=0.5, l1=0.5), Shrinking()], ids=["ftrl", "own"])
def test_kkt_goes_by_the_threshold_of_any_updater_that_has_one(update):
    with wl.Store() as store:
        store.create("w", np.zeros(4, np.float32), update=update, filters=[wf.KKT()])
        store.create_table("rows", dim=4, update=update, filters=[wf.KKT()])
        store.pull("w")
        store.pull("rows", ids=[1])
        store.push("w", np.full(4, 0.25, np.float32)).wait()
        store.push("rows", np.full((1, 4), 0.25, np.float32), ids=[1]).wait()
        for name in ("w", "rows"):
            assert store.status()["filters"][name]["residual_norm"] == pytest.approx(0.5)


def test_kkt_with_ftrl_leaves_out_what_would_not_move_a_weight(cluster, key):
    """A small problem with an L1 penalty: the weights are as without the filter, and most gradients stay at home."""

    def work(store):
        for name, filters in ((f"{key}/all", []), (f"{key}/some", [wf.KKT(margin=1 / store.num_workers)])):
            store.create_table(name, dim=1, update=wl.FTRL(lr=0.5, l1=8.0), filters=filters)
        rng = np.random.default_rng(store.rank)
        ids = np.arange(200)
        true = np.where(ids < 20, 3.0, 0.0)
        for _ in range(25):
            noise = rng.standard_normal(200) * 0.02
            for name in (f"{key}/all", f"{key}/some"):
                weights = store.pull(name, ids=ids)[:, 0]
                gradient = (weights - true + noise).astype(np.float32)
                store.push(name, gradient[:, None], ids=ids)
        rows = [store.pull(name, ids=ids)[:, 0] for name in (f"{key}/all", f"{key}/some")]
        return *rows, store.status()["filters"][f"{key}/some"]["filters"][0]

    for everything, some, told in cluster.run(work):
        assert (everything[20:] == 0).all()
        assert (some[20:] == 0).all()
        assert (everything[:20] > 0.5).all()
        assert np.allclose(everything, some, atol=0.02)
        assert told["after"] < told["before"] / 3


def test_status_tells_the_bytes_and_the_norm_of_what_was_kept_back(cluster, key):
    def work(store):
        store.create(key, np.zeros(1000, np.float32), update="add", filters=[wf.TopK(0.1)])
        store.push(key, np.ones(1000, np.float32)).wait()
        store.barrier()
        return store.status()

    for rank, status in enumerate(cluster.run(work)):
        own = status["filters"][key]
        assert own["residual_norm"] == pytest.approx(np.sqrt(900))
        assert own["residual_bytes"] >= 4000
        told = [server["keys"][key] for server in status["servers"].values() if key in server["keys"]]
        [holder] = [one for one in told if one["filters"]]
        assert holder["filters"][0]["filter"] == "top_k"
        assert holder["filters"][0]["before"] == WORKERS * 4000
        assert holder["filters"][0]["after"] < WORKERS * 1000
        assert holder["residual_norms"][f"worker-{rank}"] == pytest.approx(np.sqrt(900))
        assert holder["lost_residual_norm"] == 0


def test_range_pushes_and_many_keys_go_through_filters(cluster, key):
    def work(store):
        dense, table = f"{key}/w", f"{key}/t"
        store.create(dense, np.zeros(SIZE, np.float32), update="add", filters=[wf.TopK(0.5)])
        store.create_table(table, dim=2, filters=[wf.IdCache(), wf.Cast("float16")])
        lo = SIZE // 2 - 50
        store.push(dense, np.repeat(np.float32([8, 0]), 50), range=(lo, lo + 100)).wait()
        ids = {table: [5, -5, 5]}
        store.push({dense: np.zeros(SIZE, np.float32), table: np.ones((3, 2), np.float32)}, ids=ids)
        both = store.pushpull({table: np.ones((3, 2), np.float32)}, ids=ids)
        return store.pull(dense, range=(lo, lo + 100)).sum(), both[table][:, 0].tolist()

    assert cluster.run(work) == [(400 * WORKERS, [4 * WORKERS, 2 * WORKERS, 4 * WORKERS])] * WORKERS


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ([wf.Zstd(), wf.Int8()], "Int8"),
        ([wf.Int8(), wf.TopK(0.1)], "TopK"),
        ([wf.IdCache()], "IdCache"),
        ([wf.Int8], "did you mean Int8"),
        ("int8", "filters= expects a list of filters"),
        ([3], "filters= expects"),
        (["no.such.module:Thing"], "no.such.module"),
    ],
)
def test_filters_that_do_not_fit_are_refused_when_they_are_declared(cluster, key, filters, text):
    def work(store):
        with pytest.raises(wl.UsageError, match=text):
            store.create(key, np.zeros(8, np.float32), update="add", filters=filters)
        return True

    assert all(cluster.run(work))


def test_lossy_filters_need_a_sum_of_floating_point_numbers():
    store = wl.Store()
    with pytest.raises(wl.UsageError, match="int64"):
        store.create("a", np.zeros(8, np.int64), update="add", filters=[wf.TopK(0.1)])
    with pytest.raises(wl.UsageError, match="max"):
        store.create("b", np.zeros(8, np.float32), reduce="max", update="merge", filters=[wf.Int8()])
    store.create("c", np.zeros(8, np.int64), reduce="max", update="merge", filters=[wf.Zstd()])
    assert store.pushpull("c", np.arange(8)).tolist() == list(range(8))


def test_a_push_that_is_not_finite_is_refused_by_filters_that_keep_what_they_do_not_send():
    store = wl.Store()
    store.create("w", np.zeros(4, np.float32), update="add", filters=[wf.Int8()])
    with pytest.raises(wl.UsageError, match="would stay in the residual for ever"):
        store.push("w", np.array([1, np.nan, 0, 0], np.float32))
    assert np.allclose(store.pushpull("w", np.ones(4, np.float32)), 1)


def test_a_filter_of_a_notebook_works_in_an_embedded_store():
    class Mine(wf.Filter):
        def encode(self, parcel):
            return parcel.pass_on(parcel.values.astype(np.int16))

        def decode(self, parcel):
            return parcel.give_back(parcel.values.astype(parcel.number))

    store = wl.Store()
    store.create("w", np.zeros(3, np.float32), update="add", filters=[Mine()])
    store.push("w", np.array([1.5, 0.5, 2], np.float32))
    assert store.pull("w").tolist() == [1, 0, 2]
    assert store.pushpull("w", np.array([0.5, 0.25, 0], np.float32)).tolist() == [2, 0, 2]
