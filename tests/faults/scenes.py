"""What these tests share: clusters with replicas, and scripts that last long enough for a fault in their middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import windlass as wl
from windlass.testing.havoc import Hand
from windlass.testing.rig import CHUNK_BYTES, Report, Script, bits, perform

TRANSPORTS = {
    "threads": {"engine": "threads"},
    "shm": {"engine": "processes", "transport": "shm"},
    "tcp": {"engine": "processes", "transport": "tcp"},
}
PROCESSES = ("shm", pytest.param("tcp", marks=pytest.mark.soak))
CLOCK = 30


def cluster(transport: str, **options: Any) -> wl.Cluster:
    chosen: dict[str, Any] = {
        "servers": 3, "workers": 3, "replicas": 1, "timeout": 20.0, "chunk_bytes": CHUNK_BYTES, "lease_seconds": 1.0,
        **TRANSPORTS[transport], **options,
    }  # fmt: skip
    return wl.Cluster(**chosen)


def script(seed: int, *, clock: int = CLOCK, cuts: int = 3, chunk_bytes: int = CHUNK_BYTES) -> Script:
    """Keys of every consistency, on as many shards as three servers have, and one with several slots to a shard."""
    keys = (
        bits(f"sequential-{seed}", wl.Sequential(), chunk_bytes=chunk_bytes, num_slots=6),
        bits(f"bounded-{seed}", wl.Bounded(1), chunk_bytes=chunk_bytes, num_slots=3),
        bits(f"eventual-{seed}", wl.Eventual(), chunk_bytes=chunk_bytes, num_slots=14),
    )
    return Script(keys, clock=clock, seed=seed, cuts=cuts, lag_seconds=0.008)


def somewhere(hand: Hand, seed: int, *, between: tuple[float, float] = (0.1, 0.6)) -> None:
    """Wait for a random moment of the script."""
    hand.await_version(f"sequential-{seed}", int(CLOCK * hand.rng.uniform(*between)))


def play(on: wl.Cluster, seed: int, plan: Callable[[Hand], None], **options: Any) -> Report:
    """Perform the script of this seed under the plan: every promise must hold, and nobody may see an error."""
    report = perform(on, script(seed, **options), plan)
    assert report.errors == ()
    assert report.verdict.ok, report.verdict.reason
    assert report.verdict.num_pulls > 100
    return report
