"""Which checkpoint is the newest, which stay, and what is left alone."""

from __future__ import annotations

import threading

import pytest

from tests.checkpoint.making import check_whole, content, files, save, spec
from windlass.checkpoint import AfterRound, Reader, State, Writer, exists, latest, list_checkpoints
from windlass.errors import ClusterError, DamagedCheckpoint, UsageError


def names(path):
    return [one.name for one in list_checkpoints(path)]


def test_the_newest_is_the_one_saved_last_whatever_its_number(tmp_path):
    for step in (1, 50, 20):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000001", "step-000050", "step-000020"]
    assert latest(tmp_path) == str(tmp_path / "step-000020")
    assert check_whole(tmp_path) == 20


def test_a_job_that_was_killed_in_its_first_save_begins_anew(tmp_path):
    """The recipe of docs/checkpoints.md: load if there is something to load."""
    root = tmp_path / "runs"
    assert not exists(root)  # nobody has saved yet
    (root / "step-000001").mkdir(parents=True)
    assert not exists(root)
    (root / "step-000001" / "unfinished").touch()
    assert [one.state for one in list_checkpoints(root)] == [State.UNFINISHED]
    assert not exists(root)
    assert not exists(root / "step-000001")
    save(root, 2)
    assert exists(root)
    assert exists(root / "step-000002")
    (root / "step-000002" / "manifest.json").write_bytes(b"{}")
    assert exists(root)  # for load to say what is wrong with it


def test_keep_removes_the_oldest_saved_and_never_what_the_user_has_named(tmp_path):
    save(tmp_path, 1, name="best")
    for step in (90, 91, 5, 6, 7):
        save(tmp_path, step, keep=3)
    save(tmp_path, 8, name="final", keep=3)
    assert names(tmp_path) == ["best", "step-000005", "step-000006", "step-000007", "final"]
    for name in names(tmp_path):
        check_whole(tmp_path / name)
    save(tmp_path, 9, keep=1)
    assert names(tmp_path) == ["best", "final", "step-000009"]
    assert {file.partition("/")[0] for file in files(tmp_path)} == {"best", "final", "step-000009"}


def test_a_damaged_one_is_neither_counted_nor_removed(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    next((tmp_path / "step-000002").glob("*.safetensors")).unlink()
    save(tmp_path, 3, keep=2)
    assert [(one.name, one.state) for one in list_checkpoints(tmp_path)] == [
        ("step-000001", State.COMPLETE),
        ("step-000002", State.DAMAGED),
        ("step-000003", State.COMPLETE),
    ]


def test_a_name_used_again_is_replaced_and_the_old_files_go(tmp_path):
    save(tmp_path, 1, name="best")
    old = files(tmp_path)
    save(tmp_path, 2, name="best")
    assert check_whole(tmp_path / "best") == 2
    assert files(tmp_path) & old == {"best/manifest.json"}


def test_files_that_are_not_ours_stay_where_they_are(tmp_path):
    save(tmp_path, 1)
    for name in ("notes.txt", "step-000001/notes.txt", "other/model.safetensors", "other/0a1b2c3d-00000.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    save(tmp_path, 2, keep=1)
    assert {file for file in files(tmp_path) if not file.startswith("step-000002")} == {
        "notes.txt", "step-000001/notes.txt", "other/model.safetensors", "other/0a1b2c3d-00000.safetensors",
    }  # fmt: skip
    assert names(tmp_path) == ["step-000002"]


def test_a_newest_that_is_damaged_is_not_passed_over_in_silence(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "step-000002" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(DamagedCheckpoint) as raised:
        Reader(tmp_path)
    assert f"'{tmp_path}/step-000002' is damaged: manifest.json is a broken or foreign file" in str(raised.value)
    assert f"the newest good one is '{tmp_path}/step-000001'" in str(raised.value)
    save(tmp_path, 3)  # a later one makes it a matter of the past
    assert check_whole(tmp_path) == 3


def test_what_lies_beside_a_manifest_that_cannot_be_read_is_not_swept_away(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    folder = tmp_path / "step-000001"
    whole = (folder / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(whole.replace(b'"step":1', b'"step":3'))
    (folder / "unfinished").touch()
    save(tmp_path, 3, keep=1)
    (folder / "manifest.json").write_bytes(whole)  # somebody mends it, and all is there
    assert check_whole(folder) == 1


def test_one_that_was_never_finished_does_not_count(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-000002").mkdir()
    (tmp_path / "step-000002" / "unfinished").touch()
    assert [(one.name, one.state) for one in list_checkpoints(tmp_path)][-1] == ("step-000002", State.UNFINISHED)
    assert check_whole(tmp_path) == 1
    with pytest.raises(UsageError, match="step-000002' was never finished"):
        Reader(tmp_path / "step-000002")


def test_a_second_save_at_the_same_time_is_told_so_and_harms_nothing(tmp_path):
    with Writer(tmp_path, name="empty"), pytest.raises(UsageError, match=r"another save to '.*' is under way"):
        save(tmp_path, 2)
    said = []

    def other():
        try:
            save(tmp_path, 4)
        except UsageError as error:
            said.append(str(error))

    with Writer(tmp_path, step=3):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(20)
    assert len(said) == 1
    assert names(tmp_path) == ["empty", "step-000003"]
    save(tmp_path, 5)
    assert check_whole(tmp_path) == 5


def test_a_save_whose_files_another_removes_is_no_checkpoint(tmp_path):
    key = spec("w", 300)

    def disturbed():
        with Writer(tmp_path, name="x", shard_bytes=1) as writer:
            for number in range(3):  # two are written at a time: when the third is taken, the first is there
                writer.add(key, number, content(key, number, 1), {}, AfterRound(1))
            next((tmp_path / "x").glob("*-00000.safetensors")).unlink()

    with pytest.raises(ClusterError, match=r"was written and is not there.*'.*/x' was not saved"):
        disturbed()
    assert files(tmp_path) == set()


def test_of_empty_directories_only_those_of_our_names_are_removed(tmp_path):
    (tmp_path / "step-000009").mkdir()  # a save was killed before its first file
    (tmp_path / "mine").mkdir()
    save(tmp_path, 1)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["mine", "step-000001"]
