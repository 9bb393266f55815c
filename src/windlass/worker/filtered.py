"""Keys with filters, in the worker's state: lists of ids that a server has not got, and what is kept back."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Effect, Send
from windlass.errors import UsageError, WindlassError, in_words
from windlass.types import Block, Bytes, Incarnation, KeyId
from windlass.worker.ops import Call, KeyInfo, Op


class FilteredKeys(ABC):
    """The part of a worker that knows of filters; what it holds is the worker's."""

    ops: dict[int, Op]
    _keys: dict[KeyId, list[KeyInfo]]
    _pushing: dict[KeyId, dict[int, Op]]
    _early: dict[KeyId, list[tuple[m.Residual, tuple[Bytes, ...]]]]  # of keys that are not used here yet

    @abstractmethod
    def _send(self, op: Op, shard: int) -> list[Effect | Call]:
        """The messages of this operation for one shard."""

    @abstractmethod
    def _renumber(self, op: Op) -> None:
        """What it was asked under before is not heard any more."""

    def _on_residual(
        self, peer: Incarnation, key_id: KeyId, message: m.Deposit | m.Residual, data: tuple[Bytes, ...]
    ) -> list[Effect | Call]:
        """Somebody saves what filters have kept back here, or has loaded it."""
        keys = [key for key in self._keys.get(key_id, ()) if key.filtering is not None]
        if isinstance(message, m.Residual):
            if not keys:
                if message.part == 0:  # what came before it is of an earlier load
                    self._early.pop(key_id, None)
                self._early.setdefault(key_id, []).append((message, tuple(part.copy() for part in data)))
            for key in keys:
                key.filtering.take_back(message, data)  # type: ignore[union-attr]
            return []
        effects: list[Effect | Call] = []
        which = {"key": key_id, "saver": message.saver, "snapshot": message.snapshot, "attempt": message.attempt}
        if not keys and key_id not in self._early:  # who does not use the key has kept nothing back
            meta = {"sent": 0, "los": []}
            nothing = m.Deposited(**which, dtype="uint8", meta=meta)  # type: ignore[arg-type]
            effects.append(Send(peer, nothing, (Block(np.empty(0, np.uint8)),)))
        for early, parts in self._early.get(key_id, ()) if not keys else ():  # what was loaded is as it came
            told = {name: getattr(early, name) for name in ("name", "dtype", "meta", "part", "parts")}
            effects.append(Send(peer, m.Deposited(**which, **told), tuple(map(Block, parts))))  # type: ignore[arg-type]
        for key in keys:
            key.filtering.ask(peer, message)  # type: ignore[union-attr]
            effects += self._deposit(key)
        return effects

    def give_back(self, key: KeyInfo) -> None:
        """A key with filters is used from now on: what came for it before that."""
        for residual, data in self._early.pop(key.id, ()):
            if key.filtering is not None:
                key.filtering.take_back(residual, data)

    def _relink(self, peer: Incarnation) -> None:
        """The link to this peer is new."""
        for key in [key for keys in self._keys.values() for key in keys]:
            if key.filtering is not None:
                key.filtering.relink(peer)

    def _deposit(self, key: KeyInfo) -> list[Effect | Call]:
        if key.filtering is None:
            return []
        return [Send(peer, message, blocks) for peer, message, blocks in key.filtering.deposits()]

    def _on_need_ids(self, peer: Incarnation, need: m.NeedIds) -> list[Effect | Call]:
        """A list of ids is not there: that push again, with it, and those after it, which were not admitted either."""
        pull = self.ops.get(need.pull)
        if pull is not None and pull.key.filtering is not None and need.shard in pull.unread:
            pull.known.discard(need.shard)
            pull.key.filtering.miss(need.digest, peer)
            return [*self._send(pull, need.shard), *self._ask_after(pull, need.shard)]
        effects: list[Effect | Call] = []
        for op in list(self._pushing.get(need.key, {}).values()):
            waits = need.shard in op.unacked and op.clock >= need.clock and op.key.head(need.shard) == peer
            if not waits or op.push is None or op.key.filtering is None:
                continue
            if op.clock == need.clock:
                parts = op.push[need.shard]
                if 0 <= need.part < len(parts):
                    parts[need.part] = op.key.filtering.in_full(parts[need.part], need.digest, peer)
            effects += self._send(op, need.shard)
        return effects

    def _ask_after(self, pull: Op, shard: int) -> list[Effect | Call]:
        """Ask anew what was asked after this pull: the answers that are on their way are of an earlier moment than its
        own will be, and calls take effect in the order issued."""
        later = [
            op for op in self.ops.values()
            if op.key is pull.key and op.push is None and op.number > pull.number and shard in op.unread
        ]  # fmt: skip
        effects: list[Effect | Call] = []
        for op in later:
            self._renumber(op)
            for other in op.unread:
                effects += self._send(op, other)
        return effects


def encoded(op: Op) -> WindlassError | None:
    """Have the filters take a push that starts; what went wrong, if something did."""
    assert op.encode is not None
    try:
        op.push = op.encode()
    except WindlassError as error:
        return error
    except (Exception, SystemExit) as error:  # a user's filter
        text = f"push('{op.key.spec.name}'): its filters failed: {in_words(error)}; nothing was pushed"
        failed = UsageError(text)
        failed.__cause__ = error
        return failed
    op.encode = None
    return None
