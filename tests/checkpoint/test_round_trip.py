"""What was saved is what is read, bit for bit, whatever it is and wherever it lies."""

from __future__ import annotations

import uuid
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from tests.checkpoint.making import check_same, check_whole, save, spec
from windlass.checkpoint import AfterRound, Reader, WhenAsked, Writer, latest, list_checkpoints, read_manifest
from windlass.errors import ClusterError, UsageError
from windlass.types import STORAGE, Eventual

DTYPES = sorted({dtype.name for dtype in STORAGE.values()})
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40))
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip
SLOTS = st.tuples(
    st.dictionaries(st.text("abcxyz._", min_size=1, max_size=8), ARRAYS, max_size=4),
    st.dictionaries(st.text("abc", max_size=5), PLAIN, max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(slots=st.lists(SLOTS, min_size=1, max_size=6), shard_bytes=st.sampled_from([1, 1000, 1 << 20]))
def test_any_arrays_and_meta_come_back_bit_for_bit(slots, shard_bytes):
    key = spec("a key/with 漢字", 100 * len(slots))
    path = f"memory://{uuid.uuid4()}"
    with Writer(path, name="x", shard_bytes=shard_bytes) as writer:
        for number in reversed(range(len(slots))):  # in whatever order they come
            writer.add(key, number, *slots[number], AfterRound(7))
    reader = Reader(path)
    assert reader.keys[key.name].spec == key
    for number, (arrays, meta) in enumerate(slots):
        found = reader.slot(key.name, number)
        check_same(found.arrays, arrays)
        assert found.meta == meta
    kept = [array for slot in reader.keys[key.name].slots for array in slot.arrays]
    assert all(array.begin % np.dtype(array.dtype).itemsize == 0 for array in kept)  # as readers that map files want it


@pytest.mark.parametrize("kind", ["path", "file://", "memory://"])
def test_every_kind_of_path_takes_and_gives_checkpoints(tmp_path, kind):
    root = {"path": tmp_path / "runs", "file://": f"file://{tmp_path}/runs", "memory://": f"memory://{uuid.uuid4()}/runs"}
    for step in (1, 2, 3, 4):
        save(root[kind], step, keep=2)
    assert [one.name for one in list_checkpoints(root[kind])] == ["step-000003", "step-000004"]
    assert latest(root[kind]).endswith("runs/step-000004")
    assert check_whole(root[kind]) == 4
    assert check_whole(f"{root[kind]}/step-000003") == 3


def test_any_safetensors_reader_opens_a_shard_and_bfloat16_is_known_as_such(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    bits = np.array([0x3F80, 0x4000, 0xC040], np.uint16)  # 1, 2, -3
    with Writer(tmp_path, name="x") as writer:
        arrays = {"value": bits, "master": np.array([1, 2, -3], np.float32)}
        writer.add(spec("b", 3, "bfloat16"), 0, arrays, {}, AfterRound(1))
        writer.add(spec("flags", 5, "bool"), 0, {"value": np.array([1, 0, 1, 1, 0], bool)}, {}, AfterRound(1))
    (shard,) = (tmp_path / "x").glob("*.safetensors")
    loaded = load_file(shard)
    assert torch.equal(loaded["b/00000/value"], torch.tensor([1, 2, -3], dtype=torch.bfloat16))
    assert torch.equal(loaded["b/00000/master"], torch.tensor([1.0, 2.0, -3.0]))
    with safe_open(shard, framework="numpy") as opened:
        assert opened.get_tensor("flags/00000/value").tolist() == [True, False, True, True, False]


def test_a_large_key_is_spread_over_shards_and_read_as_one_array(tmp_path):
    key = spec("w", 5000)
    save(tmp_path, 3, (key,), shard_bytes=4000)
    assert len(read_manifest(tmp_path).files) == 10
    assert np.array_equal(Reader(tmp_path).array("w"), np.arange(5000, dtype=np.float32) + 3)
    assert np.array_equal(Reader(tmp_path).array("w", "state.m"), np.full(5000, 3, np.float32))


def test_the_manifest_says_of_each_key_what_was_saved_of_it(tmp_path):
    with Writer(tmp_path, step=5) as writer:
        writer.add(spec("w", 2), 0, {}, {}, AfterRound(5))
        writer.add(spec("hits", 2, consistency=Eventual()), 0, {}, {}, WhenAsked(17))
    said = {key.spec.name: str(key.moment) for key in read_manifest(tmp_path).keys}
    assert said["w"] == "the state after round 5"
    assert said["hits"].startswith("a state that existed, with every push acknowledged before the save")


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda w: w.add(spec("w", 300), 0, {}, {}, AfterRound(1)), "'w' has 3 slots, 2 of them were not added"),
        (lambda w: w.add(spec("w", 300), 3, {}, {}, AfterRound(1)), "slot 3 of 'w' does not exist: it has 3"),
        (lambda w: [w.add(spec("w", 1), 0, {}, {}, AfterRound(1)) for _ in "12"], "slot 0 of 'w' was added already"),
        (
            lambda w: [w.add(spec("w", 300), n, {}, {}, AfterRound(n)) for n in range(3)],
            "slot 1 of 'w' is the state after round 1 .* but an earlier one was the state after round 0",
        ),
        (lambda w: w.add(spec("w", 1), 0, {"a/b": np.zeros(1)}, {}, AfterRound(1)), "a text without '/', got 'a/b'"),
        (lambda w: w.add(spec("w", 1), 0, {"v": np.zeros(1, "c8")}, {}, AfterRound(1)), "'v' expects a dtype among"),
        (lambda w: w.add(spec("w", 1), 0, {"v": np.zeros(1, ">f4")}, {}, AfterRound(1)), "'v' expects a dtype among"),
        (lambda w: w.add(spec("w", 1), 0, {}, {"x": float("nan")}, AfterRound(1)), "meta expects what JSON can hold"),
        (lambda w: w.add(spec("w", 1), 0, {}, {"x": b"bytes"}, AfterRound(1)), "meta expects what JSON can hold"),
    ],
)
def test_what_could_not_be_read_back_is_refused_and_nothing_is_left(tmp_path, add, text):
    save(tmp_path, 1)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match=text), Writer(tmp_path, step=2) as writer:
        add(writer)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    assert check_whole(tmp_path) == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: save(p, 1, keep=0), "keep expects a whole number of at least 1, or None to remove nothing, got 0"),
        (lambda p: save(p, 1, name="a/b"), "a checkpoint's name is made of letters, digits"),
        (lambda p: save(p, 1, name=".hidden"), "a checkpoint's name is made of letters, digits"),
        (lambda p: save(p / "no" / "such", 1), "no such directory as '.*/no'"),
        (lambda p: save("nowhere://x", 1), "'nowhere://x' is no place for checkpoints: Protocol not known"),
        (lambda p: Reader(p), "no checkpoint in "),
        (lambda p: Reader(p / "missing"), "no such file or directory"),
        (lambda p: Reader(save(p, 1)).slot("v", 0), "no key 'v' in '.*step-000001'; it has 'b', 'nothing', 'w'"),
        (lambda p: Reader(save(p, 1)).slot("w", 7), "'w' has slots 0 to 6 in '.*', asked for 7"),
        (lambda p: Reader(save(p, 1)).array("w", "state.v"), "'w' has no 'state.v' in '.*'; it has value, state.m"),
    ],
)
def test_a_mistake_is_named(tmp_path, call, text):
    with pytest.raises(UsageError, match=text):
        call(tmp_path)


def test_a_file_in_the_place_of_a_directory_is_named(tmp_path):
    there = tmp_path / "file"
    there.write_bytes(b"x")
    with pytest.raises(UsageError, match="expected a directory for checkpoints, got a file"):
        save(there, 1)
    with pytest.raises(UsageError, match="expected a directory of checkpoints, got a broken or foreign file"):
        Reader(there)


def test_a_directory_that_cannot_be_written_is_a_cluster_error_that_names_it():
    with pytest.raises(ClusterError, match="'/proc/windlass' cannot be made"):
        save(Path("/proc/windlass"), 1)


def test_no_more_than_a_few_shards_are_in_memory(tmp_path):
    key, most = spec("w", 5000), 0
    alive: weakref.WeakSet[Slot] = weakref.WeakSet()
    with Writer(tmp_path, name="x", shard_bytes=400) as writer:  # a shard for each of fifty slots
        for number in range(key.num_slots):
            slot = np.zeros(100, np.float32).view(Slot)
            alive.add(slot)
            writer.add(key, number, {"value": slot}, {}, AfterRound(1))
            del slot
            most = max(most, len(alive))
    assert 1 <= most <= 5
    assert len(read_manifest(tmp_path).files) == 50


class Slot(np.ndarray):
    """An array that can be referred to weakly, and counted."""

    __hash__ = object.__hash__
