"""Fork servers for the tests: one shared by those that leave it as they found it, a fresh one for the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engines.processes import open_files
from tests.engines.targets import CALL
from windlass.engines._children import Child, ForkServer


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkServer]:
    with ForkServer(preload=["numpy", "numba"]) as server:
        yield server


@pytest.fixture
def fresh() -> Iterator[ForkServer]:
    """Closed at the end in any case; leaves no file open."""
    with ForkServer(preload=[]):  # keeps the template that both use, and its files: nobody knows when it would go
        before = open_files()
        server = ForkServer(preload=[])
        yield server
        server.close(grace_seconds=0.1)
        assert open_files() == before


@pytest.fixture
def child(shared: ForkServer) -> Iterator[Child]:
    """One that calls what it is sent."""
    child = shared.spawn("worker-0", CALL)
    yield child
    child.channel.close()
    assert child.wait(5) is not None
