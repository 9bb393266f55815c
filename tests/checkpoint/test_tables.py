"""Tables in checkpoints: they load onto any number of servers and go on bit for bit, and can be looked at."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch

import windlass as wl
from tests.cli.command import windlass
from windlass import filters as wf
from windlass.checkpoint import Reader, diff

STEPS = 6
UPDATERS = {
    "adagrad": wl.Adagrad(lr=0.1),
    "rowwise": wl.RowwiseAdagrad(lr=0.1),
    "adam": wl.Adam(lr=0.1),
    "ftrl": wl.FTRL(lr=0.2, l1=0.1),
}


def declare(store):
    for name, update in UPDATERS.items():
        store.create_table(name, dim=3, update=update, init=wl.Normal(0.1, seed=2), slots=6)
    store.create_table("half", dim=2, dtype="bfloat16", update=wl.SGD(lr=0.1))
    store.create_table("aged", dim=2, admit_after=2, max_rows=60, ttl_updates=20, slots=2)
    store.create_table("empty", dim=2)
    store.create_table("loose", dim=1, consistency=wl.Eventual())
    store.create("w", np.zeros(10, np.float32), update=wl.Adam(lr=0.1))


def train(store, begin, end):
    declare(store)
    for step in range(begin, end):
        rng = np.random.default_rng(100 * step + store.rank)
        ids = rng.integers(-80, 80, 50)
        rows = rng.standard_normal((50, 3)).astype(np.float32)
        names = [*UPDATERS, "aged", "loose"]
        values = dict.fromkeys(UPDATERS, rows) | {"aged": rows[:, :2].copy(), "loose": np.ones((50, 1), np.float32)}
        store.push(values | {"w": rows.reshape(-1)[:10]}, ids=dict.fromkeys(names, ids)).wait()
        store.push("half", torch.from_numpy(rows[:, :2].copy()).bfloat16(), ids=torch.from_numpy(ids)).wait()
    store.barrier()
    tables = {name: [part.tobytes() for part in store.pull(name, range=(-100, 100))] for name in (*names_of(), "empty")}
    return tables | {"w": store.pull("w").tobytes()}


def names_of():
    return (*UPDATERS, "half", "aged", "loose")


def cluster(servers, **options):
    return wl.Cluster(servers=servers, workers=2, engine="threads", timeout=20, **options)


def test_tables_load_onto_any_number_of_servers_and_go_on_bit_for_bit(tmp_path):
    with cluster(3, replicas=1) as first:
        first.run(train, 0, STEPS)
        first.store().save(str(tmp_path))
        expected = first.run(train, STEPS, 2 * STEPS)[0]
    for servers in (1, 4):
        with cluster(servers) as second:
            second.store().load(str(tmp_path))
            assert second.store().version("adam") == STEPS
            for found in second.run(train, STEPS, 2 * STEPS):
                assert found == expected


def test_a_table_that_is_pushed_to_while_it_is_saved_is_saved_after_one_round(tmp_path):
    def work(store):
        store.create_table("t", dim=2, slots=7)
        paths, ids = [], np.arange(3000)
        for step in range(60):
            store.push("t", np.ones((3000, 2), np.float32), ids=ids)
            if store.rank == 0 and step == 20:
                paths.append(store.save(str(tmp_path)))
        store.pull("t", ids=[0])
        return paths

    with cluster(2, replicas=1) as there:
        [path] = there.run(work)[0]
    reader = Reader(path)
    value = reader.array("t")
    assert value.shape == (3000, 2)
    assert (value == 2 * reader.manifest.step).all()
    assert sorted(reader.array("t", "ids").tolist()) == list(range(3000))


def filtered(store, begin, end):
    store.create_table("t", dim=3, update=wl.Adagrad(lr=0.1), filters=[wf.IdCache(), wf.TopK(0.2), wf.Int8()])
    store.create("w", np.zeros(1000, np.float32), update="add", filters=[wf.OneBit()])
    for step in range(begin, end):
        rng = np.random.default_rng(100 * step + store.rank)
        ids = rng.permutation(200)[:60]
        store.push({"t": rng.standard_normal((60, 3)).astype(np.float32),
                    "w": rng.standard_normal(1000).astype(np.float32)}, ids={"t": ids}).wait()  # fmt: skip
    kept = [store.status()["filters"][key]["residual_norm"] for key in ("t", "w")]
    return store.pull("t", ids=np.arange(200)).tobytes(), store.pull("w").tobytes(), kept


def test_what_filters_kept_back_is_saved_and_goes_back_to_the_worker_of_the_same_rank(tmp_path):
    with cluster(2) as first:
        kept = [result[2] for result in first.run(filtered, 0, STEPS)]
        path = first.run(save_by_rank_0, str(tmp_path))[0]
        expected = first.run(filtered, STEPS, 2 * STEPS)
    assert all(norm > 0 for each in kept for norm in each)
    for servers in (3, 2):
        with cluster(servers, replicas=1) as second:
            second.store().load(path)
            again = second.run(filtered, STEPS, STEPS)
            assert [result[2] for result in again] == [pytest.approx(each) for each in kept]
            if servers == 2:  # with others the parcels are others, and so is what top-k takes of each
                assert second.run(filtered, STEPS, 2 * STEPS) == expected


def save_by_rank_0(store, root):
    filtered(store, 0, 0)
    path = store.save(root) if store.rank == 0 else ""
    store.barrier()
    return path


def test_rows_go_on_ageing_by_the_clock_after_a_load(tmp_path):
    first = wl.Store()
    table = first.create_table("t", dim=1, ttl_seconds=2.0, slots=1)
    time.sleep(1.5)
    first.push("t", np.ones((1, 1), np.float32), ids=[1]).wait()
    first.save(str(tmp_path))
    assert len(table) == 1
    second = wl.Store()
    second.load(str(tmp_path))
    second.push("t", np.ones((1, 1), np.float32), ids=[2]).wait()
    assert sorted(second.table("t")) == [1, 2]
    time.sleep(2.1)
    second.push("t", np.ones((1, 1), np.float32), ids=[3]).wait()
    assert sorted(second.table("t")) == [3]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two checkpoints of a table: a row has changed, one has gone, two have come."""
    root = str(tmp_path_factory.mktemp("runs"))
    store = wl.Store()
    store.create_table("t", dim=2, max_rows=10, slots=1)
    store.create_table("c", dim=2, admit_after=3, slots=2)
    store.push({"t": np.ones((10, 2), np.float32), "c": np.ones((2, 2), np.float32)},
               ids={"t": np.arange(10), "c": [1, 2]}).wait()  # fmt: skip
    one = store.save(root, name="one")
    store.push({"t": np.ones((3, 2), np.float32), "c": np.ones((1, 2), np.float32)},
               ids={"t": [9, 20, 21], "c": [3]}).wait()  # fmt: skip
    return root, one, store.save(root, name="two")


def test_a_diff_of_tables_compares_rows_by_their_ids(two):
    _, one, other = two
    assert diff(Reader(one), Reader(one)).is_same
    found = diff(Reader(one), Reader(other))
    assert not found.is_same
    gone = 12 - (10 - 10 // 16)  # of twelve, to what is left of a sweep
    assert set(found.rows) == {("t", "rows", gone, 2), ("c", "candidates", 0, 1)}
    [value] = [array for array in found.arrays if (array.key, array.name) == ("t", "value")]
    assert (value.differing, value.max_abs) == (2, 1.0)
    assert value.elements == 2 * (10 - gone)


def test_the_command_lists_verifies_and_compares_checkpoints_with_tables(two):
    root, one, other = two
    listed = {each["name"]: each for each in json.loads(windlass("checkpoint", "ls", "--json", root).stdout)}
    assert {each["state"] for each in listed.values()} == {"complete"}
    assert set(listed["one"]["keys"]) == {"t", "c"}
    verified = windlass("checkpoint", "verify", root)
    assert verified.returncode == 0
    assert verified.stdout.count("every byte as it was written") == 2
    compared = windlass("checkpoint", "diff", one, other)
    assert (compared.returncode, compared.stderr) == (1, "")
    assert "~ rows t: 2 rows removed, 2 added" in compared.stdout
    assert "~ candidates c: 0 candidates removed, 1 added" in compared.stdout
    same = windlass("checkpoint", "diff", one, one)
    assert (same.returncode, "The same: 2 keys, every bit" in same.stdout) == (0, True)
