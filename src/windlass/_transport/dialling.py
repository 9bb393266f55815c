"""Dials under way, and who may wait at the door: bookkeeping and decisions, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass._transport.address import Address, parse_address
from windlass.errors import UsageError
from windlass.types import Incarnation

if TYPE_CHECKING:
    from windlass._transport.link import Link

RETRY_SECONDS = 0.01
GRACE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Attempt:
    """One dial: the addresses still to try, what became of the others, and the link being made now. `retry_at` is
    set while the listener's queue is full."""

    peer: Incarnation
    addresses: deque[Address]
    failures: list[str] = field(default_factory=list)
    link: Link | None = None
    retry_at: float | None = None
    give_up_at: float = 0.0

    @property
    def due(self) -> float:
        """When something is to be done if nothing happens before."""
        if self.retry_at is not None:
            return self.retry_at
        return self.link.deadline if self.link is not None else self.give_up_at

    def reason(self) -> str:
        tried = "; ".join(self.failures) or "no address to dial"
        return f"could not reach node {self.peer}: {tried}"


def attempt_for(peer: Incarnation, addresses: Sequence[str]) -> Attempt:
    """An attempt on these addresses, in order; one that cannot be read counts as tried."""
    attempt = Attempt(peer, deque())
    for text in addresses:
        try:
            attempt.addresses.append(parse_address(text))
        except UsageError as error:
            attempt.failures.append(str(error))
    return attempt


@dataclass(frozen=True, slots=True)
class Admission:
    """What to do about the next caller: take it in, after dropping the oldest unproven one or not, or let callers wait
    in the kernel's queue until `wait_until`."""

    admit: bool
    drop_oldest: bool = False
    wait_until: float = 0.0


def admission(num_unproven: int, max_unproven: int, oldest_since: float, now: float) -> Admission:
    """Nodes of this cluster prove themselves in well under a second, so whoever has not after a second makes room.
    Younger ones are not dropped: a thousand nodes that start at once all get in, a few at a time."""
    if num_unproven < max_unproven:
        return Admission(True)
    if now >= oldest_since + GRACE_SECONDS:
        return Admission(True, drop_oldest=True)
    return Admission(False, wait_until=oldest_since + GRACE_SECONDS)
