"""What tables mean to the one who pushes to them and pulls from them, on every transport."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import windlass as wl

from .conftest import WORKERS
from .reference import Reference

IDS = np.array([0, -1, 7, 2**63 - 1, -(2**63), 7, 123_456_789_012], np.int64)
TOTAL = sum(range(1, WORKERS + 1))


def test_any_int64_is_an_id_and_rows_of_the_same_id_are_reduced_first(cluster, key):
    def work(store):
        store.create_table(key, dim=3)
        rows = np.arange(21, dtype=np.float32).reshape(7, 3) * (store.rank + 1)
        store.push(key, rows, ids=IDS)
        return store.pull(key, ids=IDS), len(store.table(key))

    base = np.arange(21, dtype=np.float32).reshape(7, 3)
    base[2] = base[5] = base[2] + base[5]
    for rows, count in cluster.run(work):
        assert np.array_equal(rows, base * TOTAL)
        assert count == 6


def test_a_row_that_nobody_pushed_to_is_pulled_as_it_would_start_and_not_made(cluster, key):
    def work(store):
        table = store.create_table(key, dim=4, init=wl.Constant(0.5))
        first = table.pull(ids=IDS)
        count = len(table)
        store.barrier()
        if store.rank == 0:
            store.push(key, np.ones((1, 4), np.float32), ids=[7])
        else:
            store.push(key, np.ones((0, 4), np.float32), ids=np.empty(0, np.int64))
        return first, count, table.pull(ids=[7, 8]), len(table)

    for first, before, second, after in cluster.run(work):
        assert (first == 0.5).all()
        assert second.tolist() == [[1.5] * 4, [0.5] * 4]
        assert (before, after) == (0, 1)


@pytest.mark.parametrize("dim", [1, 5, 64])
def test_rows_of_any_width_on_many_slots_come_back_in_the_order_they_were_asked_for(cluster, key, dim):
    def work(store):
        rng = np.random.default_rng(5)
        ids = rng.integers(-500, 500, 2000)
        rows = rng.integers(-8, 8, (2000, dim)).astype(np.float32)
        store.create_table(key, dim=dim, slots=23)
        store.push(key, rows, ids=ids)
        out = np.empty((2000, dim), np.float32)
        same = store.pull(key, ids=ids[::-1], out=out) is out
        expected = np.zeros((1000, dim), np.float32)
        np.add.at(expected, ids + 500, rows * WORKERS)
        return same and np.array_equal(out, expected[ids[::-1] + 500])

    assert all(cluster.run(work))


@pytest.mark.parametrize("init", [wl.Normal(0.3, seed=3), wl.Uniform(low=-1.0, high=2.0), wl.Constant(0.25)])
def test_rows_start_by_seed_and_id_alone_whatever_servers_hold_them(cluster, key, init):
    ids = np.arange(-300, 300)

    def work(store):
        store.create_table("starts", dim=8, init=init, slots=5)
        before = store.pull("starts", ids=ids)
        store.push("starts", np.zeros((600, 8), np.float32), ids=ids)
        after = store.pull("starts", ids=ids)
        store.barrier()
        store.delete("starts")
        store.barrier()
        return before, after

    [alone] = [work(store) for store in [wl.Store()]]
    for before, after in cluster.run(work):
        assert np.array_equal(before, alone[0])
        assert np.array_equal(after, alone[0])


UPDATERS = [
    "add",
    wl.SGD(lr=0.1),
    wl.SGD(lr=0.1, momentum=0.9),
    wl.Adagrad(lr=0.1),
    wl.RowwiseAdagrad(lr=0.1),
    wl.Adam(lr=0.05),
    wl.FTRL(lr=0.3, l1=0.2, l2=0.1),
]


@pytest.mark.parametrize("update", UPDATERS, ids=str)
def test_every_updater_does_to_a_row_what_its_definition_says(cluster, key, update):
    """Against the formulas in plain numpy of double precision, over steps in which not every row takes part."""

    def work(store):
        store.create_table(key, dim=3, update=update, init=0.0 if isinstance(update, wl.FTRL) else 0.5, reduce="mean")
        rng = np.random.default_rng(1)
        for _ in range(6):
            ids = rng.choice(40, 15, replace=False)
            grads = rng.standard_normal((15, 3)).astype(np.float32)
            store.push(key, grads, ids=ids)
        return store.pull(key, ids=np.arange(40))

    reference = Reference(update, start=0.0 if isinstance(update, wl.FTRL) else 0.5, dim=3)
    rng = np.random.default_rng(1)
    for _ in range(6):
        ids = rng.choice(40, 15, replace=False)
        reference.step(ids.tolist(), rng.standard_normal((15, 3)).astype(np.float32))
    for rows in cluster.run(work):
        assert np.allclose(rows, reference.rows(range(40)), rtol=2e-5, atol=2e-6)


def test_hyper_travels_with_the_round(cluster, key):
    def work(store):
        store.create_table(key, dim=2, update=wl.SGD(lr=1.0))
        for lr in (1.0, 0.5, 0.25):
            store.push(key, np.ones((1, 2), np.float32), ids=[3], hyper={"lr": lr})
        return store.pull(key, ids=[3]).tolist()

    assert cluster.run(work) == [[[-1.75 * WORKERS] * 2]] * WORKERS


@pytest.mark.parametrize("reduce", ["min", "max", "mean"])
def test_other_reductions_merge_row_by_row(cluster, key, reduce):
    def work(store):
        store.create_table(key, dim=2, reduce=reduce, update="merge" if reduce != "mean" else wl.SGD(lr=1.0))
        store.push(key, np.array([[5, -2], [-3, 4], [2, 2]], np.float32) * (store.rank + 1), ids=[1, 1, 2])
        return store.pull(key, ids=[1, 2]).tolist()

    expected = {"min": [[-9, -6], [0, 0]], "max": [[15, 12], [6, 6]], "mean": [[-4, -4], [-4, -4]]}[reduce]
    assert cluster.run(work) == [expected] * WORKERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_torch_ids_of_any_shape_give_torch_rows_of_the_tables_type(cluster, key, dtype):
    def work(store):
        store.create_table(key, dim=4, dtype=dtype, update=wl.SGD(lr=0.5))
        ids = torch.tensor([[1, 2, 3], [3, 2, 9]])
        store.push(key, torch.full((2, 3, 4), -2.0, dtype=dtype), ids=ids)
        out = torch.empty(2, 3, 4, dtype=dtype)
        store.pull(key, ids=ids, out=out)
        return store.pull(key, ids=ids), out, store.pull(key, ids=torch.empty(0, 5, dtype=torch.int64)).shape

    expected = torch.tensor([[1.0, 2, 2], [2, 2, 1]])[..., None].expand(2, 3, 4) * WORKERS
    for rows, out, empty in cluster.run(work):
        assert rows.dtype is dtype
        assert torch.equal(rows.float(), expected)
        assert torch.equal(rows, out)
        assert empty == (0, 5, 4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_steps_on_sixteen_bit_rows_are_not_lost(cluster, key, dtype):
    def work(store):
        store.create_table(key, dim=1, dtype=dtype, update="add")
        for value in (256.0, *[0.0625] * 16):
            rows = torch.tensor([[value]], dtype=getattr(torch, dtype))
            store.push(key, rows if store.rank == 0 else rows * 0, ids=torch.tensor([5]))
        return store.pull(key, ids=torch.tensor([5])).item()

    assert cluster.run(work) == [{"float16": 257.0, "bfloat16": 256.0}[dtype]] * WORKERS  # rounded when it is pulled


def test_pushpull_gives_the_rows_after_the_round(cluster, key):
    def work(store):
        store.create_table(key, dim=2)
        ids = [4, 4, -9]
        one = [store.pushpull(key, np.ones((3, 2), np.float32), ids=ids).tolist() for _ in range(3)]
        many = store.pushpull({key: np.ones((1, 2), np.float32)}, ids={key: [4]})
        return one, many[key].tolist()

    rounds = [[[2 * WORKERS * n] * 2, [2 * WORKERS * n] * 2, [WORKERS * n] * 2] for n in (1, 2, 3)]
    assert cluster.run(work) == [(rounds, [[7 * WORKERS] * 2])] * WORKERS


def test_tables_and_dense_keys_go_together_in_one_call(cluster, key):
    def work(store):
        a, b, w = (f"{key}/{name}" for name in "abw")
        store.create_table(a, dim=2)
        store.create_table(b, dim=5)
        store.create(w, np.zeros(3, np.float32), update="add")
        ids = {a: [1, 2], b: np.array([[3], [1]])}
        values = {a: np.ones((2, 2), np.float32), b: np.ones((2, 1, 5), np.float32), w: np.ones(3, np.float32)}
        store.push(values, ids=ids).wait()
        pulled = store.pull([w, b, a], ids=ids)
        both = store.pushpull(values, ids=ids)
        return [rows.shape for rows in pulled], [float(rows.max()) for rows in pulled], sorted(
            float(both[name].min()) for name in (a, b, w)
        )

    assert cluster.run(work) == [([(3,), (2, 1, 5), (2, 2)], [WORKERS] * 3, [2 * WORKERS] * 3)] * WORKERS


def test_a_range_pull_gives_what_is_there_with_rising_ids(cluster, key):
    def work(store):
        store.create_table(key, dim=2)
        ids = np.array([10, -5, 3, 2**63 - 1, 8, -(2**63)])
        store.push(key, np.repeat(ids.astype(np.float32)[:, None], 2, 1), ids=ids)
        some, rows = store.pull(key, range=(-5, 10))
        everything, _ = store.pull(key, range=(-(2**63), 2**63))
        nothing, none = store.pull(key, range=(4, 4))
        return some.tolist(), rows[:, 0].tolist(), everything.tolist() == sorted(ids.tolist()), nothing.size, none.shape

    expected = ([-5, 3, 8], [-5.0 * WORKERS, 3.0 * WORKERS, 8.0 * WORKERS], True, 0, (0, 2))
    assert cluster.run(work) == [expected] * WORKERS


def test_pages_bring_every_row_once_and_a_table_tells_its_size(cluster, key):
    def work(store):
        table = store.create_table(key, dim=3, update=wl.Adagrad(lr=0.1))
        ids = np.arange(0, 5000, 3)
        store.push(key, np.ones((ids.size, 3), np.float32), ids=ids)
        pages = list(table.pages(rows=100))
        found = np.concatenate([page for page, _ in pages])
        largest = max(page.size for page, _ in pages)
        wide = all(rows.shape == (page.size, 3) for page, rows in pages)
        is_all = sorted(found.tolist()) == ids.tolist() == sorted(table)
        return is_all, largest <= 100, wide, len(table), table.nbytes > ids.size * 24, repr(table)

    is_fine = (True, True, True, 1667, True, f"<Table '{key}' of 3 x float32, Sequential()>")
    assert cluster.run(work) == [is_fine] * WORKERS


@pytest.mark.parametrize("consistency", [wl.Bounded(2), wl.Eventual()])
def test_without_rounds_every_push_is_an_update_of_its_own(cluster, key, consistency):
    def work(store):
        store.create_table(key, dim=2, consistency=consistency)
        ids = np.arange(300)
        for step in range(8):
            own = store.pushpull(key, np.ones((300, 2), np.float32), ids=ids)
            assert own.min() >= step + 1
        store.barrier()
        return store.pull(key, ids=ids).min(), store.pull(key, range=(0, 300))[1].max(), store.version(key)

    assert cluster.run(work) == [(8 * WORKERS, 8 * WORKERS, 8 * WORKERS)] * WORKERS


def test_a_bounded_pull_of_rows_waits_for_one_that_is_too_far_behind(cluster, key):
    def work(store):
        store.create_table(key, dim=1, consistency=wl.Bounded(1))
        one = np.ones((1, 1), np.float32)
        if store.rank == 0:
            store.barrier()  # the others come here when they are held up
            store.push(key, one, ids=[1])
            return True
        store.push(key, one, ids=[1])
        store.pull(key, ids=[1])
        store.push(key, one, ids=[1])
        second = store.pull(key, ids=[1], wait=False)
        with pytest.raises(TimeoutError, match=r"waits for worker-0, 2 behind \(delay 1\)"):
            second.wait(timeout=0.2)
        store.barrier()
        return float(second.wait()[0, 0]) >= 3

    assert cluster.run(work) == [True] * WORKERS


def test_the_driver_reads_rows_ranges_and_pages_without_waiting(cluster, key):
    def work(store):
        store.create_table(key, dim=2)
        store.push(key, np.ones((100, 2), np.float32), ids=np.arange(100)).wait()

    cluster.run(work)
    driver = cluster.store()
    assert (driver.pull(key, ids=np.arange(100)) == WORKERS).all()
    assert driver.pull(key, range=(10, 20))[0].tolist() == list(range(10, 20))
    assert 99 in driver.table(key)
    assert 100 not in driver.table(key)
    assert len(driver.table(key)) == 100
    assert sorted(driver.table(key)) == list(range(100))
    with pytest.raises(wl.UsageError, match="no worker"):
        driver.push(key, np.ones((1, 2), np.float32), ids=[1])


def test_the_driver_sets_rows_between_two_rounds_and_training_goes_on_from_there(cluster, key):
    """Some are there already, with optimizer state, which stays; others are made."""

    def work(store):
        store.create_table(key, dim=2, update=wl.Adagrad(lr=1.0), init=3.0, admit_after=2)
        store.push(key, np.ones((60, 2), np.float32), ids=np.arange(60)).wait()
        store.push(key, np.ones((60, 2), np.float32), ids=np.arange(60)).wait()

    def go_on(store):
        before = store.pull(key, ids=[0, 59, 60, 99, 100])[:, 0].tolist()
        after = store.pushpull(key, np.ones((5, 2), np.float32), ids=[0, 59, 60, 99, 100])
        return before, after[:, 0].round(4).tolist()

    cluster.run(work)
    driver = cluster.store()
    given = np.repeat(np.arange(100, dtype=np.float32)[:, None], 2, 1)
    driver.assign(key, given[::-1], ids=np.arange(100)[::-1])
    assert np.array_equal(driver.pull(key, ids=np.arange(100)), given)
    assert len(driver.table(key)) == 100
    assert 99 in driver.table(key)
    old = 1 / np.sqrt(2)  # the second step of Adagrad; the new rows take their first
    before, after = cluster.run(go_on)[0]
    assert before == [0.0, 59.0, 60.0, 99.0, 3.0]
    assert after == pytest.approx([-old, 59 - old, 59.0, 98.0, 3.0], abs=1e-3)


def test_a_copy_of_a_table_has_the_rows_that_were_assigned():
    with wl.Cluster(engine="threads", servers=2, workers=1, replicas=1, timeout=20) as cluster:
        driver = cluster.store()
        driver.create_table("emb", dim=3, dtype="float16", ttl_seconds=1000, max_rows=5000)
        rows = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float16)
        driver.assign("emb", rows, ids=np.arange(-1000, 1000))
        cluster.remove_server("server-0")
        found, kept = driver.pull("emb", range=(-1000, 1000))
        assert found.tolist() == list(range(-1000, 1000))
        assert np.array_equal(kept, rows)


def test_an_embedded_store_is_filled_in_the_same_way_after_its_own_pushes():
    store = wl.Store()
    table = store.create_table("emb", dim=2, update=wl.SGD(lr=1.0))
    store.push("emb", np.ones((1, 2), np.float32), ids=[7])
    store.assign("emb", np.full((2, 2), 5, np.float32), ids=[7, 8])
    store.push("emb", np.ones((1, 2), np.float32), ids=[7])
    assert store.pull("emb", ids=[7, 8]).tolist() == [[4, 4], [5, 5]]
    assert (7 in table, np.int64(8) in table, torch.tensor(9) in table, 2**64 in table) == (True, True, False, False)
    store.create("w", np.zeros(2, np.float32), update="add")
    store.push("w", np.ones(2, np.float32))
    store.assign("w", np.full(2, 5, np.float32))
    assert store.pushpull("w", np.ones(2, np.float32)).tolist() == [6, 6]


@pytest.mark.parametrize("admit_after", [1, 3])
def test_rows_that_cannot_be_assigned_are_refused_and_none_of_them_is_set(admit_after):
    store = wl.Store()
    table = store.create_table("emb", dim=2, max_bytes=50_000, admit_after=admit_after)
    rows = np.ones((2, 2), np.float32)
    for call, text in [
        (lambda: store.assign("emb", rows), "say which rows, by ids="),
        (lambda: store.assign("emb", rows, ids=[4, 4]), r"assign\('emb'\): expected every id once, got 4 more"),
        (lambda: store.assign("emb", rows, ids=[1]), r"assign\('emb'\): expected shape \(1, 2\)"),
        (lambda: store.assign("emb", rows, ids=[1, 2], range=(0, 1)), "say which rows by ids="),
        (lambda: store.assign("emb", np.ones((20_000, 2), np.float32), ids=np.arange(20_000)), "outgrow max_bytes"),
        (lambda: "7" in table, "an id of 'emb' is a whole number, got '7'"),
    ]:
        with pytest.raises(wl.UsageError, match=text):
            call()
    assert len(table) == 0
    store.assign("emb", rows, ids=[1, 2])
    assert len(table) == 2


def test_threads_that_assign_at_the_same_time_do_not_mix_their_values():
    with wl.Cluster(engine="threads", servers=2, workers=1, timeout=20, chunk_bytes=4096) as cluster:
        driver = cluster.store()
        driver.create("w", np.zeros(20_000, np.float32), update="add")
        seen: list[int] = []

        def work(number: int) -> None:
            for _ in range(10):
                driver.assign("w", np.full(20_000, number, np.float32))
                seen.append(np.unique(driver.pull("w")).size)

        threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen == [1] * 30


def test_a_table_that_is_deleted_and_declared_again_is_a_new_one(cluster, key):
    def work(store):
        store.create_table(key, dim=2)
        store.push(key, np.ones((5, 2), np.float32), ids=np.arange(5)).wait()
        store.barrier()
        store.delete(key)
        store.barrier()
        table = store.create_table(key, dim=7, init=0.5)
        return table.pull(ids=[1]).tolist(), len(table), table.dim

    assert cluster.run(work) == [([[0.5] * 7], 0, 7)] * WORKERS


def test_a_table_declared_by_others_is_found_by_its_name(cluster, key):
    def work(store):
        if store.rank == 0:
            store.create_table(key, dim=6, dtype="float16", consistency=wl.Eventual())
        store.barrier()
        table = store.table(key)
        return table.name == key, table.dim, table.dtype, table.consistency

    assert cluster.run(work) == [(True, 6, "float16", wl.Eventual())] * WORKERS


@pytest.mark.parametrize("update", UPDATERS, ids=str)
def test_an_embedded_store_does_the_same(update):
    start = 0.0 if isinstance(update, wl.FTRL) else 0.5
    store, reference, rng = wl.Store(), Reference(update, start=start, dim=2), np.random.default_rng(2)
    store.create_table("t", dim=2, update=update, init=start, slots=3)
    for _ in range(5):
        ids = rng.choice(30, 10, replace=False) - 15
        grads = rng.standard_normal((10, 2)).astype(np.float32)
        rows = store.pushpull("t", grads, ids=ids)
        reference.step(ids.tolist(), grads)
        assert np.allclose(rows, reference.rows(ids.tolist()), rtol=2e-5, atol=2e-6)
    assert np.allclose(store.pull("t", ids=np.arange(-15, 15)), reference.rows(range(-15, 15)), rtol=2e-5, atol=2e-6)


def test_rows_that_stay_come_exactly_once_in_pages_while_others_push(cluster, key):
    def work(store):
        table = store.create_table(key, dim=2, consistency=wl.Eventual())
        stay = np.arange(2000)
        store.push(key, np.ones((2000, 2), np.float32), ids=stay).wait()
        store.barrier()
        if store.rank == 0:
            found = [ids for ids, _ in table.pages(rows=50)]
        else:
            for step in range(30):
                new = np.arange(100) + 10_000 * (store.rank + 1) + 100 * step
                store.push(key, np.ones((100, 2), np.float32), ids=new).wait()
            found = []
        store.barrier()
        return np.concatenate([np.empty(0, np.int64), *found])

    ids = cluster.run(work)[0]
    assert np.unique(ids).size == ids.size
    assert np.array_equal(np.sort(ids[ids < 2000]), np.arange(2000))
