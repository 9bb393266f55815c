"""Whether a fault may be fired now: a run must not be broken in a way that nobody promised to survive. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

MANAGER_KILLS, MANAGER_WINDOW_SECONDS = 5, 60.0
"""A launcher does not start a manager more often than that."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of a cluster at one moment. `chains` are those of every shard, by name; `disturbed` the nodes that
    are stopped, or kept apart, just now; `manager_kills` when the manager was killed."""

    alive: frozenset[str]
    chains: Sequence[Sequence[str]] = ()
    replicas: int = 0
    disturbed: frozenset[str] = frozenset()
    manager_kills: Sequence[float] = field(default=())


def obstacle(victims: Collection[str], is_lasting: bool, there: Situation, now: float) -> str:
    """Why these nodes cannot be killed, stopped or cut off now; empty if they can. `is_lasting`: afterwards the cluster
    may have to go on without them."""
    missing = sorted(set(victims) - there.alive)
    if missing:
        return f"{', '.join(missing)} is not there"
    still = sorted(set(victims) & there.disturbed)
    if still:
        return f"{', '.join(still)} is still stopped or kept apart"
    if "manager" in victims and is_lasting:
        recent = [at for at in there.manager_kills if now - at < MANAGER_WINDOW_SECONDS]
        if len(recent) >= MANAGER_KILLS:
            return f"the manager was killed {MANAGER_KILLS} times within a minute; once more would end the job"
    servers = [name for name in victims if name.startswith("server-")]
    if not servers or not is_lasting or not there.replicas:
        return ""
    short = sum(len(chain) <= there.replicas for chain in there.chains)
    if short:
        whose = ", ".join(servers)
        return f"{short} of {len(there.chains)} shards are under-replicated; what {whose} has may be the last"
    held = [chain for chain in there.chains if set(chain) & there.disturbed]
    if held:
        return f"{', '.join(sorted(there.disturbed))} does not answer, and may have to be replaced first"
    if any(len(set(chain) & set(servers)) > there.replicas for chain in there.chains):
        return f"{', '.join(servers)} hold all copies of a shard"
    return ""
