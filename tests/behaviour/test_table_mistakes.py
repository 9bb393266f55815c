"""A mistake with a table gets an error that names the table, what was expected and what came; nothing of it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import windlass as wl

from .conftest import WORKERS

ROWS = np.ones((2, 3), np.float32)
IDS = np.array([1, 2])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, k: s.push(k, ROWS), r"push\('KEY'\): it is a table: say which rows, by ids="),
        (lambda s, k: s.pull(k), r"pull\('KEY'\): it is a table: say which rows, by ids="),
        (lambda s, k: s.push(k, ROWS, ids=[1.0, 2.0]), r"'KEY': ids must be int64, or .*, got float64"),
        (lambda s, k: s.push(k, ROWS, ids=np.array([1, 2], np.uint64)), "ids must be int64, .* got uint64"),
        (lambda s, k: s.push(k, ROWS, ids=torch.tensor([1.5, 2])), "ids must be int64, .* got float32"),
        (lambda s, k: s.push(k, ROWS, ids=np.array([True, False])), "ids must be int64, .* got bool"),
        (lambda s, k: s.push(k, ROWS, ids=["a", "b"]), r"push\('KEY'\): ids must be whole numbers .*, got list"),
        (lambda s, k: s.push(k, ROWS, ids=[[1], [2, 3]]), "ids must be whole numbers .*, got list"),
        (lambda s, k: s.push(k, ROWS, ids=object()), "ids must be whole numbers .*, got object"),
        (lambda s, k: s.pull(k, ids=[1.0]), "ids must be int64"),
        (
            lambda s, k: s.push(k, np.ones((2, 4), np.float32), ids=IDS),
            r"push\('KEY'\): expected shape \(2, 3\), a row of 3 for each id, got \(2, 4\)",
        ),
        (lambda s, k: s.push(k, ROWS, ids=[1]), r"expected shape \(1, 3\), a row of 3 for each id, got \(2, 3\)"),
        (lambda s, k: s.push(k, ROWS.astype(np.float64), ids=IDS), "expected rows of float32, got float64"),
        (lambda s, k: s.push(k, None, ids=IDS), r"push\('KEY'\): expected rows, got None"),
        (lambda s, k: s.push(k, ROWS, ids=IDS, range=(0, 2)), "'KEY' is a table: say which rows by ids="),
        (lambda s, k: s.push(k, ROWS, ids={"other": IDS}), "say which rows, by ids="),
        (lambda s, k: s.push({k: ROWS}, ids=IDS), "ids expects a mapping of tables to ids"),
        (lambda s, k: s.push("dense", np.zeros(4, np.float32), ids=IDS), "'dense' is a dense key: ids= is for tables"),
        (lambda s, k: s.table("dense"), "'dense' is a dense key, not a table"),
        (lambda s, k: s.table("nowhere"), "no key 'nowhere'"),
        (lambda s, k: s.pull(k, ids=IDS, out=np.zeros((2, 4), np.float32)), r"out expected float32 of shape \(2, 3\)"),
        (lambda s, k: s.pull(k, range=(5, 1)), r"range expected lo <= hi, got \(5, 1\)"),
        (lambda s, k: s.pull(k, range="ab"), r"range expected \(lo, hi\), got 'ab'"),
        (lambda s, k: s.pull(k, range=(1, 2), ids=IDS), "range= and ids= exclude each other"),
        (lambda s, k: s.pull([k, k], range=(1, 2)), "say which rows by ids="),
        (lambda s, k: s.push(k, ROWS, ids=IDS, hyper={"momentm": 1}).wait(), "momentm"),
        (lambda s, k: s.buffer(k), "table"),
        (lambda s, k: s.create_table(k, dim=4, update=wl.SGD(lr=1.0)), "'KEY' is declared already, shape was"),
        (lambda s, k: s.create_table(k, dim=3, max_rows=5), "'KEY' is declared already"),
        (lambda s, k: s.create(k, np.zeros(3, np.float32)), "'KEY' is declared already"),
        (lambda s, k: s.create_table("dense", dim=3), "'dense' is declared already"),
        (lambda s, k: s.create_table(k + "x", dim=0), "dim must be a whole number from 1"),
        (lambda s, k: s.create_table(k + "x", dim=3, dtype="int32"), "int32"),
        (lambda s, k: s.create_table(k + "x", dim=3, dtype="float64"), "float64"),
        (lambda s, k: s.create_table(k + "x", dim=3, init="normal"), r"init= expects a number, wl\.Constant"),
        (lambda s, k: s.create_table(k + "x", dim=3, slots=0), "slots expects a whole number from 1 to 4096"),
        (lambda s, k: s.create_table(k + "x", dim=3, max_rows=0), "max_rows must be a whole number of at least 1"),
        (lambda s, k: s.create_table(k + "x", dim=3, ttl_seconds=-1), "ttl_seconds must be a number above 0"),
        (lambda s, k: s.create_table(k + "x", dim=3, admit_after=0), "admit_after must be a whole number from 1"),
        (lambda s, k: s.create_table(k + "x", dim=3, max_bytes=1.5), "max_bytes must be a whole number"),
        (
            lambda s, k: s.create_table(k + "x", dim=3, update="assign", consistency=wl.Eventual()),
            r"update='assign' expects Sequential\(\)",
        ),
        (lambda s, k: s.create_table("windlass/x", dim=3), "the store's own"),
        (lambda s, k: s.create_table("", dim=3), "a key is a string of 1 to 512 bytes"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_and_harms_nothing(cluster, key, call, text):
    def work(store):
        store.create("dense", np.zeros(4, np.float32), update="add")
        store.create_table(key, dim=3, update=wl.SGD(lr=1.0))
        said = "nothing"
        try:
            call(store, key)
        except wl.UsageError as error:
            said = str(error)
        store.barrier()
        rows = store.pushpull(key, -ROWS, ids=IDS)
        assert (rows == WORKERS).all()
        return said

    for said in cluster.run(work):
        assert re.search(text.replace("KEY", key), said), said


def test_a_row_that_is_not_finite_is_refused_where_asked_and_named_by_its_id():
    store = wl.Store(check_finite=True)
    store.create_table("emb", dim=2)
    store.create_table("half", dim=2, dtype="bfloat16")
    rows = np.array([[1, 2], [np.nan, 3], [np.inf, 0]], np.float32)
    with pytest.raises(wl.UsageError, match=r"push of 'emb': the row of id -4 has a NaN .* 1 more rows; nothing was"):
        store.push("emb", rows, ids=[9, -4, 5])
    with pytest.raises(wl.UsageError, match="the row of id 5 has a NaN"):
        store.push("half", torch.tensor([[0, float("inf")]], dtype=torch.bfloat16), ids=[5])
    with pytest.raises(wl.UsageError, match="'emb'"):
        store.push({"half": torch.ones(1, 2, dtype=torch.bfloat16), "emb": rows}, ids={"half": [1], "emb": [9, -4, 5]})
    assert (len(store.table("emb")), len(store.table("half"))) == (0, 0)
    assert store.pushpull("emb", rows[:1], ids=[9]).tolist() == [[1, 2]]


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Eventual()])
@pytest.mark.parametrize("replicas", [0, 1])
def test_a_push_that_would_outgrow_max_bytes_is_refused_by_all_slots_of_a_server(consistency, replicas):
    def work(store):
        table = store.create_table("emb", dim=4, max_bytes=200_000, consistency=consistency)
        few, many = np.arange(50), np.arange(1_000_000, 1_010_000)
        store.push("emb", np.ones((50, 4), np.float32), ids=few).wait()
        said = []
        for call in (store.push, lambda *args, **named: store.pushpull(*args, wait=False, **named)):
            with pytest.raises(wl.UsageError) as caught:
                call("emb", np.ones((10_000, 4), np.float32), ids=np.concatenate([few, many])[-10_000:]).wait()
            said.append(str(caught.value))
        count, rows = len(table), store.pull("emb", ids=few)
        store.barrier()
        return said, count, rows.max(), store.pushpull("emb", np.ones((50, 4), np.float32), ids=few).min()

    options = {"servers": replicas + 1, "workers": 2, "replicas": replicas, "engine": "threads", "timeout": 20}
    with wl.Cluster(**options) as cluster:
        for said, count, largest, _ in cluster.run(work):
            assert all(re.search("'emb' has taken nothing of this push: the table would outgrow max_bytes", one)
                       for one in said)  # fmt: skip
            assert "Raise max_bytes, or let rows go: max_rows" in said[0]
            assert count == 50
            assert largest == 2
        assert (cluster.store().pull("emb", ids=np.arange(50)) == 4).all()


def test_a_push_in_many_messages_is_refused_as_one():
    """Over TCP every slot has a message of its own, and only the last slots have no room."""

    def work(store):
        table = store.create_table("emb", dim=4, max_bytes=4 * 20_000, slots=4, consistency=wl.Eventual())
        ids = np.arange(40_000)
        before = [store.pull("emb", ids=ids).any(), len(table)]
        with pytest.raises(wl.UsageError, match="has taken nothing of this push"):
            store.push("emb", np.ones((40_000, 4), np.float32), ids=ids).wait()
        return [*before, store.pull("emb", ids=ids).any(), len(table)]

    with wl.Cluster(servers=1, workers=1, transport="tcp", timeout=20) as cluster:
        assert cluster.run(work) == [[False, 0, False, 0]]
