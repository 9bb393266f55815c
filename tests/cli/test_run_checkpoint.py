"""`windlass run --checkpoint`: saved by the launcher, and gone back to."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import finish, read_lines, started, windlass
from windlass.checkpoint import Reader, list_checkpoints

TRAIN = """
import os, pathlib, signal, sys, time
import numpy as np
import windlass as wl
store = wl.connect()
root, flag = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
store.create("w", np.zeros(9000, np.float32), update="add")
began = float(store.pull("w").max())
first = store.version("w")
for step in range(first, 60):
    store.push("w", np.ones(9000, np.float32)).wait()
    time.sleep(0.0 if flag.exists() else 0.1)  # as long as it is to be saved, there is time for it
    saved = [path for path in root.glob("step-*/manifest.json") if path.parent.name > "step-000000"]
    if store.rank == 0 and not flag.exists() and len(saved) > 1:
        flag.touch()
        status = store.status()
        [(head,)] = status["keys"]["w"]["shards"]
        os.kill(next(node["pid"] for node in status["nodes"] if node["name"] == head), signal.SIGKILL)
print("from", first, "with", began, "to", float(store.pull("w").min()))
"""


def test_a_run_whose_server_dies_goes_on_from_what_the_launcher_has_saved(tmp_path: Path) -> None:
    script, root, flag = tmp_path / "train.py", tmp_path / "saved", tmp_path / "flag"
    script.write_text(TRAIN)
    options = ("--checkpoint", root, "--checkpoint-every", 0.1, "--keep", 2, "--on-server-loss", "restore")
    done = windlass("run", "--servers", 2, "--workers", 2, *options, script, root, flag)
    assert done.returncode == 0, done.stderr
    assert flag.exists()
    assert f" died; going back to '{root}/step-" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr  # what happened is said in a line
    assert "] LostRange: elements [0, 9000) of 'w' were held by server-" in done.stderr
    said = sorted(line.split("] ")[1].split() for line in done.stdout.splitlines() if "] from" in line)
    assert len(said) == 2
    assert said[0] == said[1]
    assert 0 < int(said[0][1]) < 60
    assert float(said[0][3]) == 2.0 * int(said[0][1])
    assert said[0][5] == "120.0"
    assert [one.name for one in list_checkpoints(root)][-1] == "step-000060"
    assert Reader(root).array("w").min() == 120.0


REJOIN = """
import sys
import windlass as wl
hooks = [sys.excepthook]
for _ in range(3):
    store = wl.connect()
    hooks.append(sys.excepthook)
    store.close()
print(*map(hooks.index, hooks))
"""


def test_a_worker_that_joins_again_wraps_the_hook_for_its_exceptions_once(tmp_path: Path) -> None:
    script = tmp_path / "rejoin.py"
    script.write_text(REJOIN)
    done = windlass("run", "--checkpoint", tmp_path / "saved", "--on-server-loss", "restore", script)
    assert (done.returncode, done.stdout) == (0, "[worker-0] 0 1 1 1\n"), done.stderr


def test_an_interval_without_a_place_is_the_callers_mistake(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    done = windlass("run", "--checkpoint-every", 3, script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "windlass: --checkpoint-every expects --checkpoint to say where checkpoints are saved\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--checkpoint", "x", "--checkpoint-every", -1), "--checkpoint-every expects seconds above 0, got -1.0"),
        (("--checkpoint", __file__), "--checkpoint expects a place to save to: "),
        (("--replicas", 1), "--replicas expects a whole number below the number of servers (1), got 1"),
        (("--on-server-loss", "retry"), "--on-server-loss expects 'fail' or 'restore', got 'retry'"),
        (("--on-worker-loss", "retry"), "--on-worker-loss expects 'fail', 'continue' or 'wait', got 'retry'"),
    ],
)
def test_a_mistake_is_told_by_the_name_of_the_option(tmp_path: Path, options: tuple[object, ...], text: str) -> None:
    script = tmp_path / "train.py"
    script.touch()
    done = windlass("run", *options, script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"windlass: {text}")


LOSE_AND_NEED = """
import os, signal, sys
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(9000, np.float32), update="add")
store.push("w", np.ones(9000, np.float32)).wait()
os.kill(next(node["pid"] for node in store.status()["nodes"] if node["role"] == "server"), signal.SIGKILL)
store.pull("w")
"""


def test_a_server_that_dies_before_the_first_checkpoint_is_told_as_that(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOSE_AND_NEED)
    place = ("--checkpoint", tmp_path / "saved", "--checkpoint-every", 600)
    done = windlass("run", *place, "--on-server-loss", "restore", script)
    assert done.returncode == 1, done.stderr
    assert "SIGKILL; if what only it held is needed, the run goes back to the last checkpoint\n" in done.stderr
    assert "has nothing to go back to, no checkpoint was saved yet: begin anew" in done.stderr
    assert "windlass: server-0 died, and the run does not go back: no checkpoint was saved yet\n" in done.stderr
    assert "without --checkpoint" not in done.stderr


def test_to_go_back_without_a_place_to_save_to_is_warned_of(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import windlass as wl; wl.connect()")
    done = windlass("run", "--on-server-loss", "restore", script)
    text = "--on-server-loss restore, without --checkpoint, can only go back to what the script itself saves"
    assert (done.returncode, done.stderr) == (0, f"windlass: {text}\n")


LOSE_AT_LAST = """
import os, pathlib, signal, sys
import numpy as np
import windlass as wl
store = wl.connect()
root, flag = map(pathlib.Path, sys.argv[1:3])
store.create("w", np.zeros(9000, np.float32), update="add")
began = store.version("w")
store.push("w", np.ones(9000, np.float32)).wait()
if not flag.exists():
    flag.touch()
    if "save" in sys.argv: store.save(root)
    os.kill(next(node["pid"] for node in store.status()["nodes"] if node["role"] == "server"), signal.SIGKILL)
print("began with", began)
"""


def _lose_at_last(tmp_path: Path, on_server_loss: str, *words: str) -> subprocess.CompletedProcess[str]:
    script, root, flag = tmp_path / "train.py", tmp_path / "saved", tmp_path / "flag"
    script.write_text(LOSE_AT_LAST)
    options = ("--checkpoint", root, "--on-server-loss", on_server_loss)
    return windlass("run", *options, script, root, flag, *words)


@pytest.mark.parametrize(("on_server_loss", "words"), [("fail", ("save",)), ("restore", ())])
def test_a_run_that_cannot_be_saved_because_a_server_died_at_last_fails(
    tmp_path: Path, on_server_loss: str, words: tuple[str, ...]
) -> None:
    done = _lose_at_last(tmp_path, on_server_loss, *words)
    assert (done.returncode, done.stdout) == (1, "[worker-0] began with 0\n"), done.stderr
    lost = r"^windlass: elements \[0, \d+\) of 'w' were held by (server-0|a server), which died"
    assert re.search(lost, done.stderr, re.M), done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_goes_back_to_its_checkpoint_if_a_server_died_after_the_last_push(tmp_path: Path) -> None:
    done = _lose_at_last(tmp_path, "restore", "save")
    assert (done.returncode, done.stdout) == (0, "[worker-0] began with 0\n[worker-0] began with 1\n"), done.stderr
    assert f" died; going back to '{tmp_path}/saved/step-000001'" in done.stderr
    assert Reader(tmp_path / "saved").array("w").min() == 2.0


SPOIL = """
import pathlib, sys, time
import numpy as np
import windlass as wl
store = wl.connect()
root, flag = map(pathlib.Path, sys.argv[1:])
root.rmdir()  # nothing has been saved there: nothing has been pushed
root.touch()
store.create("w", np.zeros(9000, np.float32), update="add")
store.push("w", np.ones(9000, np.float32)).wait()
while not flag.exists(): time.sleep(0.05)
"""


def test_a_run_that_cannot_be_saved_at_its_end_fails_and_says_so(tmp_path: Path) -> None:
    script, root = tmp_path / "train.py", tmp_path / "saved"
    script.write_text(SPOIL)
    done = windlass("run", "--checkpoint", root, script, root, script)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"windlass: the run ended well, but could not be saved to '{root}': ")
    assert line.endswith("got a file; there is no checkpoint of it")


def test_a_save_that_fails_meanwhile_is_told_as_the_commands_own_words(tmp_path: Path) -> None:
    script, root, flag = tmp_path / "train.py", tmp_path / "saved", tmp_path / "flag"
    script.write_text(SPOIL)
    with started("run", "--checkpoint", root, "--checkpoint-every", 0.3, script, root, flag) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        flag.touch()
        assert line.startswith(f"windlass: no checkpoint was saved to '{root}': ")
        assert line.endswith("; it is tried again in 0.3 s\n")
        status, _, told, _ = finish(process)
    assert status == 1
    assert all(one.startswith("windlass: ") for one in told.splitlines()), told


def test_scripts_that_never_join_leave_nothing_to_save(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("print('alone')")
    done = windlass("run", "--checkpoint", tmp_path / "saved", script)
    assert (done.returncode, done.stdout) == (0, "[worker-0] alone\n"), done.stderr
    assert list_checkpoints(tmp_path / "saved") == []


COUNT = """
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(9000, np.float32), update="add")
began = store.version("w")
store.barrier()
for _ in range(3): store.push("w", np.ones(9000, np.float32)).wait()
store.barrier()
print("from", began, "to", float(store.pull("w").min()))
"""


def _count(tmp_path: Path, *options: object) -> tuple[list[str], str]:
    """What the workers said, and what the command did."""
    script = tmp_path / "count.py"
    script.write_text(COUNT)
    done = windlass("run", "--workers", 2, "--checkpoint", tmp_path / "saved", *options, script)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines()), done.stderr


def test_the_same_command_begins_anew_and_later_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "saved"
    said, told = _count(tmp_path, "--load", root)
    assert said == [f"[worker-{rank}] from 0 to 6.0" for rank in range(2)]
    assert told == f"windlass: there is no checkpoint in '{root}' yet: this run begins anew\n"
    said, told = _count(tmp_path, "--load", root, "--servers", 2)
    assert said == [f"[worker-{rank}] from 3 to 12.0" for rank in range(2)]
    assert told == f"windlass: going on from '{root}/step-000003'\n"
    assert [one.name for one in list_checkpoints(root)] == ["step-000003", "step-000006"]


def test_a_run_beside_older_checkpoints_says_that_it_begins_anew(tmp_path: Path) -> None:
    root = tmp_path / "saved"
    _, told = _count(tmp_path)
    assert told == ""
    said, told = _count(tmp_path)
    assert said == [f"[worker-{rank}] from 0 to 6.0" for rank in range(2)]
    newest = f"the newest is '{root}/step-000003'"
    assert told.startswith(f"windlass: there are checkpoints in '{root}', {newest}; this run begins anew")
    assert told.endswith(f", and --keep 3 will remove the oldest; --load {root} goes on with the newest\n")


def test_a_worker_that_leaves_before_it_joins_a_loaded_cluster_is_not_waited_for(tmp_path: Path) -> None:
    _count(tmp_path)
    script = tmp_path / "count.py"
    script.write_text("import os, sys\nif os.environ['WINDLASS_RANK'] == '1': sys.exit()\n" + COUNT)
    done = windlass("run", "--workers", 2, "--load", tmp_path / "saved", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert "windlass: worker-1 exited before it connected, and worker-0 waits for it in connect()" in done.stderr


SLEEP = """
import sys, time
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(9000, np.float32), update="add")
store.push("w", np.ones(9000, np.float32)).wait()
if len(sys.argv) > 1: store.save(sys.argv[1])
print("up")
time.sleep(60)
"""


@pytest.mark.parametrize("saves", [True, False])
def test_a_run_that_is_stopped_says_which_checkpoint_is_the_last(tmp_path: Path, saves: bool) -> None:
    script, root = tmp_path / "sleep.py", tmp_path / "saved"
    script.write_text(SLEEP)
    with started("run", "--checkpoint", root, script, *([root] if saves else [])) as process:
        assert read_lines(process, 1) == ["[worker-0] up"]
        os.killpg(process.pid, signal.SIGINT)
        status, _, told, _ = finish(process)
    left = f"the last checkpoint is '{root}/step-000001'" if saves else "no checkpoint was saved yet"
    assert (status, told) == (130, f"windlass: stopped by SIGINT; {left}\n")
