"""`windlass run --checkpoint`: saved by the launcher, and gone back to."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import windlass
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
    assert "checkpoint_every expects checkpoint=" in done.stderr
