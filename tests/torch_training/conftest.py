from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401  # the first optimizer loads it; now, so that every cluster has it in advance

import windlass as wl


@pytest.fixture(scope="module")
def two():
    """Two workers and two servers, as threads."""
    with wl.Cluster(engine="threads", servers=2, workers=2, timeout=20) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def three():
    with wl.Cluster(engine="threads", servers=1, workers=3, timeout=20) as cluster:
        yield cluster
