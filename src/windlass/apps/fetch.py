"""Downloading a file that is known by its contents."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 6.0
FILE_SECONDS = 120.0
_BLOCK_BYTES = 1 << 18


def fetch(urls: Sequence[str], target: Path, check: Callable[[Path], str]) -> None:
    """Get `target` from the first of these addresses that has it.

    `check` says what is wrong with a file, or nothing. The target appears whole or not at all, whoever else fetches it
    at the same time. Raises OSError, which tells what was wrong with the last address. Blocks: a server that is silent
    for ANSWER_SECONDS is given up, and a file that takes longer than FILE_SECONDS.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    last = OSError("no address to fetch it from")
    for url in urls:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                _copy(url, file)
            wrong = check(Path(name))
            if not wrong:
                os.chmod(name, 0o644)
                os.replace(name, target)
                return
            last = OSError(f"{url} {wrong}")
        except OSError as error:
            last = OSError(f"{url}: {error}")
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    raise last


def _copy(url: str, file: Any) -> None:
    deadline = time.monotonic() + FILE_SECONDS
    with _open(url) as answer:
        while block := answer.read(_BLOCK_BYTES):
            file.write(block)
            if time.monotonic() > deadline:
                raise OSError(f"not there after {FILE_SECONDS:.0f} s")


def _open(url: str) -> Any:
    """In a thread of its own: looking up a name knows no timeout, and without a network it can take half a minute."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(url, timeout=ANSWER_SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, name="windlass-fetch", daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        raise OSError(f"no answer within {ANSWER_SECONDS:.0f} s") from None
    if isinstance(answer, Exception):
        raise OSError(str(answer)) from answer
    return answer
