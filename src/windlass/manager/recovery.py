"""A manager that has come back: what it waits for before it speaks."""

from __future__ import annotations

from collections.abc import Iterable

from windlass._wire.effects import Received
from windlass.manager.records import Image
from windlass.types import Incarnation, Role

PATIENCE_LEASES = 5.0
"""How many leases a chain is waited for of which nobody has come. After that its shard is lost."""


class Recovery:
    """Pure. The members of the last generation have to come again: each that lives does, as soon as it sees that the
    manager can be dialled. Who has not come within a lease is gone, unless nobody else is left who holds what it holds,
    or no other server: that one is waited for longer. What is asked meanwhile is kept until there is a generation."""

    def __init__(self, image: Image, lease_seconds: float, dead_pids: Iterable[int]) -> None:
        gone = set(dead_pids)
        self.image = image
        self.missing = set(image.nodes)
        self.dead = {who for who, node in image.nodes.items() if node.pid in gone}  # and that is certain
        self.waiting: list[Received] = []
        self._lease_seconds = lease_seconds
        self._began: float | None = None

    def come(self, peer: Incarnation) -> None:
        self.missing.discard(peer)
        self.dead.discard(peer)

    def go(self, peer: Incarnation, *, is_certain: bool) -> None:
        """Its link is down again."""
        self.waiting = [event for event in self.waiting if event.peer != peer]
        if peer in self.image.nodes:
            self.missing.add(peer)
            if is_certain:
                self.dead.add(peer)

    def is_over(self, now: float) -> bool:
        if self._began is None:
            self._began = now
        if self.missing <= self.dead:
            return True
        leases = (now - self._began) / self._lease_seconds
        return leases > (PATIENCE_LEASES if self._is_anything_unseen() else 1.0)

    def _is_anything_unseen(self) -> bool:
        """Whether of some chain nobody has come, though somebody may live; or of the servers, which the next key will
        need."""
        chains = [chain for key in self.image.keys.values() for chain in key.chains if chain]
        chains.append(tuple(who for who, node in self.image.nodes.items() if node.role is Role.SERVER))
        return any(self.missing.issuperset(chain) and not self.dead.issuperset(chain) for chain in chains)

    def seconds(self, now: float) -> float:
        return now - (self._began if self._began is not None else now)
