"""What driver, template, fork server and newborn children tell each other, always over an inherited channel."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """Where the driver stands, so that whatever it can import its children can import too."""

    cwd: str | None
    path: list[str]
    argv: list[str]

    @classmethod
    def here(cls) -> Place:
        try:
            cwd = os.getcwd()
        except FileNotFoundError:
            cwd = None  # the directory was deleted under the driver; its children inherit the same hole
        return cls(cwd, [entry or cwd or "" for entry in sys.path], list(sys.argv))

    def enter(self) -> None:
        if self.cwd is not None:
            with suppress(OSError):
                os.chdir(self.cwd)
        sys.path[:] = self.path
        sys.argv[:] = self.argv


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """First on a template's channel. `pythonpath` is the user's own, which the launch had to borrow."""

    preload: tuple[str, ...]
    warm: str | None
    place: Place
    pythonpath: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The answer to a Boot; `num_threads` should be 1."""

    num_threads: int
    ticket: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """To a template: fork one more fork server, with this environment. Four files follow: the server's ends of its
    control channel and of its lifeline, its stdout and its stderr."""

    ticket: int
    env: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    ticket: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bury:
    """To a template: kill this fork server's process group and reap it. Until then the number is its own."""

    ticket: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Buried:
    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A file follows: the child's end of its channel."""

    ticket: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    ticket: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The bad answer to a Boot (ticket 0), a Make or a Fork."""

    ticket: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    pid: int
    signum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """`code` as in subprocess: -n is death by signal n."""

    pid: int
    code: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Kill and reap all children, then exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """First on a child's channel: what to run and where."""

    name: str
    target: str
    config: bytes
    env: dict[str, str]
    place: Place
