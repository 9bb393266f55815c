"""The `windlass` command. Kept free of imports: forked children pass through here on their way to a script."""

from __future__ import annotations

INTERRUPTED = 130


def main() -> None:
    """The command, for `_windlass_command`, which has seen to Ctrl-C until here. Does not return: ends the process with
    the command's exit status."""
    import signal

    from windlass.cli.app import app

    if callable(signal.getsignal(signal.SIGINT)):  # it is not to be ignored: from here on each command sees to it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app()
