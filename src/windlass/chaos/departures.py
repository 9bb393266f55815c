"""Nodes that go though nothing was done to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from windlass.chaos.report import Departed
from windlass.types import Role


class Departures:
    """Sees them, from one look at the cluster to the next. A worker that is gone may just have finished, or have been
    ended with the job: it is told of when another has its seat. Servers do not finish."""

    def __init__(self) -> None:
        self.found: list[Departed] = []
        self._known: set[int] = set()  # incarnations of which nothing is to be told any more
        self._is_first = True
        self._missed: dict[int, float] = {}  # when others were first seen not to be there

    def spare(self, incarnations: Iterable[int]) -> None:
        """What becomes of these is told as a fault."""
        self._known.update(incarnations)

    def look(self, nodes: Sequence[dict[str, Any]], seconds: float) -> list[Departed]:
        """Who has gone since the last look, of all the nodes that there are and have been. The first look
        shows who was gone before."""
        gone = [node for node in nodes if node["state"] != "alive"]
        if self._is_first:
            self._is_first = False
            self.spare(int(node["incarnation"]) for node in gone)
        seats = {node["name"] for node in nodes if node["state"] == "alive"}
        new = []
        for node in gone:
            who, name, is_replaced = int(node["incarnation"]), node["name"], node["name"] in seats
            if who in self._known:
                continue
            at = self._missed.setdefault(who, seconds)
            if is_replaced or node["role"] == Role.SERVER:
                self.spare([who])
                note = "another has its seat" if is_replaced else ""
                new.append(Departed(who=name, at=round(at, 3), pid=int(node["pid"]), note=note))
        self.found += new
        return new
