"""A group in shared memory: agreement, buffers, and what it leaves behind."""

from __future__ import annotations

import gc
import os
import pickle
import re
import threading
import time

import numpy as np
import pytest
import torch

import windlass as wl
from tests.collectives.cases import STRATEGIES


def segments_mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("windlass-group" in line for line in maps)


@pytest.fixture(scope="module")
def trio():
    with wl.Cluster(servers=1, workers=3, timeout=30.0) as cluster:
        yield cluster


def test_workers_exchange_a_few_bytes_through_the_store(trio):
    def work(store):
        return store.exchange(bytes([store.rank, 7])), store.exchange(bytes([store.rank + 3, 0]))

    assert trio.run(work) == [([b"\0\7", b"\1\7", b"\2\7"], [b"\3\0", b"\4\0", b"\5\0"])] * 3
    assert trio.store().keys() == []


def test_a_group_knows_its_place_and_says_so(trio):
    def work(store):
        with wl.Group(store) as group:
            return repr(group), group.rank, group.size, group.part(7)

    told = trio.run(work)
    assert told[1] == ("<Group rank 1 of 3 over shared memory>", 1, 3, slice(3, 5))
    assert [part for *_, part in told] == [slice(0, 3), slice(3, 5), slice(5, 7)]


def test_calls_that_differ_are_told_in_every_member_and_harm_nothing(trio):
    def work(store):
        told = []
        odd = store.rank == 2
        with wl.Group(store) as group:
            for act in (
                lambda: group.allreduce(np.zeros((2, 3) if odd else (3, 2))),
                lambda: group.allreduce(np.zeros(3, np.float32 if odd else np.float64)),
                lambda: group.allreduce(np.zeros(3), reduce="max" if odd else "sum"),
                lambda: group.allreduce(np.zeros(3), "ring" if odd else "tree"),
                lambda: group.allreduce(np.zeros(10 if odd else 100_000)),
                lambda: group.broadcast(np.zeros(3), root=1 if odd else 0),
                lambda: group.barrier() if odd else group.buffer(3),
                lambda: group.allreduce(np.zeros((1,) * (60 if odd else 61))),
            ):
                with pytest.raises(wl.UsageError, match="all members must make the same calls") as caught:
                    act()
                told.append(str(caught.value))
            total = np.ones(5)
            return told, group.allreduce(total).tolist()

    told = trio.run(work)
    assert [total for _, total in told] == [[3.0] * 5] * 3
    assert told[0][0][0].startswith("rank 2 called allreduce of float64 of shape (2, 3), reduce='sum', while this one,")
    assert told[2][0][0].startswith("rank 0 called allreduce of float64 of shape (3, 2), reduce='sum', while this one,")
    for others, text in (
        ("float32 of shape (3,)", told[0][0][1]),
        ("reduce='max'", told[1][0][2]),
        ("strategy='ring'", told[0][0][3]),
        ("shape (10,)", told[1][0][4]),
        ("root=1", told[0][0][5]),
        ("rank 2 called barrier", told[0][0][6]),
    ):
        assert others in text


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_member_ends_with_the_very_same_bits(trio, strategy):
    def work(store):
        with wl.Group(store) as group:
            made = [np.random.default_rng(store.rank).standard_normal(n).astype(np.float32) for n in (1000, 300_000)]
            return [group.allreduce(each, strategy).tobytes() for each in made]

    found = trio.run(work)
    assert found[0] == found[1] == found[2]


def test_auto_adds_up_in_rank_order_whichever_way_it_takes(trio):
    def numbers(rank, size):
        return np.random.default_rng(rank).standard_normal(size).astype(np.float32)

    def work(store):
        with wl.Group(store) as group:
            small, large = (numbers(store.rank, size) for size in (99, 300_000))
            shared = group.buffer(large.shape)
            shared[:] = large
            return [group.allreduce(each).copy() for each in (small, large, shared)]

    small, large, shared = trio.run(work)[1]
    for found, size in ((small, 99), (large, 300_000), (shared, 300_000)):
        given = [numbers(rank, size) for rank in range(3)]
        np.testing.assert_array_equal(found, (given[0] + given[1]) + given[2])


def test_a_buffer_is_memory_that_the_others_write_to(trio):
    def work(store):
        with wl.Group(store) as group:
            whole = group.buffer((3, 100_000), torch.float32)
            assert not whole.any()
            whole[1] = store.rank + 1  # a part of a buffer is reduced in place, too
            group.allreduce(whole[1], reduce="max")
            gathered = group.buffer(300_000)
            gathered[group.part(300_000)] = store.rank
            group.all_gather_parts(gathered)
            return whole.sum(1).tolist(), np.unique(gathered, return_counts=True)[1].tolist()

    assert trio.run(work) == [([0.0, 300_000.0, 0.0], [100_000] * 3)] * 3


def test_members_may_use_different_buffers_or_none_in_one_call(trio):
    def work(store):
        with wl.Group(store) as group:
            buffers = [group.buffer(200_000), group.buffer(400_000)]
            tensors = [buffers[0], buffers[1][1000:201_000], np.zeros(200_000, np.float32)]
            for mine in (tensors[store.rank], tensors[store.rank % 2]):
                mine[:] = store.rank
                group.allreduce(mine)
                assert (mine == 3).all()
            return float(buffers[1][:1000].sum() + buffers[1][201_000:].sum())

    assert trio.run(work) == [0.0] * 3


def test_scattered_parts_are_updated_and_gathered(trio):
    def work(store):
        with wl.Group(store) as group:
            gradient = np.arange(10.0) * (store.rank + 1)
            own = group.reduce_scatter(gradient)
            own *= -1  # each member steps its own part: the returned array is a view of the tensor
            return group.all_gather_parts(gradient).tolist()

    assert trio.run(work) == [[-6.0 * i for i in range(10)]] * 3


def test_everybody_gets_everybodys_tensor(trio):
    def work(store):
        with wl.Group(store) as group:
            pairs, numbers = torch.full((2,), store.rank), np.array(store.rank)
            return group.all_gather(pairs).tolist(), group.all_gather(numbers).tolist()

    assert trio.run(work) == [([[0, 0], [1, 1], [2, 2]], [0, 1, 2])] * 3


def test_two_groups_of_one_store_do_not_meet_each_other(trio):
    def work(store):
        with wl.Group(store) as one, wl.Group(store) as two:
            first = one.allreduce(np.ones(3))
            return two.allreduce(first * 2, reduce="max").tolist(), one.allreduce(first).tolist()

    assert trio.run(work) == [([6.0] * 3, [9.0] * 3)] * 3


def test_a_member_that_leaves_is_named_to_those_who_wait_for_it(trio):
    def work(store):
        group = wl.Group(store)
        group.barrier()
        if store.rank == 1:
            group.close()
            return "left"
        with pytest.raises(wl.ClusterError, match=r"barrier: rank 1 \(pid \d+\) has left the group: it closed it"):
            group.barrier()
        with pytest.raises(wl.ClusterError, match=r"this group is broken since barrier: .*rank 1.*; make a new one"):
            group.allreduce(np.zeros(3))
        return repr(group)

    told = trio.run(work)
    assert told[1] == "left"
    assert told[0].startswith("<Group rank 0 of 3 over shared memory | is broken since barrier")


def test_a_member_that_fails_in_a_call_tells_the_others(trio):
    def work(store):
        def combine(a, b):
            if len(a) > 1000:
                raise ZeroDivisionError("my own fault")
            return a + b

        group = wl.Group(store)
        failing = wl.Reducer("failing", combine if store.rank == 1 else np.add, 0)
        expected = ZeroDivisionError if store.rank == 1 else wl.ClusterError
        with pytest.raises(expected) as caught:
            group.allreduce(np.zeros(100_000), reduce=failing)
        return str(caught.value)

    told = trio.run(work)
    assert "rank 1" in told[0]
    assert "gave up in allreduce of float64 of shape (100000,)" in told[0]


def test_nothing_is_left_of_groups_and_buffers_that_are_gone(trio):
    def work(store):
        def used() -> tuple[int, int]:
            gc.collect()
            return len(os.listdir("/proc/self/fd")), segments_mapped()

        def once() -> None:
            with wl.Group(store) as group:
                for _ in range(3):
                    buffer = group.buffer(10_000)
                    group.allreduce(buffer)
                    group.allreduce(np.ones(5000), "ring")

        once()
        before = used()
        for _ in range(5):
            once()
        after = used()
        with wl.Group(store) as group:
            for _ in range(10):
                group.buffer(10_000)  # dropped at once
            group.barrier()
            group.buffer(1)  # sees what the others have dropped
            during = used()[1] - after[1]
        return before, after, during

    for before, after, during in trio.run(work):
        assert after == before
        assert during <= 3 + 3 * 3  # control segments, and the few buffers that are not yet known to be free


def test_a_group_of_an_embedded_store_is_a_group_of_one():
    with wl.Group(wl.Store()) as group:
        value = torch.tensor([1.0, 2.0])
        for strategy in STRATEGIES:
            group.allreduce(value, strategy, "mean")
        assert value.tolist() == [1.0, 2.0]
        assert group.all_gather(value).tolist() == [[1.0, 2.0]]
        assert group.reduce_scatter(torch.ones(40_000)).sum() == 40_000
        with pytest.raises(wl.UsageError, match="cannot be pickled"):
            pickle.dumps(group)
        with pytest.raises(wl.UsageError, match="root expects a rank from 0 to 0, got 1"):
            group.broadcast(value, root=1)
        with pytest.raises(wl.UsageError, match="expected a dtype among"):
            group.buffer(3, "complex64")
        with pytest.raises(wl.UsageError, match="shape of whole numbers"):
            group.buffer((2, -1))
    with pytest.raises(wl.UsageError, match=r"allreduce of float32 of shape \(2,\), .*: this group is closed"):
        group.allreduce(value)
    group.close()


def test_the_driver_has_no_place_in_a_group(trio):
    with pytest.raises(wl.UsageError, match="the driver's store has no place in a group"):
        wl.Group(trio.store())


def test_a_second_thread_in_a_group_is_told_to_wait_its_turn():
    def work(store):
        group, told = wl.Group(store), []

        def come() -> None:
            try:
                group.barrier()
            except wl.UsageError as error:
                told.append(str(error))
                turn.set()

        if store.rank == 1:
            turn.wait(10)
            group.barrier()
            return told
        both = [threading.Thread(target=come) for _ in range(2)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        return told

    turn = threading.Event()
    with wl.Cluster(engine="threads", workers=2) as cluster:
        told, _ = cluster.run(work)
    assert told == ["barrier: another thread is in a call of this group; one at a time"]


def test_a_group_goes_by_the_machines_it_is_told(trio):
    def work(store):
        with wl.Group(store, machines=[[2, 0], [1]]) as group:
            return group.allreduce(np.arange(5) + store.rank, "hierarchical").tolist()

    assert trio.run(work) == [[3, 6, 9, 12, 15]] * 3
    with pytest.raises(wl.UsageError, match="every rank below 1 on exactly one machine"):
        wl.Group(wl.Store(), machines=[[0], [1]])


def test_a_forked_copy_of_a_member_changes_nothing_for_the_others(trio):
    def work(store):
        group = wl.Group(store)
        buffer = group.buffer(100_000)
        child = os.fork() if store.rank == 1 else 0
        if store.rank == 1 and not child:
            group.close()
            del buffer, group
            gc.collect()
            os._exit(0)
        if child:
            os.waitpid(child, 0)
        group.barrier()
        second = group.buffer(1)  # would let go of what the copy had freed
        buffer[:] = store.rank
        total = float(group.allreduce(buffer)[0])
        del second
        return total, segments_mapped()

    assert trio.run(work) == [(3.0, 3 + 3 + 2)] * 3  # control segments, the buffers, the others' second ones


def test_a_long_wait_says_whom_it_waits_for(caplog):
    def work(store):
        with wl.Group(store) as group:
            if store.rank == 1:
                time.sleep(0.8)
            group.barrier()

    with wl.Cluster(engine="threads", workers=2, warn_seconds=0.3) as cluster:
        cluster.run(work)
    assert re.search(rf"barrier has taken \d s so far: it waits for rank 1 \(pid {os.getpid()}\)", caplog.text)
