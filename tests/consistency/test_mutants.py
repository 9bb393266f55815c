"""Every planted mistake is found: by the explorer within a bounded number of seeds, and in real processes."""

from __future__ import annotations

import pytest

from windlass.testing.explorer import explore
from windlass.testing.mutants import MUTANTS

MAX_SEEDS = 400


@pytest.mark.parametrize("name", MUTANTS)
def test_the_explorer_finds_the_planted_mistake(name: str) -> None:
    mutant = MUTANTS[name]
    for seed in range(MAX_SEEDS):
        outcome = explore(seed, mutant.limits, server=mutant.server)
        broken = {violation.rule for violation in outcome.verdict.violations} | ({"stuck"} if outcome.stuck else set())
        if broken & mutant.rules:
            return
    pytest.fail(f"{name} ({mutant.server.__doc__}) passed {MAX_SEEDS} seeds")


@pytest.mark.parametrize("name", MUTANTS)
def test_the_real_server_passes_where_the_mutant_is_looked_for(name: str) -> None:
    """Else a mutant might be found for a fault of the rig."""
    problems = [explore(seed, MUTANTS[name].limits).problem for seed in range(60)]
    assert [problem for problem in problems if problem] == []
