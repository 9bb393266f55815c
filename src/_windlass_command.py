"""Where the `windlass` command begins: outside the package, which takes most of a second to import."""

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """The entry point. Does not return: ends the process with the command's exit status.

    Ctrl-C during the imports ends it at once, without a word. There is nothing to clean up yet, and an exception would
    meet code that is not prepared for one, and be printed or even swallowed. A signal that whoever started us wants
    ignored stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from windlass.cli import main as run_command

    run_command()


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
