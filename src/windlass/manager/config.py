"""What a manager is told when it starts, and what it knows of one key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windlass.manager.chart import Charted
from windlass.manager.placement import SHARDS_PER_SERVER
from windlass.types import Incarnation, KeyId, KeySpec


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    num_servers: int
    num_workers: int
    pid: int = 0
    addresses: tuple[str, ...] = ()
    term: int = 1
    replicas: int = 0
    lease_seconds: float = 3.0
    worker_lease_seconds: float = math.inf
    keeps_seats: bool = False
    """Whether a worker that is gone stays a member until another takes its seat: rounds wait for that one."""
    dead_seat_seconds: float = 0.0
    """How long a worker whose process died stays a member, else: so long no round ends without it, and whoever started
    it may end the run."""
    shards_per_server: int = SHARDS_PER_SERVER
    dead_pids: tuple[int, ...] = ()
    """Processes that were nodes, and of which whoever starts this manager knows that they have ended."""


@dataclass(slots=True)
class DeclaredKey:
    id: KeyId
    spec: KeySpec
    charted: Charted
    unplaced: set[Incarnation]
    error: str = ""
    is_usage: bool = True  # whether the error is the caller's
    waiting: list[tuple[Incarnation, int]] = field(default_factory=list)  # who asked, under which request
