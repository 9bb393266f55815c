"""Explores interleavings of the pure core: manager, servers and workers on a virtual network, one seed at a time.

A seed decides everything: how many nodes and keys, what the workers do, which queued message arrives next, which link
breaks when, who dies, who joins. There is no thread, socket or clock, so a seed that fails does so again, and
`explore(seed, tells=True)` gives its story: one line for each thing that happened.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.server.state import ServerState
from windlass.testing.checker import Verdict, judge
from windlass.testing.limits import Limits
from windlass.testing.network import Shots
from windlass.testing.world import World

__all__ = ["Limits", "Outcome", "explore"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One explored run. `problem` is empty when all promises held and nothing was left waiting."""

    seed: int
    verdict: Verdict
    stuck: str
    shots: Shots
    story: tuple[str, ...]

    @property
    def broken(self) -> set[str]:
        """The names of the rules that were broken; "stuck": somebody was left waiting, or something was left over. What
        it is the first word of each line says, and is there, too."""
        left = {line.partition(":")[0] for line in self.stuck.splitlines()} | {"stuck"} if self.stuck else set()
        return {violation.rule for violation in self.verdict.violations} | left

    @property
    def problem(self) -> str:
        parts = [text for text in (self.verdict.reason, self.stuck) if text]
        return f"seed {self.seed}: " + "\n".join(parts) if parts else ""


def explore(
    seed: int, limits: Limits | None = None, *, server: type[ServerState] = ServerState, tells: bool = False
) -> Outcome:
    """Run one seed to its end and judge it. `server` may plant a mistake."""
    world = World(seed, limits or Limits(), server, tells)
    stuck = world.run()
    outcome = Outcome(seed, judge(world.history()), stuck, world.net.shots, tuple(world.story))
    world.close()
    return outcome
