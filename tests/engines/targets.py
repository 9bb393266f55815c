"""What children run in these tests."""

from windlass.engines._children import Channel


def call(channel: Channel, config: bytes) -> None:
    while True:
        channel.send(channel.recv()())
