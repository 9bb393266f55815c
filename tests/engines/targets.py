"""What children run in these tests, and what the fork server preloads and warms."""

import os
import threading
import time

from windlass._wire.effects import Effect, Event, Received
from windlass._wire.messages import Place
from windlass.engines._children import Channel
from windlass.server.state import ServerConfig, ServerState
from windlass.types import Incarnation, Memory

CALL = "tests.engines.targets:call"

warmed_by: list[int] = []


def call(channel: Channel, config: bytes) -> None:
    """Call whatever arrives and send back what it returns, until the channel closes."""
    while True:
        channel.send(channel.recv()())


def tell(channel: Channel, config: bytes) -> None:
    channel.send((config, dict(os.environ)))
    channel.recv()


def leave(channel: Channel, config: bytes) -> None:
    os._exit(int(config))


def run_away(channel: Channel, config: bytes) -> None:
    raise SystemExit(int(config))


def fail(channel: Channel, config: bytes) -> None:
    raise ValueError(config.decode())


def warm() -> None:
    warmed_by.append(os.getpid())


def warm_badly() -> None:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def warm_slowly() -> None:
    """Tell whoever started us, who shares our standard error, and take long."""
    os.write(2, b"warming\n")
    time.sleep(60)


class SlowMaker(ServerState):
    """The second server takes four seconds to make the key 'slow', and does nothing else meanwhile: as one that
    compiles."""

    def __init__(self, me: Incarnation, memory: Memory, config: ServerConfig) -> None:
        super().__init__(me, memory, config)
        self._is_slow = config.join.rank == 1

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self._is_slow and isinstance(event, Received) and isinstance(event.message, Place):
            time.sleep(4.0 if event.message.spec.name == "slow" else 0.0)
        return super().handle(event, now)
