"""Real clusters on every transport: random calls under links that are cut, every pull judged; planted mistakes show."""

from __future__ import annotations

from typing import Any

import pytest

import windlass as wl
from windlass.testing.mutants import MUTANTS
from windlass.testing.rig import CHUNK_BYTES, LARGE_CHUNK_BYTES, Report, Script, bits, perform

TRANSPORTS = {
    "threads": {"engine": "threads"},
    "shm": {"engine": "processes", "transport": "shm"},
    "tcp": {"engine": "processes", "transport": "tcp"},
}
VISIBLE = [name for name, mutant in MUTANTS.items() if mutant.is_visible_outside]
# Each visible mutant meets one transport of real processes and the threads; which one does not matter to its mistake.
PLANTED = [(name, ("shm", "tcp")[index % 2]) for index, name in enumerate(VISIBLE)]
PLANTED += [(name, "threads") for name in VISIBLE]


def _script(seed: int, *, clock: int = 16, cuts: int = 4, chunk_bytes: int = CHUNK_BYTES) -> Script:
    keys = (
        bits(f"sequential-{seed}", wl.Sequential(), chunk_bytes=chunk_bytes),
        bits(f"bounded-{seed}", wl.Bounded(1), chunk_bytes=chunk_bytes),
        bits(f"eventual-{seed}", wl.Eventual(), chunk_bytes=chunk_bytes, num_slots=3),
    )
    return Script(keys, clock=clock, seed=seed, cuts=cuts)


def _perform(transport: str, scripts: list[Script], **options: object) -> list[Report]:
    chosen: dict[str, Any] = {"chunk_bytes": CHUNK_BYTES, **TRANSPORTS[transport], **options}
    with wl.Cluster(servers=2, workers=4, timeout=20.0, **chosen) as cluster:
        return [perform(cluster, script) for script in scripts]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_pull_is_as_promised_while_links_are_cut(transport: str) -> None:
    reports = _perform(transport, [_script(seed) for seed in range(3)])
    for report in reports:
        assert report.errors == ()
        assert report.verdict.ok, report.verdict.reason
        assert report.verdict.num_pulls > 100
    assert sum(report.cuts for report in reports) > 20
    assert sum(report.resends for report in reports) > 20


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_pull_is_as_promised_when_no_link_breaks(transport: str) -> None:
    (report,) = _perform(transport, [_script(7, clock=60, cuts=0)])
    assert report.verdict.ok, report.verdict.reason
    assert (report.errors, report.cuts) == ((), 0)


def test_every_pull_is_as_promised_when_values_go_by_reference_and_links_are_cut() -> None:
    script = _script(8, chunk_bytes=LARGE_CHUNK_BYTES)
    (report,) = _perform("shm", [script], chunk_bytes=LARGE_CHUNK_BYTES)
    assert report.errors == ()
    assert report.verdict.ok, report.verdict.reason
    assert report.resends > 5


@pytest.mark.parametrize(("name", "transport"), PLANTED)
def test_a_planted_mistake_shows_in_a_real_cluster(name: str, transport: str) -> None:
    mutant = MUTANTS[name]
    broken: set[str] = set()
    for report in _perform(transport, [_script(seed, cuts=6) for seed in range(2)], _server_state=mutant.server):
        broken |= {violation.rule for violation in report.verdict.violations}
    assert broken & mutant.rules


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_pull_is_as_promised_over_many_scripts(transport: str) -> None:
    for report in _perform(transport, [_script(seed, clock=100, cuts=20) for seed in range(100, 150)]):
        assert report.errors == ()
        assert report.verdict.ok, report.verdict.reason
