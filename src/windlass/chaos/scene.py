"""A cluster as whoever disturbs it sees it: who is there, what each holds; and the way to its processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from windlass._ledger import Ledger
from windlass.chaos.obstacles import Situation
from windlass.engines.config import NodeConfig
from windlass.engines.look import Looker
from windlass.errors import ClusterError, WindlassError
from windlass.types import RESERVED, Array

LOOK_SECONDS = 0.3
LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class There:
    """A cluster that can be disturbed. Its processes descend from one of `roots`; `recruit` starts a server in the seat
    of this rank, and does not wait for it to join."""

    config: NodeConfig
    ledger: Ledger
    roots: frozenset[int]
    recruit: Callable[[int], None]


@dataclass(slots=True)
class Scene:
    """What was last seen. Not thread-safe; `close` it."""

    there: There
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)  # those alive, by name
    all_nodes: list[dict[str, Any]] = field(default_factory=list)  # those gone, too
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    generation: str = ""
    looked_at: float = 0.0
    _looker: Looker | None = None

    def look(self, seconds: float = LOOK_SECONDS) -> bool:
        """Ask the manager; whether it answered."""
        try:
            said = self.looker.manager(seconds)
        except WindlassError:
            return False
        finally:
            self.looked_at = time.monotonic()
        self.all_nodes = said["nodes"]
        self.nodes = {node["name"]: node for node in said["nodes"] if node["state"] == "alive"}
        self.keys, self.generation = said["keys"], said["generation"]
        return True

    @property
    def is_look_due(self) -> bool:
        """Whether the manager was not asked a moment ago."""
        return time.monotonic() - self.looked_at > LOOK_AGAIN_SECONDS

    @property
    def looker(self) -> Looker:
        if self._looker is None:
            self._looker = Looker(self.there.config)
        return self._looker

    @property
    def is_complete(self) -> bool:
        """Whether the first generation has been published."""
        return bool(self.generation) and not self.generation.endswith(".0")

    def situation(self, disturbed: frozenset[str], manager_kills: list[float]) -> Situation:
        chains = [chain for key in self.keys.values() for chain in key["shards"]]
        return Situation(
            frozenset(self.nodes), chains, self.there.config.options.replicas, disturbed, tuple(manager_kills)
        )

    def user_keys(self) -> frozenset[int]:
        """All keys but the store's own."""
        return frozenset(key["id"] for name, key in self.keys.items() if not name.startswith(RESERVED))

    def keys_on(self, names: frozenset[str]) -> frozenset[int]:
        """Those of which one of these holds a shard."""
        held = (key["id"] for key in self.keys.values() if any(names & set(chain) for chain in key["shards"]))
        return frozenset(held) & self.user_keys()

    def rows(self) -> Array:
        """What the workers have noted: a row for each of them and each key."""
        rows = self.there.ledger.rows()
        return rows[rows["key"] > 0]

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a node's process, and to no other: it must be of this cluster. Gives its pid; raises
        ClusterError when there is no such process."""
        pid = int(self.nodes[name]["pid"])
        signal_process(pid, number, self.there.roots)
        return pid

    def close(self) -> None:
        if self._looker is not None:
            self._looker.__exit__()
            self._looker = None


def signal_process(pid: int, number: signal.Signals, roots: frozenset[int]) -> None:
    """Signal a descendant of `roots`. The process is held on to before it is looked at: its number may be another's
    by the time that the signal is sent."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        raise ClusterError(f"process {pid} has ended") from None
    try:
        if not descends(pid, roots):
            raise ClusterError(f"process {pid} is not of this cluster; nothing was done to it")
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def descends(pid: int, roots: frozenset[int]) -> bool:
    """Whether a process is one of these, or was started by one, however far removed."""
    while pid > 1:
        if pid in roots:
            return True
        try:
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
    return False
