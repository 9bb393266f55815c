"""Every planted mistake is found by the explorer within a bounded number of seeds."""

from __future__ import annotations

import pytest

from windlass.testing.mutants import MUTANTS
from windlass.testing.seeds import Crew

MAX_SEEDS = 400


@pytest.mark.parametrize("name", MUTANTS)
def test_the_explorer_finds_the_planted_mistake(name: str, crew: Crew) -> None:
    mutant = MUTANTS[name]
    found = crew.find(range(MAX_SEEDS), mutant.limits, mutant.server, mutant.rules)
    assert found is not None, f"{name} ({mutant.server.__doc__}) passed {MAX_SEEDS} seeds"


@pytest.mark.parametrize("name", MUTANTS)
def test_the_real_server_passes_where_the_mutant_is_looked_for(name: str, crew: Crew) -> None:
    """Else a mutant might be found for a fault of the rig."""
    assert crew.explore(range(20), MUTANTS[name].limits).problems == {}
