"""A mistake with a table gets an error that names the table, what was expected and what came; nothing of it counts."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import windlass as wl
from windlass.store.batch import route

from .conftest import KINDS, WORKERS

ROWS = np.ones((2, 3), np.float32)
IDS = np.array([1, 2])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s, k: s.push(k, ROWS), r"push\('KEY'\): it is a table: say which rows, by ids="),
        (lambda s, k: s.pull(k), r"pull\('KEY'\): it is a table: say which rows, by ids="),
        (lambda s, k: s.push(k, ROWS, ids=[1.0, 2.0]), r"push\('KEY'\): ids must be int64, or .*, got 1\.0 \(float\)"),
        (lambda s, k: s.push(k, ROWS, ids=np.array([1, 2], np.uint64)), r"got uint64; ids\.view\(np\.int64\)"),
        (lambda s, k: s.push(k, ROWS, ids=torch.tensor([1.5, 2])), "ids must be int64, .* got float32"),
        (lambda s, k: s.push(k, ROWS, ids=np.array([True, False])), "ids must be int64, .* got bool"),
        (lambda s, k: s.push(k, ROWS, ids=["a", "b"]), r"push\('KEY'\): ids must be int64, .* got 'a' \(str\)"),
        (lambda s, k: s.push(k, ROWS, ids=[[1], [2, 3]]), "got lists of different lengths"),
        (lambda s, k: s.push(k, ROWS, ids=object()), "ids must be int64, .*, got object"),
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
        (lambda s, k: s.pull(k, range="ab"), r"range expected \(lo, hi\), two whole numbers, got 'ab'"),
        (lambda s, k: s.pull(k, range=(1, 2), ids=IDS), "range= and ids= exclude each other"),
        (lambda s, k: s.pull([k, k], range=(1, 2)), "say which rows by ids="),
        (lambda s, k: s.push(k, ROWS, ids=IDS, hyper={"momentm": 1}), r"push\('KEY', .* 'momentm' is unknown to SGD"),
        (lambda s, k: s.buffer(k), "table"),
        (lambda s, k: s.create_table(k, dim=4, update=wl.SGD(lr=1.0)), "'KEY' is declared already, dim was 3, got 4; "),
        (
            lambda s, k: s.create_table(k, dim=3, update=wl.SGD(lr=1.0), max_rows=5),
            "'KEY' is declared already, max_rows was None, got 5; delete it first",
        ),
        (
            lambda s, k: s.create(k, np.zeros(3, np.float32)),
            r"'KEY' is declared already, as a table of dim 3, and now as a dense key of shape \(3,\); delete",
        ),
        (lambda s, k: s.create_table("dense", dim=3), "'dense' is declared already"),
        (lambda s, k: s.create_table(k + "x", dim=0), "'KEYx': dim must be a whole number from 1"),
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


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([2**63], r"pull\('emb'\): ids must be int64, .* got 9223372036854775808, and ids go from -2\*\*63 to 2\*\*63"),
        ([1, -5, 2**63], "got 9223372036854775808, and"),
        ([[1, 2], [3, -(2**70)]], "got -1180591620717411303424, and"),
        ([1, None], r"got None \(NoneType\)"),
        ([True], r"got True \(bool\)"),
        ({1, 2}, r"got set \{1, 2\}; list\(ids\) makes some"),
        (np.array([1.5]), r"got float64; ids\.astype\(np\.int64\) makes some"),
        (torch.tensor([1.5]), "got float32$"),
    ],
)
def test_what_is_no_id_is_told_as_it_was_given(ids, text):
    store = wl.Store()
    store.create_table("emb", dim=2)
    with pytest.raises(wl.UsageError, match=text):
        store.pull("emb", ids=ids)


def test_a_second_declaration_is_told_only_what_differs():
    store = wl.Store()
    store.create_table("emb", dim=2, update=wl.SGD(lr=0.1), init=wl.Normal(0.1), filters=[wl.filters.IdCache()])
    with pytest.raises(wl.UsageError) as caught:
        store.create_table("emb", dim=2, update=wl.SGD(lr=0.2), init=1.0)
    assert str(caught.value) == (
        "'emb' is declared already, init was normal(seed=0, std=0.1, mean=0.0), got constant(value=1.0); "
        "update sgd: lr was 0.1, got 0.2; filters was ['id_cache'], got (); "
        "delete it first, or declare it alike everywhere"
    )
    store.create("w", np.zeros(3, np.float32), update="add")
    with pytest.raises(wl.UsageError, match="already, update was 'add', got 'assign'; delete"):
        store.create("w", np.zeros(3, np.float32))


@pytest.mark.parametrize("call", ["push", "pushpull"])
def test_numbers_that_the_updater_has_not_got_are_refused_before_anything_is_sent(call):
    store = wl.Store()
    table = store.create_table("emb", dim=2)
    store.create("w", np.zeros(2, np.float32), update="add")
    store.create("v", np.zeros(2, np.float32), update=wl.SGD(lr=1.0))
    rows, grad, send = np.ones((1, 2), np.float32), np.ones(2, np.float32), getattr(store, call)
    with pytest.raises(wl.UsageError, match=r"push\('emb'\): hyper=.*, but update='add' has no numbers to set; an upd"):
        send("emb", rows, ids=[1], hyper={"lr": 0.1})
    with pytest.raises(wl.UsageError, match=r"push\('w'\): hyper=.*, but update='add' has no numbers to set"):
        send("w", grad, hyper={"lr": 0.1})
    with pytest.raises(wl.UsageError, match=r"push\('v', hyper=.*\): SGD\(lr=-1\.0\): lr must be"):
        send("v", grad, hyper={"lr": -1})
    assert (len(table), store.version("w"), store.version("v")) == (0, 0, 0)
    assert store.pushpull("v", grad, hyper={"lr": 0.5}).tolist() == [-0.5, -0.5]


@pytest.mark.parametrize(
    "call",
    [
        len,
        list,
        lambda table: 1 in table,
        lambda table: table.nbytes,
        lambda table: table.num_candidates,
        lambda table: table.pull(ids=IDS),
        lambda table: table.pull(range=(0, 9)),
        lambda table: table.push(ROWS, ids=IDS).wait(),
    ],
)
def test_a_table_that_somebody_has_deleted_is_named(cluster, key, call):
    def work(store):
        table = store.create_table(key, dim=3, consistency=wl.Eventual())
        table.push(ROWS, ids=IDS).wait()
        store.barrier()
        if store.rank == 0:
            store.delete(key)
        store.barrier()
        with pytest.raises(wl.UsageError) as caught:
            call(table)
        return str(caught.value)

    first, *others = cluster.run(work)
    assert f"'{key}'" in first
    assert others == [f"'{key}' was deleted; create it again"] * (WORKERS - 1)


def test_to_delete_what_is_not_there_is_harmless_and_what_is_no_name_is_refused():
    store = wl.Store()
    store.create("w", np.zeros(3, np.float32), update="add")
    store.create_table("emb", dim=3)
    for name in ("w", "emb", "w", "emb", "nowhere"):
        store.delete(name)
        known = store.keys()
        assert name not in known
    with pytest.raises(wl.UsageError, match="a key is a string, got int"):
        store.delete(5)


@pytest.mark.parametrize("rows", [0, -1, 1.5, "many"])
def test_pages_of_no_rows_are_refused_at_once(rows):
    table = wl.Store().create_table("emb", dim=2)
    with pytest.raises(wl.UsageError, match="pages of 'emb': rows expects a whole number of at least 1, got "):
        table.pages(rows=rows)


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


def crowd(num_slots: int, num_shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Some ids of every slot of the first shard; and many of its last slot alone."""
    way = route(np.arange(100_000), num_slots)
    last = num_slots // num_shards - 1
    few = [way.ids[way.bounds[slot] : way.bounds[slot] + 5] for slot in range(last + 1)]
    return np.concatenate(few), way.ids[way.bounds[last] : way.bounds[last + 1]]


@pytest.mark.parametrize(
    ("consistency", "transport", "replicas"),
    [
        (wl.Sequential(), "threads", 0),
        (wl.Eventual(), "threads", 0),
        (wl.Sequential(), "threads", 1),
        (wl.Bounded(3), "tcp", 1),
    ],
)
def test_a_push_that_would_outgrow_max_bytes_leaves_every_slot_of_its_shard_as_it_was(consistency, transport, replicas):
    """Only the last slot has no room. Over TCP every slot has a message of its own."""
    few, many = crowd(16, 4 * (replicas + 1))
    both = np.concatenate([few[:-5], many])

    def work(store):
        table = store.create_table("emb", dim=4, max_bytes=300_000, consistency=consistency)
        store.push("emb", np.ones((few.size, 4), np.float32), ids=few).wait()
        said = []
        for call in (store.push, lambda *args, **named: store.pushpull(*args, wait=False, **named)):
            with pytest.raises(wl.UsageError) as caught:
                call("emb", np.ones((both.size, 4), np.float32), ids=both).wait()
            said.append(str(caught.value))
        store.barrier()
        return said, len(table), store.pull("emb", ids=few).max()

    options = KINDS[transport] | {"servers": replicas + 1, "workers": 2, "replicas": replicas, "timeout": 20}
    with wl.Cluster(**options) as cluster:
        for said, count, largest in cluster.run(work):
            refused = r"'emb' has taken nothing of this push: the table would outgrow max_bytes"
            assert all(re.search(refused, one) for one in said), said
            assert "Raise max_bytes, or let rows go: max_rows" in said[0]
            assert (count, largest) == (few.size, 2)
        if replicas:
            cluster.remove_server("server-0")
            ids, rows = cluster.store().pull("emb", range=(0, 100_000))
            assert ids.tolist() == sorted(few.tolist())
            assert (rows == 2).all()


def test_a_push_without_rounds_that_fits_into_some_shards_only_is_taken_by_none():
    store = wl.Store()
    table = store.create_table("emb", dim=4, max_bytes=300_000, consistency=wl.Eventual())
    way = route(np.arange(100_000), 16)
    ids = np.concatenate([way.ids[:5], way.ids[way.bounds[15] :]])  # a few of the first slot, and all of the last
    with pytest.raises(wl.UsageError, match=r"^'emb' has taken nothing of this push: the table would"):
        store.push("emb", np.ones((ids.size, 4), np.float32), ids=ids).wait()
    assert len(table) == 0


@pytest.mark.parametrize("transport", ["embedded", "threads"])
def test_a_round_that_does_not_fit_into_one_shard_of_a_table_is_taken_by_none(transport):
    """The first shards have room for it, the last has not."""
    way = route(np.arange(100_000), 16)
    light = np.concatenate([way.ids[way.bounds[slot] : way.bounds[slot] + 5] for slot in range(15)])
    heavy = way.ids[way.bounds[15] :]

    def work(store):
        table = store.create_table("emb", dim=4, max_bytes=300_000, update=wl.Adagrad(lr=1.0))
        said = []
        for ids in (light, np.concatenate([light, heavy]), light, np.concatenate([light, heavy]), light):
            try:
                store.push("emb", np.full((ids.size, 4), -1, np.float32), ids=ids).wait()
                said.append("")
            except wl.UsageError as error:
                said.append(str(error))
        return [bool(one) for one in said], said[1], len(table), store.pull("emb", ids=light)

    def check(results, expected):
        for is_refused, said, count, rows in results:
            assert is_refused == [False, True, False, True, False]
            assert "'emb' has taken nothing of this push: the table would outgrow max_bytes" in said
            assert count == light.size
            assert np.allclose(rows, expected)

    steps = 1 + 1 / np.sqrt(2) + 1 / np.sqrt(3)  # Adagrad's, three of them
    if transport == "embedded":
        check([work(wl.Store())], steps)
        return
    with wl.Cluster(servers=2, workers=2, replicas=1, engine="threads", timeout=20) as cluster:
        check(cluster.run(work), steps)
        cluster.remove_server("server-0")
        assert np.allclose(cluster.store().pull("emb", ids=light), steps)
        check(cluster.run(lambda store: (*work(store)[:3], np.full(1, steps))), steps)
