"""What a run prints: the workers' lines, each whole and with its worker's name before it, and our own words.

Lines go to the files as bytes and in one write each: nothing is decoded, so nothing a script prints can fail here, and
nothing is buffered, so nothing is lost when the run is killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import NamedTuple

from rich.console import Console
from rich.style import Style

from windlass._words import folded

MAX_LINE_BYTES = 64 << 10
REDRAW_SECONDS = 1.0
COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")


class Interrupted(BaseException):
    """A signal, or the end of our reader, tells the run to stop; like KeyboardInterrupt it is no Exception."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.left = ""  # what there is to go on from, in words; empty if nothing is to be said of it


class Lines:
    """Cuts a stream into lines.

    A carriage return starts a line anew, as progress bars do. Bars of several workers cannot be redrawn in one place,
    so of a line's states one a second is shown, and the last one.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._shown = b""
        self._redraw_at = 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that this data completes."""
        *whole, self._buffer = (self._buffer + data).split(b"\n")
        lines = [line for part in whole for line in self._finish(part)]
        if b"\r" in self._buffer:
            *_, last, current = [b"", *self._buffer.split(b"\r")]
            if last and now >= self._redraw_at:
                self._redraw_at = now + REDRAW_SECONDS
                self._shown = last
                lines.append(last)
            self._buffer = last + b"\r" + current
        if len(self._buffer) > MAX_LINE_BYTES:
            lines += self.end()
        return lines

    def end(self) -> list[bytes]:
        """The stream is over: what has no line end yet."""
        rest, self._buffer = self._buffer, b""
        return self._finish(rest) if rest else []

    def _finish(self, part: bytes) -> list[bytes]:
        states = [state for state in part.split(b"\r") if state]
        shown, self._shown = self._shown, b""
        line = states[-1] if states else b""
        return [] if line and line == shown else [line]


class Stream(NamedTuple):
    """One of the two files a worker writes to."""

    worker: str
    fd: int  # ours to write to: 1 or 2


class Output:
    """Writes to this process's stdout and stderr. Raises Interrupted(SIGPIPE) once when nobody reads them any more,
    and is silent from then on. Workers' lines come from one thread; `say` may be called from any."""

    def __init__(self) -> None:
        self._consoles = {1: Console(file=sys.stdout), 2: Console(file=sys.stderr)}
        self._closed: set[int] = set()

    def line(self, stream: Stream, number: int, text: bytes) -> None:
        """One line of worker `number`."""
        console = self._consoles[stream.fd]
        prefix = f"[{stream.worker}]"
        if console.is_terminal and not console.no_color:
            style = Style(color=COLOURS[number % len(COLOURS)], bold=True)
            prefix = style.render(prefix, color_system=console._color_system)
            if b"\x1b" in text:
                text += b"\x1b[0m"  # a colour that a worker left on stays its own
        self._write(stream.fd, prefix.encode() + b" " + text + b"\n")

    def say(self, text: str, *, is_error: bool = False) -> None:
        """One line of our own, on stderr; on a terminal as many as it takes, broken between words."""
        console = self._consoles[2]
        name = "windlass:"
        if console.is_terminal:
            text = folded(f"{name} {text}", console.width).removeprefix(f"{name} ")
        if console.is_terminal and not console.no_color:
            style = Style(color="red" if is_error else "yellow", bold=True)
            name = style.render(name, color_system=console._color_system)
        self._write(2, f"{name} {text}\n".encode(errors="backslashreplace"))

    def _write(self, fd: int, data: bytes) -> None:
        if fd in self._closed:
            return
        try:
            while data:
                try:
                    data = data[os.write(fd, data) :]
                except BlockingIOError:  # somebody made our terminal non-blocking
                    select.select([], [fd], [])
        except BrokenPipeError:
            self._closed.add(fd)
            raise Interrupted(signal.SIGPIPE) from None
        except OSError:  # the terminal is gone; SIGHUP says so
            self._closed.add(fd)
