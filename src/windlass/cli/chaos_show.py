"""What a chaos run shows: the job's own lines, ours between them, and on a terminal what is being done now below."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.console import Console
from rich.text import Text

from windlass._words import say
from windlass.chaos.report import Report
from windlass.chaos.table import print_report


class Show:
    """On a terminal the job writes to pipes, and its lines are passed on above a line that lives. Elsewhere it keeps
    the streams that it would have without us, and our lines go to stderr."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._error = Console(stderr=True, highlight=False, soft_wrap=True)
        self.is_live = self._console.is_terminal and self._error.is_terminal
        self._status = self._console.status("chaos: waiting for the job's first push") if self.is_live else None

    def say(self, text: str) -> None:
        """One line of ours."""
        console = self._console if self.is_live else self._error
        say(console, Text.assemble(("chaos:", "bold magenta"), f" {text}"))
        if self._status is not None:
            self._status.update(Text(f"chaos: {text.strip()}", no_wrap=True, overflow="ellipsis"))

    @contextmanager
    def of(self, child: subprocess.Popen[bytes]) -> Iterator[None]:
        """Inside, the job's output is passed on; at the end, all of it has been."""
        if self._status is None:
            yield
            return
        assert child.stdout is not None
        assert child.stderr is not None
        threads = [
            threading.Thread(target=self._pass_on, args=(stream,), daemon=True)
            for stream in (child.stdout, child.stderr)
        ]
        for thread in threads:
            thread.start()
        with self._status:
            yield
            for thread in threads:
                thread.join(2.0)

    def _pass_on(self, stream: IO[bytes]) -> None:
        for line in stream:
            say(self._console, Text.from_ansi(line.decode(errors="replace").rstrip("\n")))


def show_report(report: Report, *, is_json: bool) -> None:
    """On stdout, as a table or as JSON."""
    if is_json:
        sys.stdout.write(json.dumps(report.to_dict(), indent=2) + "\n")
    else:
        print_report(report, Console(highlight=False))
