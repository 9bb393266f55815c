"""Ctrl-C at any line of the opening, the use and the closing of a cluster: it is raised, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from tests.engines.processes import run_driver, start_driver

SCRIPT = """
import gc, os, signal, sys, time
import psutil
import windlass as wl

class Strike:
    # Presses Ctrl-C before the n-th line of the engine's code; counts the lines.
    def __init__(self, n): self.n, self.num_lines = n, 0
    def __call__(self, frame, event, arg):
        if "/windlass/engines/" not in frame.f_code.co_filename: return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.n: os.kill(os.getpid(), signal.SIGINT)
        return self

def work(store): return store.rank

def attempt(phase, n):
    strike, cluster = Strike(n), None
    try:
        if phase != "open": cluster = wl.Cluster()
        sys.settrace(strike)
        try:
            if phase == "open": cluster = wl.Cluster()
            elif phase == "run": cluster.run(work)
            else: cluster.close()
        finally: sys.settrace(None)
        was_struck = False
    except KeyboardInterrupt: was_struck = True
    if cluster is not None:
        assert phase != "run" or cluster.run(work) == [0]
        cluster.close()
    return strike.num_lines, was_struck

def num_files(): return len(os.listdir("/proc/self/fd"))

def family(): return psutil.Process().children(recursive=True)

attempt("open", 0)
before = num_files()
for phase, num_strikes in (("open", 12), ("run", 10), ("close", 20)):
    num_lines, _ = attempt(phase, 0)
    num_struck = 0
    for _ in range(3 * num_strikes):
        if num_struck == num_strikes: break
        n = 1 + num_struck * num_lines // num_strikes
        num_seen, was_struck = attempt(phase, n)
        num_struck += was_struck
        if num_seen < n: num_lines = n - 1  # it waited less than before: waits are lines, too
        gc.collect()
        assert num_files() <= before, (phase, n, num_files(), before)
        assert len(family()) <= 1, (phase, n, family())  # the template
    assert num_struck >= num_strikes * 0.8, (phase, num_struck, num_strikes)
deadline = time.monotonic() + 20
while family() and time.monotonic() < deadline: time.sleep(0.02)
assert not family()
"""


WHILE_A_SERVER_IS_FORKED = """
import os, signal, threading, time
import psutil
import windlass as wl

def family(): return psutil.Process().children(recursive=True)

with wl.Cluster(): pass
(template,) = family()
template.suspend()  # as a busy machine does
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
threading.Timer(0.4, template.resume).start()
try: wl.Cluster()
except KeyboardInterrupt: print("struck", flush=True)
assert family() == [template], family()
with wl.Cluster() as cluster: assert cluster.run(lambda store: store.rank) == [0]
assert family() == [template], family()
"""


def test_ctrl_c_while_a_server_is_forked_leaves_no_zombie_of_it(tmp_path: Path) -> None:
    assert run_driver(tmp_path / "driver.py", WHILE_A_SERVER_IS_FORKED) == "struck\n"


AT_THE_END = """
import atexit, os, signal, sys
import windlass as wl

def strike(frame, event, arg):
    if frame.f_code.co_filename.endswith("/engines/_templates.py") and frame.f_code.co_name == "close":
        os.kill(os.getpid(), signal.SIGINT)
        print("struck", flush=True)
    return strike

with wl.Cluster(): pass
atexit.register(sys.settrace, strike)  # before what windlass does at the end
"""


def test_one_more_ctrl_c_as_the_process_ends_is_no_traceback(tmp_path: Path) -> None:
    with start_driver(tmp_path / "driver.py", AT_THE_END) as driver:
        out, err = driver.communicate(timeout=60)
    assert (driver.returncode, err) == (0, "")
    assert "struck" in out


def test_ctrl_c_at_any_line_is_raised_and_leaves_neither_processes_nor_files(tmp_path: Path) -> None:
    with start_driver(tmp_path / "driver.py", SCRIPT) as driver:
        _, err = driver.communicate(timeout=150)
    said = [line for line in err.splitlines() if "was turned away" not in line]
    assert (driver.returncode, said) == (0, [])
