from __future__ import annotations

from contextlib import contextmanager

import pytest

import windlass as wl
from tests.torch_embedding.recording import Recording


@contextmanager
def fresh():
    """A store that notes what it is asked."""
    with wl.Store() as store:
        yield Recording(store)


@pytest.fixture
def store():
    with fresh() as found:
        yield found


@pytest.fixture(scope="module")
def two():
    """Two workers and two servers, as threads."""
    with wl.Cluster(engine="threads", servers=2, workers=2, timeout=60) as cluster:
        yield cluster
