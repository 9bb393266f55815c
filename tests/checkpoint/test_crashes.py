"""Whatever ends a save, in whatever moment: what was saved before is there, whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.dying import DyingFileSystem, Fault, fresh
from tests.checkpoint.making import KEYS, check_whole, content, files, save
from windlass.checkpoint import AfterRound, Writer, list_checkpoints
from windlass.errors import ClusterError

ROOT = Path(__file__).parents[2]


def program(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, timeout=150)


def test_a_process_killed_while_it_saves_leaves_what_was_saved_before(tmp_path):
    done = program(sys.executable, "-m", "tests.checkpoint.killed", tmp_path, 15)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 3, done.stdout  # the others were killed between two saves


@pytest.mark.parametrize("name", ["step-000002", "step-000001"])
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "fails once"])
def test_an_end_at_any_change_leaves_the_old_one_or_the_new_one(dies, name, caplog):
    at = 0
    is_over = False
    while not is_over:
        at += 1
        path = fresh()
        save(path, 1)
        fault = DyingFileSystem.fault = Fault(at, dies=dies)
        said = ""
        try:
            save(path, 2, name=name, keep=1)
        except ClusterError as error:
            said = str(error)
        assert not said or "as the test wants it" in said
        is_over = not fault.has_fired
        DyingFileSystem.fault = None
        assert check_whole(path) in ([1, 2] if said else [2])
        save(path, 3, keep=1)
        assert [one.name for one in list_checkpoints(path)] == ["step-000003"]
        left = {file.split("/")[2] for file in DyingFileSystem.store}
        assert left == {"step-000003"}, f"a leftover of a save that ended at change {at}: {left}"
        assert check_whole(path) == 3
    assert at > 15  # so many moments were tried
    assert "is saved, but" in caplog.text  # and some of them came after the new one was there


def test_a_file_that_may_not_grow_leaves_the_old_one_and_nothing_else(tmp_path):
    done = program(sys.executable, "-m", "tests.checkpoint.full", tmp_path / "runs", 200_000)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cannot be written: File too large. The checkpoint") == 2


def test_a_full_disk_leaves_the_old_one_and_nothing_else(tmp_path):
    mounted = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    if program(*mounted, f"mount -t tmpfs -o size=2m tmpfs {tmp_path}").returncode:
        pytest.skip("no small file system can be mounted here")
    script = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}; exec {sys.executable} -m tests.checkpoint.full {tmp_path} 0"
    done = program(*mounted, script)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "cannot be written: No space left on device. The checkpoint" in first
    assert first.endswith(
        "/step-000002' was not saved, those saved before are as they were; make room or mend the cause, and save again"
    )
    assert "/step-000001' was not saved" in second


def test_an_exception_in_the_block_leaves_nothing(tmp_path):
    def interrupted():
        with Writer(tmp_path, step=1, shard_bytes=1) as writer:
            for number in range(KEYS[0].num_slots):
                writer.add(KEYS[0], number, content(KEYS[0], number, 1), {}, AfterRound(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert files(tmp_path) == set()
    assert list_checkpoints(tmp_path) == []
