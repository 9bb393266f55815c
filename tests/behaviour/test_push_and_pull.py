"""What push and pull mean to the one who calls them, on every transport."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import windlass as wl

from .conftest import WORKERS

TOTAL = sum(range(1, WORKERS + 1))


def test_pull_gives_the_sum_of_every_workers_push(cluster, key):
    def work(store):
        store.create(key, np.zeros((3, 5), np.float32))
        store.push(key, np.full((3, 5), store.rank + 1, np.float32))
        return store.pull(key)

    for got in cluster.run(work):
        assert got.shape == (3, 5)
        assert (got == TOTAL).all()


def test_a_value_of_many_chunks_on_several_servers_comes_back_whole(cluster, key):
    size = 100_003  # seven slots, the last one short

    def work(store):
        base = np.arange(size, dtype=np.float32)
        store.create(key, np.zeros(size, np.float32))
        totals = []
        for step in range(3):
            got = store.pushpull(key, base * (store.rank + 1) * (step + 1))
            totals.append(np.array_equal(got, base * TOTAL * (step + 1)))
        return totals, len({chain[0] for chain in store.status()["keys"][key]["shards"]})

    for totals, servers in cluster.run(work):
        assert totals == [True, True, True]
        assert servers == 2


def test_rounds_follow_one_another_without_mixing(cluster, key):
    def work(store):
        store.create(key, np.zeros(40_000, np.int64), update="add")
        seen = []
        for step in range(20):
            store.push(key, np.full(40_000, 1 << step, np.int64))
            got = store.pull(key)
            seen.append(int(got[0]) if (got == got[0]).all() else -1)
        return seen

    expected = [WORKERS * ((1 << (step + 1)) - 1) for step in range(20)]
    assert cluster.run(work) == [expected] * WORKERS


def test_range_push_touches_only_its_elements_and_range_pull_reads_only_them(cluster, key):
    def work(store):
        store.create(key, np.zeros(50_000, np.float32), update="add")
        lo = 10_000 * store.rank
        store.push(key, np.ones(20_000, np.float32), range=(lo, lo + 20_000)).wait()
        whole, part = store.pull(key), store.pull(key, range=(19_990, 20_010))
        return whole, part

    expected = np.zeros(50_000, np.float32)
    for rank in range(WORKERS):
        expected[10_000 * rank : 10_000 * rank + 20_000] += 1
    for whole, part in cluster.run(work):
        assert np.array_equal(whole, expected)
        assert np.array_equal(part, expected[19_990:20_010])


def test_many_keys_go_in_one_call(cluster, key):
    def work(store):
        names = [f"{key}/{number}" for number in range(30)]
        for number, name in enumerate(names):
            store.create(name, np.zeros(number, np.float32))
        store.push({name: np.full(number, number, np.float32) for number, name in enumerate(names)}).wait()
        got = store.pull(names)
        both = store.pushpull({name: np.ones(number, np.float32) for number, name in enumerate(names)})
        return [float(array.sum()) for array in got], {name: float(array.sum()) for name, array in both.items()}

    sums, both = cluster.run(work)[0]
    assert sums == [WORKERS * number * number for number in range(30)]
    assert both == {f"{key}/{number}": WORKERS * number for number in range(30)}


def test_a_plain_array_may_be_changed_as_soon_as_push_returns(cluster, key):
    def work(store):
        store.create(key, np.zeros(60_000, np.float32))
        array = np.ones(60_000, np.float32)
        task = store.push(key, array)
        array[:] = 77
        task.wait()
        return store.pull(key)

    for got in cluster.run(work):
        assert (got == WORKERS).all()


def test_what_is_pushed_from_a_buffer_arrives_and_two_buffers_alternate(cluster, key):
    def work(store):
        store.create(key, np.zeros(60_000, np.float32))
        first, second = store.buffer(key), store.buffer(key)
        addresses = {array.__array_interface__["data"][0] for array in (first, second, store.buffer(key))}
        results = []
        for step in range(4):
            buffer = store.buffer(key)
            buffer[:] = step + store.rank
            results.append(float(store.pushpull(key, buffer)[-1]))
        part = store.buffer(key)[1000:2000]
        part[:] = 1
        store.push(key, part, range=(1000, 2000)).wait()
        return len(addresses), results, store.pull(key, range=(999, 1001)).tolist()

    for addresses, results, edge in cluster.run(work):
        assert addresses == 2
        assert results == [sum(range(WORKERS)) + WORKERS * step for step in range(4)]
        assert edge == [sum(range(WORKERS)) + WORKERS * 3, WORKERS]


def test_a_view_is_read_only_and_shows_the_round(cluster, key):
    def work(store):
        store.create(key, np.zeros(60_000, np.float32))
        seen = []
        for step in range(5):
            view = store.pushpull(key, np.full(60_000, step, np.float32), view=True)
            seen.append((float(view[0]), float(view[-1]), view.flags.writeable, len(view)))
        return seen

    for seen in cluster.run(work):
        assert seen == [(WORKERS * step, WORKERS * step, False, 60_000) for step in range(5)]


def test_out_is_filled_in_place_also_when_it_is_not_contiguous(cluster, key):
    def work(store):
        store.create(key, np.zeros((100, 300), np.float32))
        straight, crooked = np.empty((100, 300), np.float32), np.empty((300, 100), np.float32).T
        store.push(key, np.ones((100, 300), np.float32))
        same = store.pull(key, out=straight) is straight
        store.pull(key, out=crooked)
        return same, straight, crooked

    for same, straight, crooked in cluster.run(work):
        assert same
        assert (straight == WORKERS).all()
        assert (crooked == WORKERS).all()


def test_memory_of_a_pull_that_nobody_holds_is_used_again_and_held_memory_is_not(cluster, key):
    def work(store):
        store.create(key, np.zeros(1000, np.float32), update="add")
        addresses = set()
        for _ in range(10):
            addresses.add(store.pushpull(key, np.ones(1000, np.float32)).__array_interface__["data"][0])
        kept = [store.pushpull(key, np.ones(1000, np.float32)) for _ in range(6)]
        return len(addresses), [float(array[0]) for array in kept]

    for addresses, values in cluster.run(work):
        assert addresses <= 2
        assert values == [WORKERS * (11 + step) for step in range(6)]


def test_tasks_wait_for_tasks_on_other_keys_and_a_failed_one_fails_its_followers(cluster, key):
    def work(store):
        store.create(f"{key}/a", np.zeros(4, np.float32), update="add")
        store.create(f"{key}/b", np.zeros(4, np.float32), update="add")
        first = store.push(f"{key}/a", np.ones(4, np.float32))
        second = store.push(f"{key}/b", np.ones(4, np.float32), after=[first])
        last = store.pull(f"{key}/b", after=[second], wait=False)
        value = last.wait()
        return first.is_done, second.is_done, value.tolist()

    assert cluster.run(work) == [(True, True, [float(WORKERS)] * 4)] * WORKERS


def test_pull_without_wait_gives_the_round_it_was_asked_at_even_when_the_next_push_is_out(cluster, key):
    def work(store):
        store.create(key, np.zeros(50_000, np.float32))
        seen = []
        for step in range(6):
            store.push(key, np.full(50_000, step, np.float32))
            seen.append(store.pull(key, wait=False))
        return [float(task.wait().mean()) for task in seen]

    assert cluster.run(work) == [[WORKERS * step for step in range(6)]] * WORKERS


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"])
def test_every_numpy_dtype_keeps_its_kind(cluster, key, dtype):
    reduce = "any" if dtype == "bool" else "sum"

    def work(store):
        store.create(key, np.zeros(1000, dtype), reduce=reduce)
        return store.pushpull(key, np.ones(1000, dtype))

    for got in cluster.run(work):
        assert got.dtype == np.dtype(dtype)
        assert (got == (True if dtype == "bool" else WORKERS)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_torch_in_gives_torch_out(cluster, key, dtype):
    def work(store):
        store.create(key, torch.zeros(30, 40, dtype=dtype))
        out = torch.empty(30, 40, dtype=dtype)
        got = store.pushpull(key, torch.full((40, 30), 1.5, dtype=dtype).t())
        store.pull(key, out=out)
        return got.clone(), out

    for got, out in cluster.run(work):
        assert got.dtype is dtype
        assert torch.equal(got, out)
        expected = 1.5 * WORKERS if dtype.is_floating_point else WORKERS
        assert (got.double() == expected).all()


def test_zero_size_values_are_values(cluster, key):
    def work(store):
        store.create(key, np.zeros((0, 7), np.float32))
        store.push(key, np.zeros((0, 7), np.float32)).wait()
        return store.pull(key).shape, store.version(key)

    assert cluster.run(work) == [((0, 7), 1)] * WORKERS


def test_non_contiguous_arrays_are_gathered(cluster, key):
    def work(store):
        array = np.arange(600, dtype=np.float32).reshape(20, 30)
        store.create(key, np.zeros((30, 20), np.float32))
        return np.array_equal(store.pushpull(key, array.T), array.T * WORKERS), np.array_equal(
            store.pushpull(key, np.ascontiguousarray(array.T)[::-1, ::-1]), array.T[::-1, ::-1] * WORKERS
        )

    assert cluster.run(work) == [(True, True)] * WORKERS


def test_the_first_value_is_rank_zeros_and_an_existing_key_keeps_its_own(cluster, key):
    def work(store):
        store.create(key, np.full(10, store.rank + 5, np.float32), update="add")
        first = store.pull(key).tolist()
        store.barrier()
        store.create(key, np.full(10, 99, np.float32), update="add")
        return first, store.pull(key).tolist()

    assert cluster.run(work) == [([5.0] * 10, [5.0] * 10)] * WORKERS


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [("sum", 6.0), ("mean", 2.0), ("min", 1.0), ("max", 3.0), ("windlass.testing.examples:XOR", 0.0)],
)
def test_every_reduction(cluster, key, reduce, expected):
    dtype = np.int64 if ":" in reduce else np.float32

    def work(store):
        store.create(key, np.zeros(9, dtype), reduce=reduce)
        return store.pushpull(key, np.full(9, store.rank + 1, dtype)).tolist()

    assert cluster.run(work) == [[expected] * 9] * WORKERS


def test_an_updater_runs_on_the_server_and_hyper_travels_with_the_round(cluster, key):
    def work(store):
        store.create(key, np.zeros(5, np.float32), update=wl.SGD(lr=1.0))
        values = [store.pushpull(key, np.ones(5, np.float32), hyper={"lr": lr}).tolist() for lr in (1.0, 0.5, 0.25)]
        return [value[0] for value in values]

    assert cluster.run(work) == [[-3.0, -4.5, -5.25]] * WORKERS


def test_a_users_updater_is_named_by_its_import_path(cluster, key):
    from windlass.testing.examples import SignDescent

    def work(store):
        store.create(key, np.zeros(5, np.float32), update=SignDescent(step_size=0.5))
        return store.pushpull(key, np.full(5, 3.0, np.float32)).tolist()

    assert cluster.run(work) == [[-0.5] * 5] * WORKERS


def test_version_counts_the_rounds_and_deleting_a_key_forgets_it(cluster, key):
    def work(store):
        store.create(key, np.zeros(5, np.float32))
        for _ in range(4):
            store.push(key, np.ones(5, np.float32)).wait()
        version = store.version(key)
        store.barrier()
        store.delete(key)
        store.barrier()
        known = store.keys().count(key)
        store.barrier()
        store.create(key, np.zeros(7, np.float64))
        return version, known, store.pull(key).shape

    assert cluster.run(work) == [(4, 0, (7,))] * WORKERS


@pytest.mark.parametrize("consistency", [wl.Bounded(2), wl.Eventual()])
def test_without_rounds_every_push_is_an_update_of_its_own(cluster, key, consistency):
    def work(store):
        store.create(key, np.zeros(50_000, np.int64), update="add", consistency=consistency)
        for step in range(10):
            own = store.pushpull(key, np.full(50_000, 1, np.int64))
            assert own[0] >= step + 1
        store.barrier()
        return int(store.pull(key)[0]), int(store.pull(key)[-1]), store.version(key)

    assert cluster.run(work) == [(10 * WORKERS, 10 * WORKERS, 10 * WORKERS)] * WORKERS


def test_a_bounded_worker_waits_for_one_that_is_more_than_delay_behind(cluster, key):
    def work(store):
        store.create(key, np.zeros(3, np.int64), update="add", consistency=wl.Bounded(2))
        if store.rank == 0:
            store.barrier()  # the others come here when they are held up
            store.push(key, np.ones(3, np.int64))
            return "released"
        store.push(key, np.ones(3, np.int64))
        store.push(key, np.ones(3, np.int64))
        store.pull(key)  # two ahead of rank 0: allowed
        store.push(key, np.ones(3, np.int64))
        third = store.pull(key, wait=False)  # three ahead: held up
        with pytest.raises(TimeoutError, match=r"waits for worker-0, 3 behind \(delay 2\)"):
            third.wait(timeout=0.2)
        store.barrier()
        return int(third.wait()[0]) > 0

    assert cluster.run(work) == ["released", True, True]


def test_threads_of_one_worker_share_its_store(cluster, key):
    import threading

    def work(store):
        names = [f"{key}/{number}" for number in range(4)]
        for name in names:
            store.create(name, np.zeros(2000, np.float32), update="add")
        failed = []

        def run(name):
            try:
                for step in range(15):
                    got = store.pushpull(name, np.ones(2000, np.float32))
                    assert got[0] == WORKERS * (step + 1)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    assert cluster.run(work) == [[]] * WORKERS


def test_threads_that_meet_a_new_key_together_lose_nothing(cluster, key):
    import threading

    def work(store):
        names = [f"{key}/{number}" for number in range(12)]

        def run(name):
            store.create(name, np.zeros(1, np.int64), update="add", consistency=wl.Eventual())
            store.push(name, np.ones(1, np.int64)).wait()

        threads = [threading.Thread(target=run, args=(name,)) for name in names for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.barrier()
        return [int(store.pull(name)[0]) for name in names]

    assert cluster.run(work) == [[3 * WORKERS] * 12] * WORKERS


def test_the_driver_reads_the_newest_round_and_writes_between_rounds(cluster, key):
    def work(store):
        store.create(key, np.zeros(60_000, np.float32), update="add")
        return float(store.pushpull(key, np.ones(60_000, np.float32))[0])

    assert cluster.run(work) == [WORKERS] * WORKERS
    driver = cluster.store()
    assert (driver.pull(key) == WORKERS).all()
    driver.assign(key, np.full(60_000, 100, np.float32))
    driver.assign(key, np.zeros(3, np.float32), range=(10, 13))
    assert driver.pull(key)[8:14].tolist() == [100, 100, 0, 0, 0, 100]
    assert cluster.run(work) == [100 + WORKERS] * WORKERS
    with pytest.raises(wl.UsageError, match="no worker"):
        driver.push(key, np.zeros(60_000, np.float32))
    with pytest.raises(wl.UsageError, match="barrier"):
        driver.barrier()
