"""Tables and filters on real clusters: random calls while links are cut and servers are killed, every pull judged."""

from __future__ import annotations

from typing import Any

import pytest

import windlass as wl
from tests.faults.scenes import cluster
from windlass.filters import IdCache, RandomSkip, TopK
from windlass.testing.examples import Turned
from windlass.testing.havoc import Hand
from windlass.testing.history import KeyShape
from windlass.testing.rig import CHUNK_BYTES, Report, Script, perform, rows

CLOCK = 16
NUM_WORKERS = 3


def _table(name: str, consistency: Any, *filters: Any) -> KeyShape:
    return rows(name, consistency, num_bits=NUM_WORKERS * CLOCK, filters=filters)


def _script(seed: int, *, lag_seconds: float = 0.004) -> Script:
    keys = (
        _table(f"sequential-{seed}", wl.Sequential()),
        _table(f"named-{seed}", wl.Sequential(), IdCache(), Turned()),
        _table(f"bounded-{seed}", wl.Bounded(1), IdCache(), RandomSkip(0.5)),
        _table(f"eventual-{seed}", wl.Eventual(), IdCache(), TopK(0.5)),
        KeyShape(f"dense-{seed}", wl.Bounded(2), CHUNK_BYTES // 4, 3, filters=(RandomSkip(0.5),)),
    )
    return Script(keys, clock=CLOCK, seed=seed, cuts=3, lag_seconds=lag_seconds)


def _check(report: Report) -> None:
    assert report.errors == ()
    assert report.verdict.ok, report.verdict.reason
    assert report.verdict.num_pulls > 100


@pytest.mark.parametrize("transport", ["threads", "tcp"])
def test_every_pull_of_a_table_is_as_promised_while_links_are_cut(transport: str) -> None:
    with cluster(transport, servers=2, replicas=0, workers=NUM_WORKERS) as there:
        report = perform(there, _script(1))
    _check(report)
    assert report.cuts > 3


def test_a_server_that_is_killed_and_one_that_comes_while_all_is_saved_lose_no_row(tmp_path: Any) -> None:
    def plan(hand: Hand) -> None:
        hand.await_version("sequential-2", 3)
        hand.await_whole(2)
        hand.kill(hand.rng.choice(hand.servers()))
        hand.save(str(tmp_path))
        hand.add_server()
        hand.save(str(tmp_path))

    with cluster("shm", workers=NUM_WORKERS, lease_seconds=3.0) as there:
        report = perform(there, _script(2, lag_seconds=0.02), plan)
    _check(report)
    assert report.num_during("kill") == 1
    assert [shot.what for shot in report.shots] == ["kill", "add"]
    assert len(report.saves) == 2
