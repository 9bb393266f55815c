"""Notes in the ledger what a worker has pushed, and what it was told has been counted."""

from __future__ import annotations

import time

from windlass._ledger import Ledger, Row
from windlass.errors import WindlassError
from windlass.types import Incarnation, KeyId
from windlass.worker.ops import Op


class Witness:
    """Sees every operation of one store before it is submitted. Called by the thread that has the store's
    turn, as is whatever finishes an operation: so a row has one writer."""

    def __init__(self, ledger: Ledger, me: Incarnation) -> None:
        self._ledger = ledger
        self._me = me
        self._rows: dict[KeyId, Row | None] = {}

    def __call__(self, op: Op) -> None:
        if op.push is None:
            return
        key = op.key.id
        if key not in self._rows:
            self._rows[key] = self._ledger.row(self._me, key)
        row = self._rows[key]
        if row is None:
            return
        elements = sum(hi - lo for parts in op.push.values() for part in parts for _, lo, hi in part.pieces)
        finish, began_at = op.finish, time.monotonic()

        def note(error: WindlassError | None) -> None:
            if error is None:
                row.acknowledge(op.clock, elements, began_at, time.monotonic())
            finish(error)

        op.finish = note
        row.begin(elements)
