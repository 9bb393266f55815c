"""How a forked child becomes one of the user's workers.

The child *executes* a new interpreter rather than running the script in the preloaded one. A script then behaves as
under plain `python`: its environment variables are read before its imports, its threads are joined at the end, its
`__main__` can be re-imported by multiprocessing. That costs a fifth of a second of imports. Being born from the fork
server still pays: what it set before the exec holds after it (the process group that the kernel kills at the driver's
death, PR_SET_PDEATHSIG), and it reaps the child and tells how it ended.
"""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from windlass.engines._channel import Channel

TARGET = "windlass.cli.script:become"


class Script(msgspec.Struct, frozen=True):
    """What follows the interpreter on the command line: ("train.py", "--lr", "1") or ("-m", "package.train")."""

    arguments: tuple[str, ...]


_decoder = msgspec.msgpack.Decoder(Script)


def become(channel: Channel, config: bytes) -> None:
    """Take two files from the channel as stdout and stderr, then replace this process by the script."""
    script = _decoder.decode(config)
    for number in (1, 2):
        fd = channel.recv_fd()
        os.dup2(fd, number)
        os.close(fd)
    # Ignored signals stay ignored across an exec; these were ignored for the fork server's sake or by Python itself.
    for signum in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *script.arguments])
