"""Running the `windlass` command as its user does: as a process, seen from outside."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from windlass.engines._compiling import SILENCE

WINDLASS = str(Path(sys.executable).parent / "windlass")
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 150

WAITING = """
import sys, time
import windlass as wl
store = wl.connect()
print("up", store.rank)
time.sleep(60)
"""


def windlass(*arguments: object, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command's end, with what it printed. `env` is added to an environment of 80 columns and no cluster."""
    bare = {name: value for name, value in os.environ.items() if name == SILENCE or not name.startswith("WINDLASS_")}
    return subprocess.run(
        [WINDLASS, *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=PATIENCE_SECONDS,
        stdin=subprocess.DEVNULL,
        env=bare | {"COLUMNS": "80", "PYTHONWARNINGS": "error"} | (env or {}),
        **options,
    )


def on_terminal(*arguments: object) -> tuple[int, str]:
    """The command's exit status, and all that it wrote to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "40", "TERM": "xterm-256color"}
    command = [WINDLASS, *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # Linux says EIO at the end of a terminal
            pass
        os.close(ours)
    return process.returncode, shown.decode()


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command while it runs, in a process group of its own; killed at the end if need be."""
    with subprocess.Popen(
        [WINDLASS, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines of its stdout, sorted: which worker is first is a matter of chance."""
    assert process.stdout is not None
    return sorted(process.stdout.readline().rstrip("\n") for _ in range(count))


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str, float]:
    """Its status, the rest of what it printed, and the seconds that its end took."""
    began = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, out, err, time.monotonic() - began


def named(process: subprocess.Popen[str], name: str) -> psutil.Process:
    """One node among its descendants, by the name that the fork server gave it."""
    children = psutil.Process(process.pid).children(recursive=True)
    (found,) = (child for child in children if child.name() == name)
    return found
