"""`store.save` and `store.load`: names, rounds, replacement, and what a user is told."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

import windlass as wl
from windlass.checkpoint import AfterRound, Reader, WhenAsked, latest, list_checkpoints, read_manifest, verify

ONES = np.ones(50_000, np.float32)


def trained(rounds: int, store: wl.Store | None = None) -> wl.Store:
    store = store or wl.Store(chunk_bytes=64 << 10)
    store.create("w", np.zeros(50_000, np.float32), update=wl.Adam(lr=0.1, betas=(0.9, 0.99)))
    store.create("hits", np.zeros(3, np.int64), update="add", consistency=wl.Eventual())
    for _ in range(rounds):
        store.pushpull("w", ONES)
    return store


def test_a_checkpoint_is_named_by_its_round_and_says_what_each_key_is(tmp_path):
    store = trained(3)
    store.push("hits", np.ones(3, np.int64)).wait()
    path = store.save(str(tmp_path / "runs"))
    assert path == str(tmp_path / "runs" / "step-000003")
    manifest = read_manifest(path)
    assert {key.spec.name: key.moment for key in manifest.keys} == {"w": AfterRound(3), "hits": WhenAsked(1)}
    assert (manifest.step, manifest.windlass != "", verify(Reader(path))) == (3, True, [])
    assert np.array_equal(Reader(path).array("w"), store.pull("w"))


@pytest.mark.parametrize("where", ["directory", "memory://"])
def test_a_loaded_store_goes_on_bit_for_bit_and_its_rounds_count_on(tmp_path, where):
    root = str(tmp_path) if where == "directory" else f"memory://{uuid.uuid4()}"
    first = trained(3)
    first.save(root, keep=2)
    expected = [first.pushpull("w", ONES).copy() for _ in range(2)]
    second = wl.Store(chunk_bytes=64 << 10)
    second.load(root)
    trained(0, second)  # declared as it was, tuples and all
    assert all(np.array_equal(second.pushpull("w", ONES), each) for each in expected)
    assert second.save(root, keep=2).endswith("/step-000005")
    second.pushpull("w", ONES)
    second.save(root, keep=2)
    assert [one.name for one in list_checkpoints(root)] == ["step-000005", "step-000006"]
    assert latest(root).endswith("/step-000006")


def test_load_takes_the_newest_or_the_one_that_is_named(tmp_path):
    store = trained(1)
    best = store.save(str(tmp_path), name="best")
    then = store.pull("w").copy()
    later = store.pushpull("w", ONES).copy()
    store.save(str(tmp_path))
    store.pushpull("w", ONES)
    store.load(str(tmp_path))
    assert np.array_equal(store.pull("w"), later)
    store.load(best)
    assert np.array_equal(store.pull("w"), then)


def test_a_damaged_checkpoint_is_refused_and_the_text_says_what_is_lost(tmp_path):
    store = trained(1)
    path = tmp_path / "step-000001"
    store.save(str(tmp_path))
    (shard,) = path.glob("*.safetensors")
    text = bytearray(shard.read_bytes())
    text[len(text) // 2] ^= 1
    shard.write_bytes(text)
    with pytest.raises(wl.DamagedCheckpoint, match=rf"{shard.name} has been altered in '.*' of slot \d of 'w'"):
        wl.Store().load(str(tmp_path))


def test_every_worker_that_saves_at_once_but_one_is_told_to_let_one_save(tmp_path):
    def work(store):
        store.create("w", np.zeros(200_000, np.float32))
        store.pushpull("w", np.ones(200_000, np.float32))
        store.barrier()
        try:
            return store.save(str(tmp_path))
        except wl.UsageError as error:
            return str(error)

    with wl.Cluster(engine="threads", servers=2, workers=3) as cluster:
        said = cluster.run(work)
    saved = [text for text in said if text == str(tmp_path / "step-000001")]
    told = [text for text in said if "another save to" in text and "let one worker save" in text]
    assert saved
    assert len(saved) + len(told) == 3
    assert verify(Reader(tmp_path)) == []


def test_the_driver_saves_what_a_run_has_made_and_another_cluster_loads_it(tmp_path):
    def work(store, is_first):
        if is_first:
            store.create("w", np.zeros(100_000, np.float32), update=wl.SGD(lr=1.0, momentum=0.9))
        return store.pushpull("w", np.ones(100_000, np.float32))

    with wl.Cluster(engine="threads", servers=3, workers=2, chunk_bytes=64 << 10) as cluster:
        cluster.run(work, True)
        assert cluster.store().save(str(tmp_path), keep=1) == str(tmp_path / "step-000001")
        expected = cluster.run(work, False)[0]
    with wl.Cluster(engine="threads", servers=1, workers=2, chunk_bytes=64 << 10) as cluster:
        cluster.store().load(str(tmp_path))
        assert np.array_equal(cluster.run(work, False)[1], expected)


def test_a_load_ends_with_a_new_generation_that_everybody_is_in(tmp_path):
    path = trained(3).save(str(tmp_path))

    def work(store: wl.Store) -> tuple[int, float]:
        if store.rank == 0:
            store.load(path)
        store.barrier()
        store.create("w", np.zeros(50_000, np.float32), update=wl.Adam(lr=0.1, betas=(0.9, 0.99)))
        value = float(store.pushpull("w", ONES)[0])
        return store._client.state.generation.number, value

    with wl.Cluster(servers=2, workers=2, replicas=1, engine="threads", chunk_bytes=64 << 10) as cluster:
        before = cluster.store().status()["generation"]
        (first, value), (second, same) = cluster.run(work)
        assert (before, cluster.store().status()["generation"]) == ("1.1", "1.2")
        assert (first, second, value) == (2, 2, same)
        cluster.store().load(path)
        assert cluster.store().status()["generation"] == "1.3"
