"""One behaviour suite, every transport: tests get a running cluster of each kind, and a key name of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import windlass as wl

KINDS = {
    "threads": {"engine": "threads"},
    "shm": {"engine": "processes", "transport": "shm"},
    "tcp": {"engine": "processes", "transport": "tcp"},
}
WORKERS = 3
_numbers = itertools.count()


@pytest.fixture(scope="package", params=list(KINDS))
def cluster(request: pytest.FixtureRequest) -> Iterator[wl.Cluster]:
    with wl.Cluster(servers=2, workers=WORKERS, chunk_bytes=64 << 10, timeout=20, **KINDS[request.param]) as cluster:
        yield cluster


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"
