"""The time of a shard: what rows of a table age by. Every member of a chain has the same, whatever its clock says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """A server's own clock, as of the event that is being handled."""

    now: float = 0.0


class ShardTime:
    """Seconds that the shard has been held for, by one server after the other. Entries of its log tell followers; who
    becomes the head goes on from the last one. It never falls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time, self._heard_at = 0.0, clock.now

    def now(self) -> float:
        return self._time + max(0.0, self._clock.now - self._heard_at)

    def hear(self, time: float) -> None:
        """It was this late when an entry was made, or the shard was shown or saved."""
        self._time, self._heard_at = max(self._time, time), self._clock.now
