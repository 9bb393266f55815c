"""`windlass checkpoint`, as its user sees it."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.checkpoint.making import save, spec
from tests.cli.command import windlass


@pytest.fixture
def runs(tmp_path):
    for step in (1, 2):
        save(tmp_path / "runs", step)
    (tmp_path / "runs" / "step-000003").mkdir()
    (tmp_path / "runs" / "step-000003" / "unfinished").touch()
    return tmp_path / "runs"


def test_ls_shows_a_row_for_each_with_its_state(runs):
    next((runs / "step-000001").glob("*.safetensors")).unlink()
    done = windlass("checkpoint", "ls", runs)
    assert (done.returncode, done.stderr) == (0, "")
    heading, _, first, second, third, problem = done.stdout.splitlines()
    assert heading.split() == ["checkpoint", "saved", "step", "keys", "bytes", "state"]
    assert (first.split()[0], first.split()[-1]) == ("step-000001", "damaged")
    name, _, _, step, keys, amount, unit, state = second.split()
    assert (name, step, keys, unit, state) == ("step-000002", "2", "3", "kB", "complete")
    assert 5 < float(amount) < 15
    assert third.split() == ["step-000003", "unfinished"]
    assert problem.startswith("problem: step-000001: ")
    assert problem.endswith(".safetensors is missing")
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1])


def test_ls_gives_the_same_as_json_and_takes_one_checkpoint(runs):
    found = json.loads(windlass("checkpoint", "ls", "--json", runs).stdout)
    assert [(one["name"], one["state"]) for one in found] == [
        ("step-000001", "complete"),
        ("step-000002", "complete"),
        ("step-000003", "unfinished"),
    ]
    (one,) = json.loads(windlass("checkpoint", "ls", "--json", runs / "step-000002").stdout)
    assert (one["step"], one["keys"]["w"]) == (2, "the state after round 2")


def test_verify_is_content_with_what_is_whole(runs):
    done = windlass("checkpoint", "verify", runs)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step-000002 complete: 3 keys in 4 files, " in done.stdout
    assert "step-000003 unfinished" in done.stdout


def test_verify_names_file_key_and_slot_and_exits_with_1(runs):
    shard = min((runs / "step-000002").glob("*-00001.safetensors"))
    text = bytearray(shard.read_bytes())
    text[-1] ^= 0x10
    shard.write_bytes(text)
    for path in (runs, runs / "step-000002"):
        done = windlass("checkpoint", "verify", path)
        assert (done.returncode, done.stderr) == (1, "")
        assert f"step-000002 damaged\n  problem: {shard.name} has been altered: 'w' slot 3\n" in done.stdout
    (runs / "step-000001" / "manifest.json").write_bytes(b"")
    assert "step-000001 damaged\n  problem: manifest.json is a broken" in windlass("checkpoint", "verify", runs).stdout


def test_diff_shows_keys_and_numbers_and_exits_with_1_if_anything_differs(runs):
    a, b = runs / "step-000001", runs / "step-000002"
    save(runs, 2, (spec("w", 700), spec("new", 4)), name="other")
    same = windlass("checkpoint", "diff", a, a)
    assert (same.returncode, "The same: 3 keys" in same.stdout) == (0, True)
    done = windlass("checkpoint", "diff", a, b)
    assert (done.returncode, done.stderr) == (1, "")
    assert ["w", "value", "700", "all", "1"] in [line.split() for line in done.stdout.splitlines()]
    other = windlass("checkpoint", "diff", b, runs)  # a directory means its newest
    assert "- removed b\n" in other.stdout
    assert "+ added new\n" in other.stdout
    assert other.returncode == 1


def test_a_mistake_is_one_line_and_exits_with_2(runs):
    done = windlass("checkpoint", "diff", runs / "step-000001", runs / "step-000003")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("windlass: the checkpoint '")
    assert "was never finished" in done.stderr
    assert windlass("checkpoint", "ls", runs / "nowhere").returncode == 2
    shutil.rmtree(runs)
    runs.mkdir()
    empty = windlass("checkpoint", "verify", runs)
    assert (empty.returncode, empty.stdout) == (1, "")
    assert empty.stderr.replace("\n", "") == f"No checkpoint in '{runs}'."
