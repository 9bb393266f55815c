from __future__ import annotations

import pytest

import windlass as wl
from tests.torch_embedding.recording import recorded


@pytest.fixture
def store():
    with recorded() as found:
        yield found


@pytest.fixture(scope="module")
def two():
    """Two workers and two servers, as threads."""
    with wl.Cluster(engine="threads", servers=2, workers=2, timeout=60) as cluster:
        yield cluster
