"""Room for a push on every shard that it touches, asked for before any of it is sent: so it is taken whole or not at
all, where each shard may refuse its part and no keeper asks them all. Shards are asked together. If one has no room,
the others hear that the push will not come, and only then is it told of: what it held is free by then."""

from __future__ import annotations

from functools import partial
from typing import Any

from windlass._wire import messages as m
from windlass.errors import WindlassError
from windlass.types import Block, Bytes, Sequential
from windlass.worker.ops import KeyInfo, Request
from windlass.worker.split import Pieces


def needs_room(key: KeyInfo) -> bool:
    """Whether a push on this key could be taken by one shard and not by another."""
    table, rounds = key.spec.table, isinstance(key.spec.consistency, Sequential)
    return table is not None and table.max_bytes is not None and not rounds and len(key.chains) > 1


class Room:
    """Of one push. The requests are sent again like any others, so nothing is set aside that nobody takes back."""

    def __init__(self, key: KeyInfo, pieces: Pieces, ids: dict[int, tuple[Block, ...]]) -> None:
        self.error: WindlassError | None = None
        self._key = key
        self._wanted = {shard: (some, ids[shard]) for shard, some in pieces.items() if some}
        self._held: list[int] = []  # shards that have set it aside
        self._unanswered = 0

    def ask(self, clock: int) -> list[Request] | None:
        if self._unanswered:
            return []
        if self._wanted:
            wanted, self._wanted = self._wanted, {}
        elif self.error is not None and self._held:
            wanted, self._held = dict.fromkeys(self._held, ((), ())), []
        else:
            return None
        self._unanswered = len(wanted)
        return [self._request(shard, clock, *some) for shard, some in wanted.items()]

    def _request(self, shard: int, clock: int, pieces: tuple[m.Piece, ...], ids: tuple[Block, ...]) -> Request:
        key = self._key.id

        def make(number: int) -> m.Reserve:
            return m.Reserve(request=number, key=key, shard=shard, clock=clock, pieces=pieces)

        return Request((self._key, shard), make, partial(self._hear, shard if pieces else -1), ids)

    def _hear(self, shard: int, answer: Any, data: tuple[Bytes, ...], error: WindlassError | None) -> None:
        self._unanswered -= 1
        if error is not None:
            self.error = self.error or error
        elif shard >= 0:
            self._held.append(shard)
