"""How children end, who is told, and what closing leaves behind: nothing."""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import signal
import subprocess
import tempfile
import threading
import time

import psutil
import pytest

from tests.busy import is_within
from tests.engines.processes import ask, descendants, is_gone, left_after, open_files
from tests.engines.targets import CALL
from windlass.engines._children import Child, ForkServer
from windlass.errors import ClusterError, UsageError


def spin() -> None:
    while True:
        pass


def spin_in_c() -> int:
    return sum(range(10**15))  # holds the GIL and looks at nothing


def start_sleep() -> int:
    return subprocess.Popen(["sleep", "600"]).pid


def make_temporary() -> str:
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)  # which also keeps it alive
    return directory.name


def start_a_copy_that_holds_everything() -> int:
    if (pid := os.fork()) == 0:
        time.sleep(600)
    return pid


def await_stopped(pid: int) -> None:
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)


def crash() -> None:
    ctypes.string_at(0)


@pytest.mark.parametrize(
    ("target", "config", "status"),
    [("leave", b"7", 7), ("run_away", b"3", 3), ("leave", b"0", 0), ("fail", b"why", 1)],
)
def test_however_a_child_leaves_its_status_is_told(
    shared: ForkServer, target: str, config: bytes, status: int
) -> None:
    child = shared.spawn("leaver", f"tests.engines.targets:{target}", config=config)
    assert child.wait(5) == status
    assert child.poll() == status
    child.channel.close()


def test_a_crash_is_a_status(shared: ForkServer) -> None:
    child = shared.spawn("crasher", CALL)
    child.channel.send(crash)
    assert child.wait(5) == -signal.SIGSEGV
    with pytest.raises(EOFError):
        child.channel.recv()
    child.channel.close()


def test_an_unhandled_exception_is_printed_with_name_and_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    here = "tests.engines.targets"
    last_lines = {
        f"{here}:fail": "ValueError: because",
        f"{here}:absent": f"AttributeError: module '{here}' has no attribute 'absent'",
        "no_such_module:f": "ModuleNotFoundError: No module named 'no_such_module'",
    }
    with ForkServer(preload=[]) as server:
        for target, last_line in last_lines.items():
            child = server.spawn("worker-3", target, config=b"because")
            assert child.wait(5) == 1
            err = capfd.readouterr().err
            assert err.startswith(f"windlass: worker-3 (pid {child.pid}) failed in {target}\nTraceback")
            assert err.endswith(last_line + "\n")


def test_an_end_is_told_within_50_ms_and_collected_once(shared: ForkServer) -> None:
    shared.collect()  # those of earlier tests
    seconds = []
    for i in range(5):
        child = shared.spawn(f"worker-{i}", CALL)
        ask(child, os.getpid)  # it is up
        assert shared.collect() == []
        assert not select.select([shared], [], [], 0)[0]
        killed = time.perf_counter()
        os.kill(child.pid, signal.SIGKILL)
        assert select.select([shared], [], [], 5)[0]
        seconds.append(time.perf_counter() - killed)
        assert shared.collect() == [child]
        assert child.exitcode == -signal.SIGKILL
    assert is_within(min(seconds), 0.05)  # the best, because the machine may be busy with something else


def test_an_end_that_wait_has_seen_is_still_to_be_collected(shared: ForkServer) -> None:
    shared.collect()
    child = shared.spawn("leaver", "tests.engines.targets:leave", config=b"5")
    assert child.wait(5) == 5
    assert select.select([shared], [], [], 0)[0]
    assert shared.collect() == [child]


def test_waiting_in_many_threads_each_hears_of_its_own(shared: ForkServer) -> None:
    children = [shared.spawn(f"worker-{i}", CALL) for i in range(6)]
    heard: list[int | None] = []
    threads = [threading.Thread(target=lambda c=c: heard.append(c.wait(10))) for c in children]
    for thread in threads:
        thread.start()
    for child in children:
        child.kill(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert heard == [-signal.SIGKILL] * 6


def test_a_child_that_leaves_runs_its_own_exit_functions(shared: ForkServer) -> None:
    child = shared.spawn("tidy", CALL)
    directory = ask(child, make_temporary)
    assert os.path.isdir(directory)
    child.channel.close()
    assert child.wait(5) == 0
    assert not os.path.exists(directory)


def test_waiting_ends_at_its_timeout(child: Child) -> None:
    start = time.perf_counter()
    assert child.wait(0.1) is None
    took = time.perf_counter() - start
    assert took >= 0.1
    assert is_within(took, 0.5)


def test_eof_comes_even_if_something_the_child_started_holds_its_channel(fresh: ForkServer) -> None:
    child = fresh.spawn("parent", CALL)
    copy = ask(child, start_a_copy_that_holds_everything)
    child.kill(signal.SIGKILL)
    assert child.wait(5) == -signal.SIGKILL
    with pytest.raises(EOFError):
        child.channel.recv()
    assert not is_gone(copy)
    fresh.close()
    assert left_after([copy], 1) == []


def test_close_lets_children_finish_then_kills_the_rest_and_leaves_no_zombie() -> None:
    server = ForkServer(preload=[])
    polite, stopped, spinning, in_c, parent = (
        server.spawn(name, CALL) for name in ("polite", "stopped", "spinning", "in-c", "parent")
    )
    grandchild = ask(parent, start_sleep)
    ask(stopped, os.getpid)
    stopped.kill(signal.SIGSTOP)
    await_stopped(stopped.pid)  # kill does not wait, and the closing of its channel might overtake it
    spinning.channel.send(spin)
    in_c.channel.send(spin_in_c)
    family = [server.pid, grandchild, *(c.pid for c in (polite, stopped, spinning, in_c, parent))]
    start = time.perf_counter()
    server.close(grace_seconds=1.0)  # some of which the polite need where others spin
    assert is_within(time.perf_counter() - start, 2.2)
    assert [polite.poll(), parent.poll()] == [0, 0]
    assert [stopped.poll(), spinning.poll(), in_c.poll()] == [-signal.SIGKILL] * 3
    assert left_after(family, 0.5) == []
    assert not any(psutil.pid_exists(pid) for pid in family if pid != grandchild)  # that one is init's to reap
    server.close()
    with pytest.raises(UsageError, match="cannot spawn 'late': this fork server was closed"):
        server.spawn("late", CALL)
    assert (server.fileno(), len(server.collect()), server.collect()) == (-1, 5, [])


def test_nothing_stays_open_in_the_driver() -> None:
    with ForkServer(preload=[]):  # keeps the template that all use, and its files
        before = open_files()
        for _ in range(2):
            with ForkServer(preload=[]) as server:
                children = [server.spawn(f"worker-{i}", CALL) for i in range(5)]
                children[0].kill()
                children[1].channel.close()
                assert [children[0].wait(5), children[1].wait(5)] == [-signal.SIGKILL, 0]
        assert open_files() == before


def test_when_the_server_is_killed_its_children_die_and_everyone_is_told(fresh: ForkServer) -> None:
    children = [fresh.spawn(f"worker-{i}", CALL) for i in range(3)]
    ask(children[0], os.getpid)
    children[1].channel.send(spin_in_c)
    os.kill(fresh.pid, signal.SIGKILL)
    assert [child.wait(5) for child in children] == [-signal.SIGKILL] * 3
    assert left_after([child.pid for child in children], 1) == []
    assert select.select([fresh], [], [], 0)[0]
    assert sorted(child.name for child in fresh.collect()) == ["worker-0", "worker-1", "worker-2"]
    assert not select.select([fresh], [], [], 0)[0]
    with pytest.raises(EOFError):
        children[0].channel.recv()
    with pytest.raises(ClusterError, match="died before it could fork 'late'; close it and start another"):
        fresh.spawn("late", CALL)


def test_a_server_that_is_stuck_does_not_hold_up_close(fresh: ForkServer) -> None:
    child = fresh.spawn("worker-0", CALL)
    ask(child, os.getpid)
    os.kill(fresh.pid, signal.SIGSTOP)
    start = time.perf_counter()
    fresh.close(grace_seconds=0.2)
    assert is_within(time.perf_counter() - start, 1.5)
    assert child.poll() is not None
    assert left_after([fresh.pid, child.pid], 1) == []


def test_an_interrupt_during_the_grace_still_kills_everything() -> None:
    server = ForkServer(preload=[])
    child = server.spawn("spinning", CALL)
    child.channel.send(spin)

    def strike() -> None:
        while child.channel.fileno() >= 0:  # which is the first that is closed
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    striking = threading.Thread(target=strike)
    striking.start()
    with pytest.raises(KeyboardInterrupt):
        server.close(grace_seconds=30)
    striking.join()
    assert child.poll() == -signal.SIGKILL
    assert not psutil.pid_exists(child.pid)
    assert not psutil.pid_exists(server.pid)


def test_a_forked_copy_of_the_driver_that_closes_harms_nobody(fresh: ForkServer) -> None:
    child = fresh.spawn("worker-0", CALL)
    if (pid := os.fork()) == 0:
        fresh.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask(child, os.getpid) == child.pid
    assert not is_gone(fresh.pid)


def test_children_come_and_go_without_a_trace_in_the_server(shared: ForkServer) -> None:
    before = len(os.listdir(f"/proc/{shared.pid}/fd"))
    for i in range(20):
        child = shared.spawn(f"worker-{i}", CALL)
        child.channel.close()
        assert child.wait(5) == 0
    assert descendants(shared.pid) == []
    assert len(os.listdir(f"/proc/{shared.pid}/fd")) == before
