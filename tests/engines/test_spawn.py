"""What a child finds when it starts, and what the fork server did before."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numba
import numpy as np
import pytest

from tests.busy import is_within
from tests.engines.processes import ask, num_threads, open_files
from tests.engines.targets import CALL
from windlass.engines._children import Child, ForkServer
from windlass.errors import UsageError


@numba.njit(parallel=True)
def parallel_sum(n: int) -> float:
    total = 0.0
    for i in numba.prange(n):
        total += i
    return total


def draw_random() -> tuple[float, float]:
    return random.random(), float(np.random.rand())


def multiply() -> float:
    a = np.ones((1200, 1200))
    return float((a @ a).sum())


def learn() -> tuple[float, float, int]:
    import torch

    x = torch.ones(600, 600, requires_grad=True)
    (x @ x).exp().sum().backward()  # type: ignore[no-untyped-call]
    a = torch.ones(1000, 1000)
    return float((a @ a).sum()), parallel_sum(1000), torch.get_num_threads()


def test_the_target_gets_its_channel_config_and_environment(shared: ForkServer) -> None:
    child = shared.spawn("teller", "tests.engines.targets:tell", config=b"\0config" * 100_000, env={"HUE": "blue"})
    config, env = child.channel.recv()
    assert config == b"\0config" * 100_000
    assert env["HUE"] == "blue"
    assert env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")  # the launch's own is not left behind
    child.channel.close()
    assert child.wait(5) == 0


def test_a_child_stands_where_the_driver_stands(
    shared: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "beside_the_notebook.py").write_text("COLOUR = 'green'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    child = shared.spawn("stander", CALL)
    assert ask(child, os.getcwd) == str(tmp_path)
    assert ask(child, lambda: sys.argv) == ["train.py", "--fast"]
    assert ask(child, lambda: importlib.import_module("beside_the_notebook").COLOUR) == "green"
    child.channel.close()


def test_spawning_takes_less_than_30_ms(shared: ForkServer) -> None:
    seconds = []
    for i in range(10):
        start = time.perf_counter()
        child = shared.spawn(f"quick-{i}", CALL)
        seconds.append(time.perf_counter() - start)
        child.channel.close()
        child.wait(5)  # or its start would compete with the next
    assert is_within(min(seconds), 0.03)  # the best, because the machine may be busy with something else


def test_server_and_newborn_child_have_one_thread_each(shared: ForkServer, child: Child) -> None:
    assert num_threads(shared.pid) == 1
    assert ask(child, lambda: num_threads(os.getpid())) == 1
    assert ask(child, lambda: {"numpy", "numba"} <= set(sys.modules))


def test_numpy_multiplies_in_forked_children(shared: ForkServer) -> None:
    children = [shared.spawn(f"multiplier-{i}", CALL) for i in range(2)]
    for child in children:
        child.channel.send(multiply)
    assert [child.channel.recv() for child in children] == [1200.0**3] * 2
    for child in children:
        child.channel.close()


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torch_and_numba_run_in_parallel_in_forked_children() -> None:
    with ForkServer(preload=["numpy", "numba", "torch"]) as server:
        assert num_threads(server.pid) == 1
        children = [server.spawn(f"learner-{i}", CALL) for i in range(2)]
        for child in children:
            child.channel.send(learn)
        for child in children:
            product, total, threads = child.channel.recv()
            assert (product, total) == (1000.0**3, 499500.0)
            assert threads > 1 or os.cpu_count() == 1
        draws = [ask(child, lambda: __import__("torch").rand(1).item()) for child in children]
        assert draws[0] != draws[1]


def test_random_numbers_differ_between_children(shared: ForkServer) -> None:
    children = [shared.spawn(f"gambler-{i}", CALL) for i in range(3)]
    draws = [ask(child, draw_random) for child in children]
    for child in children:
        child.channel.close()
    assert len({draw for pair in draws for draw in pair}) == 6


def test_a_failing_preload_is_the_callers_error_and_leaves_nothing_open() -> None:
    before = open_files()
    with pytest.raises(UsageError, match=r"(?s)could not preload no_such_module.*ModuleNotFoundError"):
        ForkServer(preload=["no_such_module"])
    assert set(open_files()) <= set(before)  # the template that was kept, of other imports, may be gone


def test_a_preload_that_leaves_threads_running_warns() -> None:
    with pytest.warns(RuntimeWarning, match=r"warm_badly, the fork server now runs 2 threads; its children could hang"):
        server = ForkServer(preload=[], warm="tests.engines.targets:warm_badly")
    server.close()


def test_children_have_an_empty_main_and_a_name_of_their_own(child: Child) -> None:
    assert ask(child, lambda: [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]) == []
    assert ask(child, lambda: Path("/proc/self/comm").read_text()) == "worker-0\n"


def test_children_ignore_ctrl_c_and_obey_sigterm(shared: ForkServer) -> None:
    child = shared.spawn("obedient", CALL)
    assert ask(child, lambda: gc.isenabled() and signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL)
    child.kill(signal.SIGINT)
    assert child.wait(0.1) is None
    child.kill(signal.SIGTERM)
    assert child.wait(5) == -signal.SIGTERM
    child.kill(signal.SIGTERM)  # nothing to do
    child.channel.close()


def test_children_write_to_the_drivers_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with ForkServer(preload=[]) as server:
        child = server.spawn("printer", CALL)
        ask(child, lambda: print("hello from a child"))
        assert capfd.readouterr().out == "hello from a child\n"  # at once, so that a killed child's lines are not lost


def test_a_child_holds_no_file_of_its_siblings(shared: ForkServer) -> None:
    first, second = shared.spawn("first", CALL), shared.spawn("second", CALL)
    sockets = ask(second, lambda: [name for name in open_files() if "socket" in name])
    assert len(sockets) == 1  # its own channel
    first.channel.close()
    assert first.wait(5) == 0  # EOF came, although the second was forked while the first's channel was open
    assert second.poll() is None
    second.channel.close()


def test_a_server_started_in_a_thread_outlives_the_thread() -> None:
    born: list[ForkServer] = []
    thread = threading.Thread(target=lambda: born.append(ForkServer(preload=[])))
    thread.start()
    thread.join()
    with born[0] as server:
        child = server.spawn("worker-0", CALL)
        assert ask(child, os.getppid) == server.pid


def test_two_servers_in_one_driver_do_not_know_each_other(shared: ForkServer, child: Child) -> None:
    with ForkServer(preload=[]) as other:
        stranger = other.spawn("worker-0", CALL)
        assert ask(stranger, os.getppid) == other.pid != shared.pid
    assert stranger.poll() == 0
    assert ask(child, os.getppid) == shared.pid
