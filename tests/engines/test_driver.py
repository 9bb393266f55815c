"""Drivers as users run them: scripts without a guard, notebooks, closed streams, Ctrl-C; and every way they can die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.engines.processes import PYTHONPATH, descendants, left_after, run_driver, start_driver

NO_GUARD = """
import os, sys
from windlass.engines._children import ForkServer
import helper_beside_the_script as helper

print("the script runs")

class Point:
    def __init__(self, x): self.x = x

def double(point):
    return Point(point.x * factor)

factor = 2
server = ForkServer(preload=["helper_beside_the_script"])
child = server.spawn("worker-0", "tests.engines.targets:call")

def ask(function):
    child.channel.send(function)
    return child.channel.recv()

point = ask(lambda: double(Point(21)))
print(point.x, type(point) is Point)
print(ask(helper.where) == child.pid, ask(lambda: sys.argv[1]))
server.close()
"""

DYING = """
import ctypes, os, signal, subprocess, sys, time
from windlass.engines._children import ForkServer

def spin():
    while True: pass

def spin_in_c(): sum(range(10**15))

def start_and_sleep():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)

def stop(): os.kill(os.getpid(), signal.SIGSTOP)

server = ForkServer(preload=[])
for function in (spin, spin_in_c, start_and_sleep, stop):
    server.spawn(function.__name__, "tests.engines.targets:call").channel.send(function)
server.spawn("waiting", "tests.engines.targets:call")
print("ready", flush=True)
how = sys.stdin.readline().strip()
if how == "_exit": os._exit(0)
if how == "raise": raise ValueError("why")
if how == "crash": ctypes.string_at(0)
if how == "exec": os.execvp("true", ["true"])
if how == "fork":
    if os.fork() == 0: signal.pause()  # this copy holds every file of the driver
    os.kill(os.getpid(), signal.SIGKILL)
"""

INTERRUPTED = """
import atexit, os, sys, time
from windlass.engines._children import ForkServer

server = ForkServer(preload=[])
atexit.register(server.close)
child = server.spawn("worker-0", "tests.engines.targets:call")
busy = server.spawn("worker-1", "tests.engines.targets:call")
busy.channel.send(lambda: time.sleep(600))
try:
    print("ready", flush=True)
    child.channel.recv()
except KeyboardInterrupt:
    child.channel.send(os.getpid)
    print("still there" if child.channel.recv() == child.pid else "", busy.poll(), flush=True)
    raise
"""

TALK = """
import os
from windlass.engines._children import ForkServer
with ForkServer(preload=[]) as server:
    child = server.spawn("worker-0", "tests.engines.targets:call")
    child.channel.send(lambda: os.getpid() + OFFSET)
    answer = child.channel.recv() - child.pid
"""


def family_of(driver: subprocess.Popen[str], size: int) -> list[int]:
    """The driver's descendants, once it says that it is ready and all of them are up."""
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while len(family := descendants(driver.pid)) < size and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(family) == size
    return family


@pytest.mark.parametrize(
    "how",
    ["SIGKILL", "SIGKILL with both servers stopped", "SIGTERM", "_exit", "raise", "crash", "exec", "fork"],
)
def test_however_the_driver_dies_its_family_is_gone_within_2_seconds(tmp_path: Path, how: str) -> None:
    with start_driver(tmp_path / "driver.py", DYING, stdin=subprocess.PIPE) as driver:
        family = family_of(driver, size=8)  # template and server, five children and a grandchild
        if how.endswith("stopped"):
            (template,) = psutil.Process(driver.pid).children()
            for process in (template, *template.children()):
                os.kill(process.pid, signal.SIGSTOP)
        if how.startswith("SIG"):
            os.kill(driver.pid, signal.Signals[how.split()[0]])
        else:
            assert driver.stdin is not None
            driver.stdin.write(how + "\n")
            driver.stdin.flush()
        os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)  # dead, but its group is still ours to kill
        left = left_after(family, 2)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        os.killpg(driver.pid, signal.SIGKILL)
        assert left == []


def test_a_driver_killed_while_the_server_preloads_takes_it_along(tmp_path: Path) -> None:
    text = "from windlass.engines._children import ForkServer\nprint('ready', flush=True)\n"
    warm = "ForkServer(preload=[], warm='tests.engines.targets:warm_slowly')"
    with start_driver(tmp_path / "driver.py", text + warm) as driver:
        family = family_of(driver, size=1)
        assert driver.stderr is not None
        assert driver.stderr.readline() == "warming\n"
        assert left_after(family, 0) == family
        driver.kill()
        assert left_after(family, 2) == []


def test_ctrl_c_reaches_the_driver_alone_and_its_atexit_closes_everything(tmp_path: Path) -> None:
    with start_driver(tmp_path / "driver.py", INTERRUPTED) as driver:
        family = family_of(driver, size=4)
        os.killpg(driver.pid, signal.SIGINT)
        out, err = driver.communicate(timeout=60)
        assert out == "still there None\n"
        assert err.endswith("KeyboardInterrupt\n")
        assert left_after(family, 2) == []
        assert not any(psutil.pid_exists(pid) for pid in family)


def test_a_script_without_guard_runs_once_and_its_functions_and_classes_travel(tmp_path: Path) -> None:
    (tmp_path / "helper_beside_the_script.py").write_text("import os\ndef where(): return os.getpid()\n")
    out = run_driver(tmp_path / "train.py", NO_GUARD, "--epochs")
    assert out == "the script runs\n42 True\nTrue --epochs\n"


def test_code_without_a_file_works_as_in_a_notebook(tmp_path: Path) -> None:
    code = "assert '__file__' not in globals()\nOFFSET = 5" + TALK + "print(answer)"
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=150, cwd=tmp_path, env=environment,
    )
    assert (done.stdout, done.stderr) == ("5\n", "")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_driver_with_closed_streams_works(tmp_path: Path, closed: str) -> None:
    (tmp_path / "driver.py").write_text("OFFSET = 7" + TALK + "open('answer', 'w').write(str(answer))")
    command = f"exec '{sys.executable}' driver.py {closed}"
    subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, check=True, timeout=150, env=os.environ | {"PYTHONPATH": PYTHONPATH}
    )
    assert (tmp_path / "answer").read_text() == "7"


def test_a_package_found_through_the_scripts_own_sys_path_is_found_by_the_server(tmp_path: Path) -> None:
    text = f"import sys\nsys.path[:0] = {PYTHONPATH.split(os.pathsep)!r}\nOFFSET = 9" + TALK + "print(answer)"
    (tmp_path / "driver.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "driver.py")],  # isolated: the environment would not help either
        capture_output=True, text=True, timeout=150, cwd="/", env=environment,
    )
    assert (done.stdout, done.stderr) == ("9\n", "")
