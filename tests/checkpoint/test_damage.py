"""Whatever happens to the files, it is found, and named by file, key and slot."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.making import KEYS, check_whole, save
from windlass.checkpoint import Reader, State, list_checkpoints, verify
from windlass.checkpoint.manifest import FORMAT, seal, unseal
from windlass.errors import DamagedCheckpoint, UsageError


@pytest.fixture(scope="module")
def whole():
    folder = tempfile.mkdtemp()
    yield Path(save(folder, 4))
    shutil.rmtree(folder)


@pytest.fixture
def mine(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "step-000004"))


def held(path: Path, name: str, lo: int, hi: int) -> set[tuple[str, int]]:
    """The slots that have bytes of their own among these of a file."""
    return {
        (key, number)
        for key, saved in Reader(path).keys.items()
        for number, slot in enumerate(saved.slots)
        for array in slot.arrays
        if slot.file == name and array.nbytes and array.begin < hi and lo < array.begin + array.nbytes
    }


def read_all(path: Path) -> None:
    reader = Reader(path)
    for key in KEYS:
        for number in range(key.num_slots):
            reader.slot(key.name, number)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_found_and_named(whole, data):
    file = data.draw(st.sampled_from(sorted(whole.iterdir())))
    before = file.read_bytes()
    bit = data.draw(st.integers(0, len(before) * 8 - 1))
    try:
        broken = bytearray(before)
        broken[bit // 8] ^= 1 << bit % 8
        if file.suffix == ".json":
            file.write_bytes(broken)
            with pytest.raises((DamagedCheckpoint, UsageError)):
                Reader(whole)
            return
        expected = held(whole, file.name, bit // 8, bit // 8 + 1)
        file.write_bytes(broken)
        (problem,) = verify(Reader(whole))
        assert problem.file == file.name
        assert set(problem.slots) == expected
        if not expected:
            assert str(problem) == f"{file.name} has been altered: no slot is concerned"  # the header
            return
        ((key, number),) = expected
        assert str(problem) == f"{file.name} has been altered: '{key}' slot {number}"
        with pytest.raises(DamagedCheckpoint, match=rf"{file.name} has been altered in .* slot {number} of '{key}'"):
            Reader(whole).slot(key, number)
    finally:
        file.write_bytes(before)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_file_cut_short_anywhere_is_found_with_all_that_is_lost(whole, data):
    file = data.draw(st.sampled_from(sorted(whole.glob("*.safetensors"))))
    before = file.read_bytes()
    size = data.draw(st.integers(0, len(before) - 1))
    expected = held(whole, file.name, size, len(before))
    try:
        file.write_bytes(before[:size])
        (problem,) = verify(Reader(whole))
        assert (problem.file, set(problem.slots)) == (file.name, expected)
        assert f"is cut short, to {size:,} of {len(before):,} bytes" in str(problem)
        with pytest.raises(DamagedCheckpoint, match=f"{file.name} is cut short in"):
            read_all(whole)
        assert list_checkpoints(whole.parent)[0].problem == f"{file.name} has {size} bytes, {len(before)} were written"
    finally:
        file.write_bytes(before)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_manifest_cut_short_anywhere_is_found(whole, data):
    file = whole / "manifest.json"
    before = file.read_bytes()
    try:
        file.write_bytes(before[: data.draw(st.integers(0, len(before) - 1))])
        with pytest.raises(DamagedCheckpoint, match=r"manifest\.json"):
            Reader(whole)
        (listed,) = list_checkpoints(whole.parent)
        assert listed.state is State.DAMAGED
    finally:
        file.write_bytes(before)


def test_a_missing_file_is_named_with_what_it_held(mine):
    (file, *_) = sorted(mine.glob("*.safetensors"))
    file.unlink()
    (problem,) = verify(Reader(mine))
    assert str(problem) == f"{file.name} is missing: 'w' slots 0-1"
    with pytest.raises(DamagedCheckpoint, match=f"{file.name}, which holds slot 1 of 'w', is missing"):
        Reader(mine).slot("w", 1)
    assert Reader(mine).slot("w", 2).meta == {"step": 4}  # the others can be read


def test_damage_that_is_found_while_loading_names_the_newest_other_one(mine):
    file = next(mine.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match="there is no other beside it; `windlass checkpoint verify` reads all"):
        read_all(mine.parent)
    other = Path(save(mine.parent, 3))
    with pytest.raises(DamagedCheckpoint, match=f"the newest other one is '{other}'"):
        read_all(mine)


def test_bytes_after_the_end_are_found_too(mine):
    (file, *_) = sorted(mine.glob("*.safetensors"))
    with file.open("ab") as opened:
        opened.write(b"more")
    (problem,) = verify(Reader(mine))
    assert "is too long" in str(problem)
    read_all(mine)


def test_two_files_exchanged_are_found(mine):
    a, b, *_ = sorted(mine.glob("*.safetensors"))
    texts = a.read_bytes(), b.read_bytes()
    a.write_bytes(texts[1])
    b.write_bytes(texts[0])
    assert {problem.file for problem in verify(Reader(mine))} == {a.name, b.name}


def test_progress_tells_of_every_byte_even_of_missing_files(mine):
    told = []
    verify(Reader(mine), told.append)
    assert sum(told) == Reader(mine).manifest.nbytes
    next(mine.glob("*.safetensors")).unlink()
    again = []
    verify(Reader(mine), again.append)
    assert sum(again) == sum(told)


def test_a_later_format_is_refused_with_what_to_do(mine):
    file = mine / "manifest.json"
    manifest = unseal(file.read_bytes(), str(mine))
    file.write_bytes(seal(msgspec.structs.replace(manifest, format=FORMAT + 1)))
    with pytest.raises(UsageError, match="has format 2, this Windlass reads format 1; install a later one"):
        Reader(mine)


def test_a_manifest_that_leads_out_of_its_directory_is_refused(mine):
    file = mine / "manifest.json"
    manifest = unseal(file.read_bytes(), str(mine))
    first = msgspec.structs.replace(manifest.files[0], name="../../secret")
    file.write_bytes(seal(msgspec.structs.replace(manifest, files=(first, *manifest.files[1:]))))
    with pytest.raises(DamagedCheckpoint, match=r"names the file '../../secret', which is no name of a shard"):
        Reader(mine)


def test_a_manifest_that_lacks_slots_is_refused(mine):
    file = mine / "manifest.json"
    manifest = unseal(file.read_bytes(), str(mine))
    first = msgspec.structs.replace(manifest.keys[0], slots=manifest.keys[0].slots[:-1])
    file.write_bytes(seal(msgspec.structs.replace(manifest, keys=(first, *manifest.keys[1:]))))
    with pytest.raises(DamagedCheckpoint, match="has 6 slots of 'w', which is declared with 7"):
        Reader(mine)


def test_the_error_survives_the_way_between_processes():
    error = DamagedCheckpoint("p", ["a is missing"], "the newest good one is 'q'")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.path, again.problems) == (str(error), "p", ("a is missing",))


def test_the_fixture_is_whole_after_all_that(whole):
    assert check_whole(whole) == 4
