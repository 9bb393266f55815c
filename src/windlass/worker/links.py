"""The links of a worker, in its state: which are there, and when one that is not is dialled again."""

from __future__ import annotations

from windlass.types import Incarnation

REDIAL_SECONDS = 0.05
GIVE_UP_SECONDS = 5.0
"""How long a request to one node waits for a link that is down. Raise it if managers take longer to come back."""


class Links:
    """`peer in links` is whether there is one to this peer."""

    def __init__(self) -> None:
        self._up: set[Incarnation] = set()
        self._redial_at: dict[Incarnation, float] = {}
        self._down_since: dict[Incarnation, float] = {}

    def __contains__(self, peer: Incarnation) -> bool:
        return peer in self._up

    def rise(self, peer: Incarnation) -> None:
        self._up.add(peer)
        self._redial_at.pop(peer, None)
        self._down_since.pop(peer, None)

    def fall(self, peer: Incarnation, now: float, *, is_wanted: bool) -> None:
        """The link is down, or could not be made. It is dialled again if it is wanted."""
        self._up.discard(peer)
        self._down_since.setdefault(peer, now)
        if is_wanted:
            self._redial_at[peer] = now + REDIAL_SECONDS

    def give_up(self, peer: Incarnation) -> None:
        """It is wanted no more."""
        self._redial_at.pop(peer, None)

    def take_due(self, now: float) -> list[Incarnation]:
        """Whom to dial now."""
        due = [peer for peer, when in self._redial_at.items() if now >= when]
        for peer in due:
            del self._redial_at[peer]
        return due

    def is_lost(self, peer: Incarnation, since: float, now: float) -> bool:
        """Whether a link has been down for too long, for somebody who waits since then."""
        return now - max(self._down_since.get(peer, now), since) > GIVE_UP_SECONDS
