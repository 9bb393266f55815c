"""Templates: what the clusters of one driver share, and when it goes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.busy import is_soon, is_within
from tests.engines import targets
from tests.engines.processes import ask, descendants, left_after, open_files, run_driver
from tests.engines.targets import CALL
from windlass.engines import _templates
from windlass.engines._children import ForkServer


def warmed_by(server: ForkServer) -> list[int]:
    return ask(server.spawn("worker-0", CALL), lambda: targets.warmed_by)  # type: ignore[no-any-return]


def test_warm_runs_once_for_the_servers_that_follow_each_other() -> None:
    servers = []
    for _ in range(3):
        with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
            servers.append(server.pid)
            (template,) = warmed_by(server)
            assert warmed_by(server) == [template]
            assert psutil.Process(server.pid).ppid() == template
    assert len({*servers, template}) == 4


def test_two_servers_at_once_share_their_imports_and_nothing_else() -> None:
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as one:
        child = one.spawn("worker-0", CALL)
        with ForkServer(preload=[], warm="tests.engines.targets:warm") as other:
            assert warmed_by(other) == warmed_by(one)
            stranger = other.spawn("worker-0", CALL)
            assert ask(stranger, os.getpgrp) == other.pid != ask(child, os.getpgrp)
            os.kill(other.pid, signal.SIGKILL)
            assert stranger.wait(5) == -signal.SIGKILL
        assert ask(child, os.getppid) == one.pid


def test_a_server_has_the_drivers_environment_and_streams_of_its_own_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = """
import os, sys
from tests.engines.processes import ask
from tests.engines.targets import CALL
from windlass.engines._children import ForkServer
def talk():
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
        child = server.spawn("worker-0", CALL)
        return ask(child, lambda: (print("hello"), os.environ.get("OLDPWD"), os.environ.get("NUMBA_DEBUG_CACHE")))[1:]
before = talk()
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
os.environ["OLDPWD"] = "there"
os.environ["NUMBA_DEBUG_CACHE"] = "0"
assert (before, talk()) == ((None, None), ("there", "0")), (before, talk())
"""
    monkeypatch.delenv("OLDPWD", raising=False)
    file = tmp_path / "out.txt"
    assert run_driver(tmp_path / "driver.py", text, str(file)) == "hello\n"
    assert file.read_text() == "hello\n"


def test_nothing_is_left_of_servers_2_seconds_after_the_last_is_closed() -> None:
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
        (template,) = warmed_by(server)
    assert psutil.pid_exists(template)  # for the next one, which would be ready at once
    assert is_soon(lambda: not psutil.pid_exists(template), 2)
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
        assert warmed_by(server) != [template]


def test_a_template_that_was_killed_is_replaced_and_one_that_is_stuck_does_not_hold_up_close() -> None:
    server = ForkServer(preload=[], warm="tests.engines.targets:warm")
    (template,) = warmed_by(server)
    child = server.spawn("worker-0", CALL)
    os.kill(template, signal.SIGKILL)
    assert child.wait(5) == -signal.SIGKILL
    server.close()
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
        (killed,) = warmed_by(server)
    os.kill(killed, signal.SIGKILL)  # while it lingers; and the next one comes before anybody could have noticed
    server = ForkServer(preload=[], warm="tests.engines.targets:warm")
    (another,) = warmed_by(server)
    child = server.spawn("worker-0", CALL)
    os.kill(another, signal.SIGSTOP)
    start = time.perf_counter()
    server.close(grace_seconds=0.2)
    assert is_within(time.perf_counter() - start, 2)
    assert left_after([another, server.pid, child.pid], 1) == []


def test_a_template_that_is_slow_to_bury_one_server_does_not_take_another_along() -> None:
    with ForkServer(preload=[], warm="tests.engines.targets:warm") as kept:
        (template,) = warmed_by(kept)
        child = kept.spawn("worker-0", CALL)
        server = ForkServer(preload=[], warm="tests.engines.targets:warm")
        os.kill(template, signal.SIGSTOP)
        start = time.perf_counter()
        server.close(grace_seconds=0.2)
        assert is_within(time.perf_counter() - start, 2)
        os.kill(template, signal.SIGCONT)
        assert ask(child, os.getppid) == kept.pid
        with ForkServer(preload=[], warm="tests.engines.targets:warm") as another:
            assert warmed_by(another) != [template]  # which is not to be relied on any more
        assert left_after([server.pid], 1) == []
    assert left_after([template], 1) == []


class Fetched:
    """In the place of a lock: as soon as it is open, somebody takes the template."""

    def __init__(self, template: SimpleNamespace) -> None:
        self._template, self._is_first = template, True

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None:
        self._template.num_users += self._is_first
        self._template.num_made += self._is_first
        self._is_first = False


def test_a_template_that_is_taken_as_another_gives_it_back_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_templates, "LINGER_SECONDS", 0.01)
    closed: list[bool] = []
    template: Any = SimpleNamespace(num_users=1, num_made=1, is_alive=True, close=lambda: closed.append(True))
    kept = _templates.Kept()
    kept._template, kept._lock = template, Fetched(template)  # type: ignore[assignment]
    before = set(threading.enumerate())
    kept.give_back(template)
    for timer in set(threading.enumerate()) - before:
        timer.join()
    assert template.num_users == 1
    assert not closed
    kept._template, kept._lock = None, threading.Lock()


def test_servers_that_are_opened_and_closed_by_many_threads_at_once_leave_nothing() -> None:
    errors = []

    def come_and_go() -> None:
        try:
            for _ in range(3):
                with ForkServer(preload=[], warm="tests.engines.targets:warm") as server:
                    child = server.spawn("worker-0", CALL)
                    assert ask(child, os.getppid) == server.pid
        except BaseException as error:
            errors.append(error)

    assert is_soon(lambda: descendants() == [], 2)  # the last test's template: reaped when its files are closed
    before = open_files()
    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert is_soon(lambda: descendants() == [], 2)
    assert open_files() == before


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "lingering"])
def test_a_fork_of_the_driver_has_servers_of_its_own_and_leaves_its_parents_alone(is_open: bool) -> None:
    server = ForkServer(preload=[], warm="tests.engines.targets:warm")
    (template,) = warmed_by(server)
    if not is_open:
        server.close()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            with ForkServer(preload=[], warm="tests.engines.targets:warm") as own:
                code = 0 if warmed_by(own) != [template] else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    if not is_open:
        server = ForkServer(preload=[], warm="tests.engines.targets:warm")
    with server:
        child = server.spawn("worker-0", CALL)
        assert ask(child, os.getppid) == server.pid
        assert not is_open or warmed_by(server) == [template]
