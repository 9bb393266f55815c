"""What a group needs of whatever lies between its members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from windlass.collectives.call import Call
from windlass.collectives.schedule import cut
from windlass.collectives.strategies import Machines
from windlass.collectives.tensors import Kind, kind_of, new_tensor, stacked


class Backend(ABC):
    """Carries collectives from member to member. One thread at a time. A caller gives one tensor, its own member's;
    where one process has all the members it gives a list, and those methods that look at tensors differ."""

    name: str
    rank: int
    size: int
    machines: Machines | None = None
    """Who shares a machine, where the backend knows."""

    def kind(self, given: Any, what: str) -> Kind:
        """What every member's tensor must be. UsageError if this cannot be."""
        return kind_of(given, what)

    def stacked(self, given: Any) -> Any:
        """A new tensor with a place for each member's, the own one filled in."""
        return stacked(given, self.rank, self.size)

    def part(self, given: Any, size: int) -> Any:
        """The own part of the flattened tensor."""
        lo, hi = cut(0, size, self.size)[self.rank]
        return given.reshape(-1)[lo:hi]

    def buffer(self, call: Call, dtype: Any) -> Any:
        """Memory that is reduced without being copied in or out, zero at first. All members call it at once."""
        return new_tensor(call.terms.kind, dtype)

    @abstractmethod
    def meet(self, call: Call) -> Any:
        """Come together for a call. A UsageError, for calls that differ, is raised in every member and leaves the
        group as it was."""

    @abstractmethod
    def carry_out(self, call: Call, opened: Any, machines: Machines | None) -> None:
        """Do what everybody came for. `opened` is what `meet` returned."""

    def leave(self, reason: str) -> None:
        """Do not come again; tell the others why, where that is possible. Safe to repeat."""
        return None
