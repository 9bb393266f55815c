"""Starting a template's process, whatever state the driver's own streams, flags and import path are in."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from windlass.engines._control import Place
from windlass.errors import ClusterError


def launch(control: int, lifeline: int) -> subprocess.Popen[bytes]:
    """Start a template that inherits these two files and the driver's stdout and stderr. Does not wait for it."""
    # PYTHONPATH makes importable there what is importable here, this package included; -P keeps the current
    # directory from shadowing it. The template gives the user's own PYTHONPATH back.
    flags = [flag for flag in subprocess._args_from_interpreter_flags() if flag not in ("-I", "-E")]  # type: ignore[attr-defined]
    arguments = [str(control), str(lifeline), str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, *flags, "-P", "-m", "windlass.engines._template", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(Place.here().path)},
        stdin=subprocess.DEVNULL,
        stdout=None if is_inheritable(1) else subprocess.DEVNULL,
        stderr=None if is_inheritable(2) else subprocess.DEVNULL,
        pass_fds=(control, lifeline),
        start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
    )


def is_inheritable(fd: int) -> bool:
    """Whether the file is open, and a child's to use."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False  # closed


@contextmanager
def files_told(what: str) -> Iterator[None]:
    """Inside, that no file can be opened any more is a ClusterError that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        who = f"this process has all {limit} files open that it may have" if error.errno == errno.EMFILE else (
            "this machine has as many files open as it may have"
        )  # fmt: skip
        raise ClusterError(
            f"cannot {what}: {who}; raise the limit (`ulimit -n 65536`), or close files, sockets or other clusters"
        ) from error


@contextmanager
def above_stdio() -> Iterator[None]:
    """What is opened inside gets a number above 2 even if the driver's stdin or stdout is closed: a child's own would
    land on top of it."""
    held: list[int] = []
    try:
        while not held or held[-1] <= 2:
            held.append(os.open(os.devnull, os.O_RDWR))
        yield
    finally:
        for fd in held:
            os.close(fd)
