"""A caller's mistake gets an error that names the key, what was expected and what came; nothing else is harmed."""

from __future__ import annotations

import os
import re
import time

import numpy as np
import pytest
import torch

import windlass as wl
from windlass.testing.examples import Failing, Mute, Rude

from .conftest import WORKERS

VALUE = np.zeros(8, np.float32)


def complaints(cluster, key, *calls):
    """What each call raises, in every worker, on a key of 8 float32; the key must still work afterwards."""

    def work(store):
        store.create(key, np.zeros(8, np.float32), update="add")
        texts = []
        for call in calls:
            try:
                call(store, key)
                texts.append("nothing")
            except wl.UsageError as error:
                texts.append(str(error))
        assert (store.pushpull(key, np.ones(8, np.float32)) == store.num_workers).all()
        return texts

    results = cluster.run(work)
    assert all(texts == results[0] for texts in results)
    return results[0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, k: s.push("nowhere", VALUE), "no key 'nowhere'; create it first"),
        (lambda s, k: s.push(k, np.zeros(9, np.float32)), r"push\('KEY'\): expected shape \(8,\), got \(9,\)"),
        (lambda s, k: s.push(k, np.zeros((2, 4), np.float32)), r"expected shape \(8,\), got \(2, 4\)"),
        (lambda s, k: s.push(k, np.zeros(8)), r"push\('KEY'\): expected dtype float32, got float64"),
        (lambda s, k: s.push(k, VALUE[:4], range=(6, 10)), r"'KEY': range expected within \[0, 8\), got \(6, 10\)"),
        (lambda s, k: s.push(k, VALUE[:4], range=(0, 3)), r"expected shape \(3,\), got \(4,\)"),
        (lambda s, k: s.pull(k, range=(-1, 3)), r"'KEY': range expected within \[0, 8\), got \(-1, 3\)"),
        (lambda s, k: s.pull(k, range="ab"), r"range expected \(lo, hi\), two whole numbers, got 'ab'"),
        (lambda s, k: s.pull(k, range=(0.5, 3)), r"'KEY': range expected .*, two whole numbers, got \(0.5, 3\)"),
        (
            lambda s, k: s.pull(k, out=np.zeros(7, np.float32)),
            r"pull\('KEY'\): out expected float32 of shape \(8,\), got .*\(7,\)",
        ),
        (lambda s, k: s.pull(k, out=np.broadcast_to(VALUE, (8,))), "out expected a writable array"),
        (
            lambda s, k: s.create(k, np.zeros(5, np.float32), update="add"),
            r"'KEY' is declared already, shape was \(8,\), got \(5,\)",
        ),
        (lambda s, k: s.create(k, VALUE, update=wl.SGD(lr=1)), r"'KEY' is declared already, update was"),
        (
            lambda s, k: s.create(k + "x", VALUE, consistency=wl.Bounded(1)),
            r"update='assign' expects Sequential\(\), got Bounded",
        ),
        (lambda s, k: s.create("", VALUE), "a key is a string of 1 to 512 bytes, got ''"),
        (lambda s, k: s.create("x" * 600, VALUE), "a key is a string of 1 to 512 bytes"),
        (lambda s, k: s.create("\udcff", VALUE), r"a key is a string that can be written in UTF-8, got '\\udcff'"),
        (lambda s, k: s.create("x", np.broadcast_to(np.float32(0), 2**38)), r"\(274877906944,\) is 1,024.0 GiB, and"),
        (lambda s, k: s.create("x", torch.zeros(1).expand(2**38)), "is 1,024.0 GiB, and this machine has"),
        (lambda s, k: s.push(k, np.broadcast_to(np.float32(0), 2**38)), "is 1,024.0 GiB, and this machine has"),
        (lambda s, k: s.create(k + "y", np.zeros(3, "complex64")), "expected a dtype among .*, got complex64"),
        (
            lambda s, k: s.create(k + "z", np.zeros(3, np.int32), update=wl.SGD(lr=1)),
            "'KEYz': update=SGD needs a floating-point key, got int32",
        ),
        (lambda s, k: s.create(k + "b", np.zeros(3, bool)), "'KEYb': reduce='sum' of bool values does not fit a bool"),
        (lambda s, k: s.create(k + "r", VALUE, reduce="median"), "'KEYr': expected reduce= one of .*, got 'median'"),
        (lambda s, k: s.create(k + "r", VALUE, reduce="no.such.module:thing"), "'KEYr': .*no.such.module"),
        (lambda s, k: s.create(k + "r", VALUE, update=7), "'KEYr': update= expects .*, got int 7"),
        (lambda s, k: s.create(k + "r", VALUE, filters=["x"]), "'KEYr': expected filters= any of .*, got 'x'"),
        (lambda s, k: s.create(k + "t", torch.zeros(3, 3).to_sparse()), "expected a dense tensor"),
        (lambda s, k: s.push({k: VALUE}, VALUE), "one mapping"),
        (lambda s, k: s.pull(k, view=True, out=VALUE), "exclude each other"),
        (lambda s, k: s.load("/no/such/file"), "no such file"),
        (lambda s, k: s.save("/no/such/folder/file"), "no such directory as '/no/such/folder'"),
        (
            lambda s, k: s.create(k + "c", VALUE, update="add", consistency="eventual"),
            "'KEYc': consistency expects wl.Sequential.*'eventual'",
        ),
        (lambda s, k: s.create(k + "c", VALUE, update="add", consistency=wl.Eventual), "expects wl.Sequential"),
        (lambda s, k: s.pull(k, after=[3]), "after expects tasks, got int"),
        (lambda s, k: s.pull(k, timeout=float("nan")), "timeout expects seconds"),
        (lambda s, k: s.push(k, None), r"push\('KEY'\): expected a value, got None"),
        (lambda s, k: s.pull(3), "a key is a string, got int"),
        (lambda s, k: s.push(k, VALUE, hyper=0.1), "hyper expects a mapping"),
        (lambda s, k: s.push(k, VALUE, hyper={"lr": 10**400}), "hyper expects a mapping of names to numbers"),
        (lambda s, k: s.assign(k, VALUE), "only the driver can assign"),
    ],
)
def test_a_mistake_is_named_and_harms_nothing(cluster, key, call, text):
    (said,) = complaints(cluster, key, call)
    assert re.search(text.replace("KEY", key), said), said


def test_hyper_that_differs_between_members_fails_the_round_for_all_and_the_next_round_works(cluster, key):
    def work(store):
        store.create(key, np.zeros(4, np.float32), update=wl.SGD(lr=1.0))
        said = []
        for attempt in (
            lambda h: store.push(key, np.ones(4, np.float32), hyper=h).wait(),
            lambda h: store.pushpull(key, np.ones(4, np.float32), hyper=h),
        ):
            try:
                attempt({"lr": 0.1 * (1 + store.rank)})
            except wl.UsageError as error:
                said.append(str(error))
        return said, store.pushpull(key, np.ones(4, np.float32)).tolist()

    for said, value in cluster.run(work):
        assert len(said) == 2
        assert (
            f"hyper-parameters of round 1 of '{key}' differ: worker-0 {{'lr': 0.1}}, worker-1 {{'lr': 0.2}}" in said[0]
        )
        assert value == [-WORKERS] * 4


def test_an_updater_that_raises_is_told_to_its_pushers_and_the_server_lives(cluster, key):
    def work(store):
        store.create(key, np.zeros(4, np.float32), update=Failing())
        with pytest.raises(
            wl.UsageError, match=r"the update of '.*' failed: ArithmeticError: this updater always fails"
        ):
            store.push(key, np.ones(4, np.float32)).wait()
        with pytest.raises(wl.UsageError, match="always fails"):
            store.pushpull(key, np.ones(4, np.float32))
        with pytest.raises(wl.UsageError, match=r"the update of '.*' failed: hyper-parameter 'lr' is unknown"):
            store.push(key, np.ones(4, np.float32), hyper={"lr": 0.1}).wait()
        store.create(f"{key}/other", np.zeros(4, np.float32))
        return store.pushpull(f"{key}/other", np.ones(4, np.float32)).tolist()

    assert cluster.run(work) == [[float(WORKERS)] * 4] * WORKERS


def test_an_updater_that_calls_exit_or_whose_error_cannot_be_sent_harms_no_server(cluster, key):
    def work(store):
        store.create(key, np.zeros(4, np.float32), reduce="mean", update=Rude())
        said = []
        for number in (-1, -2, -3, -4):
            with pytest.raises(wl.UsageError, match=r"the update of '.*' failed: ") as caught:
                store.push(key, np.full(4, number, np.float32)).wait()
            said.append(str(caught.value).partition("failed: ")[2])
        return said, store.pushpull(key, np.ones(4, np.float32)).tolist()

    for said, value in cluster.run(work):
        assert said[:2] == ["SystemExit: this updater leaves", "Mute: (its text cannot be had: ArithmeticError)"]
        assert said[2] == r"FileNotFoundError: [Errno 2] not there: '\udcff.txt'"
        assert re.fullmatch(r"ValueError: so so so .{1900,2000}… \(3,000,000 characters\)", said[3])
        assert value == [1.0] * 4
    assert {node.state for node in cluster.nodes() if node.name.startswith("server-")} == {"alive"}


@pytest.mark.parametrize("error", [ValueError(os.fsdecode(b"\xff.txt")), Mute()], ids=["a file's name", "mute"])
def test_an_error_whose_text_cannot_be_sent_comes_as_it_is_and_the_others_are_told(cluster, key, error):
    def work(store):
        store.create(key, np.zeros(4, np.float32))
        if store.rank == 1:
            raise error
        store.pushpull(key, np.ones(4, np.float32))

    began = time.monotonic()
    with pytest.raises(type(error)) as caught:
        cluster.run(work)
    assert time.monotonic() - began < 5
    assert "raised in worker-1" in "".join(caught.value.__notes__)
    assert cluster.run(lambda store: store.rank) == list(range(WORKERS))


def test_a_wait_ends_at_its_deadline_and_names_whom_it_waited_for(cluster, key):
    def work(store):
        store.create(key, np.zeros(4, np.float32))
        said = ""
        if store.rank:
            began = time.monotonic()
            try:
                store.pushpull(key, np.ones(4, np.float32), timeout=0.3)
            except TimeoutError as error:
                said = str(error)
            assert 0.29 < time.monotonic() - began < 0.3 + 2  # asking the servers why may take half a second
        store.barrier()
        if store.rank == 0:
            store.push(key, np.ones(4, np.float32))
        return said, store.pull(key).tolist()

    for rank, (said, value) in enumerate(cluster.run(work)):
        assert value == [float(WORKERS)] * 4  # the push that was waited for in vain still counts
        if rank:
            assert f"pushpull('{key}') did not finish within 0." in said
            assert f"round 1 of '{key}' waits for worker-0" in said


def test_a_barrier_that_came_too_late_for_somebody_is_the_same_when_it_calls_again(cluster, key):
    def work(store):
        store.create(key, np.zeros(1, np.float32), update="add")
        for _ in range(2):
            if store.rank:
                with pytest.raises(TimeoutError, match="worker-0"):
                    store.barrier(timeout=0.2)
            else:
                time.sleep(0.6)
            store.barrier(timeout=20)
        store.push(key, np.ones(1, np.float32))
        store.barrier(timeout=20)
        return store.pull(key).tolist()

    assert cluster.run(work) == [[float(WORKERS)]] * WORKERS


def test_a_failed_push_that_nobody_waited_for_is_raised_by_the_next_call_or_by_the_end(cluster, key):
    def work(store, goes_on):
        store.create(f"{key}/{goes_on}", np.zeros(4, np.float32), update=Failing())
        store.push(f"{key}/{goes_on}", np.ones(4, np.float32))
        store.barrier()
        time.sleep(0.1)
        store.barrier()
        if goes_on:
            store.pull(f"{key}/{goes_on}")

    for goes_on in (True, False):
        with pytest.raises(wl.UsageError, match="this updater always fails") as caught:
            cluster.run(work, goes_on)
        assert "that nobody waited for" in "".join(caught.value.__notes__)


def test_a_timeout_of_zero_does_not_wait(cluster, key):
    def work(store):
        store.create(key, np.zeros(4, np.float32))
        began = time.monotonic()
        if store.rank == 0:
            with pytest.raises(TimeoutError):
                store.pushpull(key, np.ones(4, np.float32), timeout=0)
        else:
            store.push(key, np.ones(4, np.float32))
        took = time.monotonic() - began
        return took, store.pull(key).tolist()

    for took, value in cluster.run(work):
        assert took < 3
        assert value == [float(WORKERS)] * 4


def test_what_comes_after_a_timeout_does_not_touch_the_callers_memory(cluster, key):
    def work(store):
        size = 600_000
        store.create(key, np.zeros(size, np.float32))
        value, out = np.ones(size, np.float32), np.zeros(size, np.float32)
        if store.rank == 0:
            with pytest.raises(TimeoutError):
                store.pushpull(key, value, out=out, timeout=0.2)
            value[:] = 1000  # the caller's again, although the push is still under way
            out[:] = -1
        store.barrier()
        if store.rank:
            store.push(key, value)
        got = store.pull(key)
        return float(got.min()), float(got.max()), float(out.min()), float(out.max())

    results = cluster.run(work)
    assert all(result[:2] == (WORKERS, WORKERS) for result in results)
    assert results[0][2:] == (-1, -1)


def test_a_call_that_is_given_up_before_its_turn_came_has_let_go_of_the_callers_memory(cluster, key):
    def work(store):
        size = 600_000
        store.create(key, np.zeros(size, np.float32))
        store.create(f"{key}-first", np.zeros(4, np.float32))
        value, out = np.ones(size, np.float32), np.zeros(size, np.float32)
        if store.rank == 0:
            first = store.push(f"{key}-first", np.ones(4, np.float32))  # which the others make later
            with pytest.raises(TimeoutError):
                store.pushpull(key, value, out=out, after=[first], timeout=0.2)
            assert not first.is_done
            value[:] = 1000  # the caller's again, although nothing of the push has left yet
            out[:] = -1
        store.barrier()
        if store.rank:
            store.push(f"{key}-first", np.ones(4, np.float32))
            store.push(key, value)
        got = store.pull(key)
        return float(got.min()), float(got.max()), float(out.min()), float(out.max())

    results = cluster.run(work)
    assert all(result[:2] == (WORKERS, WORKERS) for result in results)
    assert results[0][2:] == (-1, -1)


def test_a_key_that_somebody_has_deleted_is_named():
    def work(store):
        store.create("kept", np.zeros(4, np.float32), update="add", consistency=wl.Eventual())
        store.create("gone", np.zeros(4, np.float32), update="add", consistency=wl.Eventual())
        store.barrier()
        if store.rank == 0:
            store.delete("gone")
        store.barrier()
        both = {"kept": np.ones(4, np.float32), "gone": np.ones(4, np.float32)}
        calls = (lambda: store.push(both).wait(), lambda: store.pull(["kept", "gone"]), lambda: store.version("gone"))
        for call in calls if store.rank else ():
            with pytest.raises(wl.UsageError, match=r"^'gone' was deleted; create it again$"):
                call()

    with wl.Cluster(engine="threads", workers=2) as cluster:
        cluster.run(work)


def test_whoever_asks_for_a_key_that_is_not_there_hears_of_those_that_users_made():
    def work(store):
        store.create("mine", VALUE)
        store.barrier()
        with pytest.raises(wl.UsageError, match=r"^no key 'mime'; create it first \(keys: 'mine'\)$"):
            store.pull("mime")

    with wl.Cluster(engine="threads", workers=2) as cluster:
        cluster.run(work)


def test_names_that_are_the_stores_own_are_refused():
    with pytest.raises(wl.UsageError, match="begin with 'windlass/' are the store's own"):
        wl.Store().create("windlass/mine", VALUE)


def test_not_a_number_is_refused_where_asked():
    store = wl.Store(check_finite=True)
    store.create("w", np.zeros(5, np.float32))
    store.create("b", torch.zeros(5, dtype=torch.bfloat16))
    with pytest.raises(wl.UsageError, match=r"push\('w'\): expected finite values, got NaN or infinity \(first at 3\)"):
        store.push("w", np.array([0, 1, 2, np.nan, np.inf], np.float32))
    with pytest.raises(wl.UsageError, match=r"push\('b'\): expected finite values, got NaN or infinity \(first at 3\)"):
        store.push("b", torch.tensor([0, 0, 0, float("inf"), 0], dtype=torch.bfloat16))
    assert store.pushpull("w", np.ones(5, np.float32)).tolist() == [1.0] * 5


def test_a_closed_store_says_so():
    store = wl.Store()
    store.create("w", VALUE)
    store.close()
    store.close()
    calls = {
        "push('w')": lambda: store.push("w", VALUE),
        "pull('w')": lambda: store.pull("w"),
        "pushpull('w')": lambda: store.pushpull({"w": VALUE}),
        "create('v')": lambda: store.create("v", VALUE),
        "looking for 'v'": lambda: store.push("v", VALUE),
    }
    for called, call in calls.items():
        with pytest.raises(wl.UsageError) as caught:
            call()
        assert str(caught.value).startswith(f"{called}: expected an open store, but the store is closed")
    assert "closed" in repr(store)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(wl.UsageError, match="deterministic=True expects Sequential"):
        wl.Store(consistency=wl.Eventual(), deterministic=True)
    for delay in (0, 1.5):
        with pytest.raises(wl.UsageError, match="at least 1"):
            wl.Bounded(delay)
    with pytest.raises(wl.UsageError, match=r"consistency expects wl\.Sequential"):
        wl.Cluster(consistency="eventual")
    with pytest.raises(wl.UsageError, match="unknown option timout; did you mean timeout"):
        wl.Store(timout=3)
    with pytest.raises(wl.UsageError, match="timeout expects seconds"):
        wl.Store(timeout=-1)
    with pytest.raises(wl.UsageError, match="unknown option colour"):
        wl.Cluster(colour="red")
    with pytest.raises(wl.UsageError, match="engine expects"):
        wl.Cluster(engine="steam")
    with pytest.raises(wl.UsageError, match="transport expects"):
        wl.Cluster(transport="pigeon")
    with pytest.raises(wl.UsageError, match="at least 1 server"):
        wl.Cluster(servers=0)


@pytest.mark.parametrize("verb", ["push", "pushpull"])
def test_a_call_that_is_refused_for_one_key_keeps_no_memory_for_the_others(verb):
    def work(store):
        store.create("a", np.zeros(100_000, np.float32), update="add")
        store.create_table("t", dim=64, update="add")
        store.create("b", np.zeros(8, np.float32), update="add")
        ids, rows = np.arange(1000), np.ones((1000, 64), np.float32)
        good, wrong = np.ones(100_000, np.float32), np.ones(9, np.float32)
        live = store._client.hub.memory._live
        before, texts = len(live), set()
        for _ in range(3):
            try:
                getattr(store, verb)({"a": good, "t": rows, "b": wrong}, ids={"t": ids})
            except wl.UsageError as error:
                texts.add(str(error))
        kept = len(live) - before
        store.push({"a": good, "t": rows}, ids={"t": ids}).wait()  # and no error of theirs is still to come
        return texts, kept, float(store.pull("a")[0]), float(store.pull("t", ids=[1])[0, 0])

    with wl.Cluster() as cluster:
        ((texts, kept, value, row),) = cluster.run(work)
    assert texts == {"push('b'): expected shape (8,), got (9,)"}
    assert (kept, value, row) == (0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(9, np.float32), r"assign\('w'\): expected shape \(8,\), got \(9,\)"),
        (np.zeros(8), r"assign\('w'\): expected dtype float32, got float64"),
        (np.full(8, np.nan, np.float32), r"assign\('w'\): expected finite values, got NaN or infinity \(first at 0\)"),
        (None, r"assign\('w'\): expected a value, got None$"),
    ],
)
def test_a_value_that_cannot_be_assigned_is_told_as_such_and_the_old_one_stays(value, text):
    with wl.Store(check_finite=True) as store:
        store.create("w", np.ones(8, np.float32))
        with pytest.raises(wl.UsageError, match=text):
            store.assign("w", value)
        assert (store.pull("w") == 1).all()
