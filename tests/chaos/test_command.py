"""`windlass chaos -- COMMAND`, as its user runs it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import WINDLASS, finish, started, windlass
from tests.engines.processes import descendants, left_after, start_driver
from windlass._ledger import Ledger, Phase
from windlass.engines.config import CHAOS_VARIABLE

pytestmark = pytest.mark.timeout(120)  # a command starts an interpreter for each node

JOB = """
import os, sys
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(60_000, np.float32), update="add")
store.create("enough", np.zeros(1, np.float32), reduce="max", update="assign")
pushes = 0
while True:
    store.pushpull("w", np.ones(60_000, np.float32))
    pushes += 1
    if pushes == 1: print("up", flush=True)
    is_told = store.rank == 0 and os.path.exists(sys.argv[1])
    if store.pushpull("enough", np.full(1, is_told, np.float32))[0]: break
value = store.pull("w")
assert value.min() == value.max() == pushes * 2
print("done", store.rank)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


def _run(script: Path) -> tuple[object, ...]:
    """A job that goes on until there is a file `enough`."""
    until = script.with_name("enough")
    return (WINDLASS, "run", "--servers", 3, "--workers", 2, "--replicas", 1, script, until)


def test_a_job_survives_the_servers_that_it_loses_and_the_report_says_so(script: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    options = ("--kill", "server:any", "--drop", "0.5%", "--every", "2s", "--for", "4s", "--seed", 5, "--json", file)
    with started("chaos", *options, "--", *_run(script)) as chaos:
        assert chaos.stdout is not None
        assert chaos.stderr is not None
        err = ""
        while line := chaos.stderr.readline():
            err += line
            if "goes on undisturbed" in err and err.count("takes the seat") == err.count("killed server-"):
                script.with_name("enough").touch()
        out = chaos.stdout.read()
        assert chaos.wait() == 0, err
    assert {"[worker-0] done 0", "[worker-1] done 1"} <= set(out.splitlines())
    assert "Chaos report  seed 5" in out
    assert "nothing was lost, nothing counted twice" in out
    assert "the job leases no work" in out
    assert "chaos: " in err
    assert "others have what it held, and go on" in err
    report = json.loads(file.read_text())
    assert (report["ok"], report["num_lost"], report["num_twice"], report["job_status"]) == (True, 0, 0, 0)
    assert [fault["what"] for fault in report["faults"]] == ["kill", "kill"]
    assert all(fault["note"].startswith("replaced") for fault in report["faults"])
    assert report["findings"]["num_acked"] > 0


def test_a_job_that_ends_because_of_it_is_said_to_have_ended_so(script: Path) -> None:
    done = windlass("chaos", "--kill", "worker:1", "--for", "5s", "--", *_run(script))
    assert done.returncode == 128 + signal.SIGKILL
    assert "workers will be killed: unless the job goes on without them, it ends there" in done.stderr
    assert "the job ended with status 137" in done.stdout
    assert "nothing was lost" in done.stdout


def test_ctrl_c_wakes_the_stopped_and_ends_the_job_with_a_report(script: Path) -> None:
    with started("chaos", "--stop", "server:0", "--every", "10s", "--", *_run(script)) as chaos:
        assert chaos.stderr is not None
        while "stopped server-0" not in chaos.stderr.readline():
            assert chaos.poll() is None
        pids = descendants(chaos.pid)
        os.killpg(chaos.pid, signal.SIGINT)
        code, out, err, _ = finish(chaos)
    assert code == 130
    assert "waked server-0 again" in err
    assert "SIGINT: the job is told to stop" in err
    assert "nothing was lost, nothing counted twice" in out
    assert left_after(pids, 0.5) == []


STUBBORN = """
import time
import numpy as np
import windlass as wl
def work(store):
    store.create("w", np.zeros(9, np.float32), update="add", consistency=wl.Eventual())
    print("up", flush=True)
    while True: store.push("w", np.ones(9, np.float32)).wait()
with wl.Cluster() as cluster:
    try: cluster.run(work)
    except KeyboardInterrupt: print("not yet", flush=True)
    time.sleep(100)
"""


def test_a_second_ctrl_c_kills_a_job_that_does_not_end_and_reports_what_has_been(tmp_path: Path) -> None:
    """It would be waited for, for half a minute and another."""
    script = tmp_path / "driver.py"
    script.write_text(STUBBORN)
    with started("chaos", "--drop", "0.1%", "--", sys.executable, script) as chaos:
        assert chaos.stdout is not None
        assert chaos.stderr is not None
        assert chaos.stdout.readline() == "up\n"
        while "of frames lost" not in chaos.stderr.readline():  # it has begun
            assert chaos.poll() is None
        os.killpg(chaos.pid, signal.SIGINT)
        assert chaos.stdout.readline() == "not yet\n"
        pids = descendants(chaos.pid)
        os.killpg(chaos.pid, signal.SIGINT)
        code, out, err, took = finish(chaos)
    assert code == 130
    assert "SIGINT: the job is told to stop; a second one kills it" in err
    assert "the job was killed by SIGKILL" in out
    assert "the books could not be compared: there was no time to read them" in out
    assert took < 10.0
    assert left_after(pids, 5.0) == []


def test_a_job_does_not_outlive_who_disturbs_it(script: Path) -> None:
    with started("chaos", "--stop", "server:0", "--every", "10s", "--", *_run(script)) as chaos:
        assert chaos.stderr is not None
        while "stopped server-0" not in chaos.stderr.readline():
            assert chaos.poll() is None
        pids = descendants(chaos.pid)
        chaos.kill()
        assert left_after(pids, 10.0) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kill", "server:1"), "chaos expects a command after --"),
        (("--", "true"), "chaos expects at least one fault: kill, stop, drop, delay or partition"),
        (("--drop", "120%", "--", "true"), "drop expects a share from 0% to below 100% (5% or 0.05), got '120%'"),
        (("--kill", "client:1", "--", "true"), "chaos expects server:N, worker:N, server:any, worker:any or manager"),
        (("--partition", "server:1", "--", "true"), "it has no bar, so nobody is on the other side"),
        (("--delay", "soon", "--", "true"), "expected a time (20ms, 5s, 2m), got 'soon'"),
        (("--drop", "1%", "--", "no-such-program"), "chaos cannot start 'no-such-program': No such file or directory"),
        (("--drop", "1%", "--json", "/no/such/x", "--", "true"), "--json expects a file in a directory that exists"),
    ],
)
def test_nonsense_is_refused_in_words(arguments: tuple[str, ...], words: str) -> None:
    done = windlass("chaos", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("target", "job", "has"),
    [
        ("server:7", ("run", "--servers", 3), "3 servers (server:0 to server:2)"),
        ("worker:1", ("run", "-s", 9), "1 worker (worker:0)"),
        ("worker:2", ("demo",), "2 workers (worker:0 to worker:1)"),
    ],
)
def test_a_node_that_the_job_will_not_have_is_told_before_it_is_started(
    script: Path, target: str, job: tuple[object, ...], has: str
) -> None:
    done = windlass("chaos", "--kill", target, "--", WINDLASS, *job, script, 60.0)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"windlass: chaos on {target}: there is no such node; the cluster has {has}\n"


def test_a_node_that_the_job_turns_out_not_to_have_ends_it_at_once(tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text("import time, windlass as wl\nwith wl.Cluster(servers=3): time.sleep(60)")
    done = windlass("chaos", "--kill", "server:7", "--no-replace", "--", sys.executable, driver)
    assert (done.returncode, done.stdout) == (2, "")
    told = "chaos: on server:7: there is no such node; the cluster has 3 servers (server:0 to server:2); "
    assert done.stderr.index(told + "the job is told to stop") < done.stderr.index("KeyboardInterrupt")


def test_a_command_that_opens_no_cluster_is_not_disturbed() -> None:
    done = windlass("chaos", "--drop", "1%", "--", "true")
    assert done.returncode == 1
    assert "the job ended with status 0 before it had opened a cluster; nothing was disturbed" in done.stderr


def test_ctrl_c_ends_a_close_that_waits_for_its_books_to_be_looked_at(tmp_path: Path) -> None:
    """Nobody looks here: without Ctrl-C it waits for twenty seconds."""
    ledger = Ledger.make()
    text = f"import os; os.environ[{CHAOS_VARIABLE!r}] = {ledger.path!r}; import windlass as wl; wl.Cluster().close()"
    with start_driver(tmp_path / "driver.py", text) as driver:
        while ledger.phase is not Phase.ENDED:
            assert driver.poll() is None
            time.sleep(0.01)
        pids = descendants(driver.pid)
        began = time.monotonic()
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=60)
        took = time.monotonic() - began
    ledger.close()
    assert "KeyboardInterrupt" in err
    assert took < 10.0
    assert left_after(pids, 1.0) == []
