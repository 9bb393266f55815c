"""Seeing real processes come and go: what these tests look through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.busy import is_soon
from windlass.engines._children import Child

REPO = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(REPO / "src"), str(REPO)])


def ask(child: Child, function: Callable[[], Any]) -> Any:
    """What `function` returns in a child that runs `targets.call`."""
    child.channel.send(function)
    return child.channel.recv()


def is_gone(pid: int) -> bool:
    """No longer running; a zombie that waits for a slow init counts as gone, for it runs nothing."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def left_after(pids: list[int], seconds: float) -> list[int]:
    """Those still running when the time is up, which is longer on a busy machine; returns as soon as there are none."""
    is_soon(lambda: all(map(is_gone, pids)), seconds)
    return [pid for pid in pids if not is_gone(pid)]


def descendants(pid: int | None = None) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def open_files() -> list[str]:
    """What this process has open, by what it is; the listing's own entry is absent because it is closed again."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            pass
    return sorted(found)


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@contextmanager
def start_driver(script: Path, text: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run `text` as a script of its own, in its own session, with its output captured; whatever the test finds, it is
    not left behind. Ctrl-C means what it does in a terminal, also where the tests themselves run without one."""
    script.write_text(f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{text}")
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def run_driver(script: Path, text: str, *arguments: str) -> str:
    """The output of a script that must succeed and must not say anything on stderr."""
    with start_driver(script, text, *arguments) as driver:
        out, err = driver.communicate(timeout=150)
    assert (driver.returncode, err) == (0, "")
    return out
