"""The `windlass` command. Kept free of imports: forked children pass through here on their way to a script."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """The entry point. Does not return: ends the process with the command's exit status."""
    try:
        from windlass.cli.app import app

        app()
    except KeyboardInterrupt:  # while the imports ran; later each command sees to it itself
        sys.exit(INTERRUPTED)
