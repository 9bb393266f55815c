"""What a manager is told when it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
    shards_per_server: int = 0
    """Of a large key; 0: as many as keep servers even when some come or go."""
    dead_pids: tuple[int, ...] = ()
    """Processes that were nodes, and of which whoever starts this manager knows that they have ended."""
