"""One crew of exploring processes for all tests here: starting them takes longer than many a test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from windlass.testing.seeds import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # processes of pytest that use the cores, too
    with Crew(max(1, (os.cpu_count() or 1) // others)) as crew:
        yield crew
