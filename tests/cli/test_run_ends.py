"""How a `windlass run` ends when it does not end by itself: nothing is left, and it is said why."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.busy import is_within
from tests.cli.command import WAITING, finish, named, read_lines, started, windlass
from tests.engines.processes import descendants, left_after
from windlass.engines.config import find_clusters

CLEAN_SECONDS = 2.0
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITING
PARENT = "import subprocess; subprocess.Popen(['sleep', '60'])\n" + WAITING
UP = ["[worker-0] up 0", "[worker-1] up 1"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(WAITING)
    return path


@pytest.mark.parametrize(
    ("deed", "status", "words"),
    [
        ("sys.exit(7)", 7, "exited with status 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
    ],
)
def test_a_failed_worker_stops_the_run_with_its_status(script: Path, deed: str, status: int, words: str) -> None:
    begin = "import os, signal, sys, time, windlass as wl\n"
    script.write_text(f"{begin}if wl.connect().rank == 1: {deed}\ntime.sleep(60)")
    done = windlass("run", "--workers", 3, script)
    assert done.returncode == status
    last = done.stderr.splitlines()[-1]
    assert last.startswith("windlass: worker-1 (pid ")
    assert last.endswith(f") {words}; stopping the other 2")


def test_a_worker_that_never_connects_is_named_while_others_wait_for_it(script: Path) -> None:
    script.write_text("import os, windlass as wl\nif os.environ['WINDLASS_RANK'] != '1': wl.connect()")
    done = windlass("run", "--workers", 2, script)
    assert done.returncode == 1
    assert "windlass: worker-1 exited before it connected, and worker-0 waits for it in connect()" in done.stderr


SILENCED = """
import os, subprocess, psutil
(manager,) = [one for one in psutil.Process(os.getppid()).children() if one.name() == "manager"]
manager.suspend()  # as a busy machine does
wake = ["sh", "-c", f"sleep 2; kill -CONT {manager.pid}"]
subprocess.Popen(wake, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


@pytest.mark.parametrize("connects", [True, False])
def test_a_manager_that_is_silent_as_a_worker_leaves_is_asked_again_whether_it_had_connected(
    script: Path, connects: bool
) -> None:
    other = "import windlass as wl\n    wl.connect()" if connects else "pass"
    script.write_text(f"import os\nif os.environ['WINDLASS_RANK'] == '0':\n    {other}\nelse: exec({SILENCED!r})")
    done = windlass("run", "--workers", 2, script)
    if connects:
        assert done.returncode == 1
        assert "windlass: worker-1 exited before it connected, and worker-0 waits for it in connect()" in done.stderr
    else:
        assert done.returncode == 0
        assert "windlass: no worker called wl.connect(): the script ran 2 times" in done.stderr


@pytest.mark.parametrize(("workers", "times"), [(1, "once, on its own"), (3, "3 times, each time on its own")])
def test_a_script_that_nowhere_connects_is_told_that_its_workers_shared_nothing(
    script: Path, workers: int, times: str
) -> None:
    script.write_text("print('trained')")
    done = windlass("run", "--workers", workers, script)
    assert done.returncode == 0
    assert f"windlass: no worker called wl.connect(): the script ran {times}; to share" in done.stderr
    assert "a script that opens its own wl.Cluster is started by `python`" in done.stderr


def test_of_workers_that_have_connected_nothing_is_said(script: Path) -> None:
    script.write_text("import windlass as wl; wl.connect()")
    for workers in (1, 2):
        assert windlass("run", "--workers", workers, script).stderr == ""


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_nothing_behind(script: Path, signum: signal.Signals, status: int) -> None:
    with started("run", "--servers", 2, "--workers", 2, script) as run:
        assert read_lines(run, 2) == UP
        pids = descendants(run.pid)
        os.killpg(run.pid, signum)
        code, out, err, seconds = finish(run)
    assert (code, out, err) == (status, "", f"windlass: stopped by {signum.name}\n")
    assert is_within(seconds, CLEAN_SECONDS)
    assert len(pids) == 7
    assert left_after(pids, 0.0) == []


def test_a_worker_that_ignores_sigterm_is_killed(script: Path) -> None:
    script.write_text(STUBBORN)
    with started("run", "--workers", 2, script) as run:
        assert read_lines(run, 2) == UP
        pids = descendants(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        os.killpg(run.pid, signal.SIGINT)  # an impatient user
        code, _, err, seconds = finish(run)
    assert (code, err) == (130, "windlass: stopped by SIGINT\n")
    assert seconds > 1.0
    assert is_within(seconds, 1.0 + CLEAN_SECONDS)
    assert left_after(pids, 0.0) == []


def test_ctrl_c_during_the_start_leaves_nothing_behind(script: Path) -> None:
    with started("run", "--workers", 2, script) as run:
        while not (pids := descendants(run.pid)):  # the fork server is there, and nothing else yet
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        code, out, err, _ = finish(run)
    assert (code, out, err) == (130, "", "windlass: stopped by SIGINT\n")
    assert left_after(pids, 0.0) == []


def test_killing_the_command_kills_workers_servers_and_what_they_started(script: Path) -> None:
    script.write_text(PARENT)
    with started("run", "--servers", 2, "--workers", 2, script) as run:
        assert read_lines(run, 2) == UP
        pids = descendants(run.pid)
        assert run.pid in dict(find_clusters())
        assert [psutil.Process(pid).name() for pid in pids].count("sleep") == 2
        run.kill()
        assert left_after(pids, CLEAN_SECONDS) == []
        assert run.pid not in dict(find_clusters())


def test_a_dead_server_is_named_and_the_workers_hear_of_it(script: Path) -> None:
    script.write_text(
        "import numpy as np, windlass as wl\n"
        "store = wl.connect()\n"
        "store.create('w', np.zeros(5000))\n"
        "print('up', store.rank)\n"
        "while True: store.pushpull('w', np.ones(5000))\n"
    )
    with started("run", "--workers", 2, script) as run:
        assert read_lines(run, 2) == UP
        named(run, "server-0").kill()
        code, _, err, _ = finish(run)
    assert code == 1
    assert "windlass: server-0 (pid " in err
    assert ") was killed by SIGKILL; workers that need it will get a ClusterError" in err
    assert "LostRange" in err


def test_the_end_of_the_reader_ends_the_run(script: Path) -> None:
    script.write_text("import time\nwhile True: print('more'); time.sleep(0.01)")
    with started("run", "--workers", 2, script) as run:
        read_lines(run, 1)
        pids = descendants(run.pid)
        assert run.stdout is not None
        run.stdout.close()
        assert run.wait(10) == 128 + signal.SIGPIPE
        assert run.stderr is not None
        assert run.stderr.read() == ""
    assert left_after(pids, 0.0) == []


FAILING = """
import sys, time, numpy as np, windlass as wl
store = wl.connect()
store.create("sum", np.zeros(4), update="add")
for step in range(20):
    if store.rank == 1 and step == 5:
        {deed}
    store.pushpull("sum", np.ones(4))
print("finished with", store.pull("sum"), flush=True)
"""


@pytest.mark.parametrize("deed", ["raise ValueError('my own mistake')", "import os; os.kill(os.getpid(), 9)"])
def test_when_a_worker_fails_no_round_ends_without_it(script: Path, deed: str) -> None:
    script.write_text(FAILING.format(deed=deed))
    done = windlass("run", "--workers", 3, script)
    assert done.returncode in (1, 137)
    assert "worker-1" in done.stderr.splitlines()[-1]
    assert "finished" not in done.stdout
    assert "rounds go on" not in done.stderr


def test_a_worker_that_ends_well_without_a_word_is_not_waited_for_long(script: Path) -> None:
    script.write_text(FAILING.format(deed="import os; os._exit(0)"))
    done = windlass("run", "--workers", 3, script)
    assert (done.returncode, done.stdout.count("finished with [45. 45. 45. 45.]")) == (0, 2)


def test_a_place_where_nothing_can_be_saved_is_told_before_the_run(script: Path, tmp_path: Path) -> None:
    script.write_text("print('begun')")
    (tmp_path / "file").touch()
    done = windlass("run", "--checkpoint", tmp_path / "file", script)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("windlass: --checkpoint expects a place to save to: ")
