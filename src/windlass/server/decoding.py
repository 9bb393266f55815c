"""Reading what filters made of a push, before anything of it counts; and how the answers of pulls are filtered.

A dense key has a payload for each piece. A table has one for each message: the ids in it are those of all its pieces,
slot by slot, as far as the filters kept them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from windlass._wire import messages as m
from windlass.consistency.rounds import StagedPiece
from windlass.errors import PeerError
from windlass.filters import KKT, Chain, IdLists, NeedIds, Receiver, Sender
from windlass.filters.lists import digest_of
from windlass.filters.rules import chain_of
from windlass.filters.sealing import seal, unseal
from windlass.store.batch import slot_bounds
from windlass.types import STORAGE, Array, Bytes, KeySpec


class Decoder:
    """Of one shard. It has no state but the id lists, which the shards of a server share."""

    def __init__(self, spec: KeySpec, chain: Chain, lists: IdLists, slots: range) -> None:
        self._spec, self._slots = spec, slots
        self._receiver = Receiver(chain, lists)
        on_pull = chain.for_pull()
        self.keeps_loss = chain.keeps_loss
        self.wants_threshold = any(isinstance(each, KKT) for each in chain.filters)
        self._answers = Sender(on_pull) if on_pull.filters else None

    @classmethod
    def of(cls, spec: KeySpec, slots: range, lists: IdLists, local: Mapping[str, object]) -> Decoder | None:
        """None for a key without filters. UsageError if they do not fit it."""
        return cls(spec, chain_of(spec, local), lists, slots) if spec.filters else None

    def answer(self, numbers: Bytes) -> tuple[m.Filtered, Bytes] | None:
        """How a pull is answered with these numbers; None: as they are."""
        if self._answers is None:
            return None
        payload = self._answers.encode(numbers.view(STORAGE[self._spec.dtype]))
        lengths, data = seal(payload)
        return m.Filtered(meta=payload.meta, lengths=lengths), data

    def resolve(self, pull: m.Pull, data: Sequence[Bytes]) -> tuple[Bytes, ...] | NeedIds:
        """The ids of every piece of a pull that names them by a digest; what it brings is kept for the next one. A
        list that is not what its digest says, or not of these pieces, counts as not there."""
        lists = self._receiver.lists
        if lists is None:
            return tuple(data) if data else NeedIds(pull.digest)
        if data:
            ids = np.concatenate(list(data)).view(np.int64)
            if digest_of(ids) == pull.digest:
                lists.put(pull.digest, ids)
            return tuple(data)
        known = lists.get(pull.digest)
        counts = [hi - lo for _, lo, hi in pull.pieces]
        if known is None or known.size != sum(counts):
            return NeedIds(pull.digest)
        ends = np.cumsum([0, *counts]).tolist()
        return tuple(known[lo:hi].view(np.uint8) for lo, hi in pairwise(ends))

    def decode(self, push: m.Push, data: Sequence[Bytes]) -> list[StagedPiece] | NeedIds:
        """What was pushed. NeedIds: it names a list of ids that is not here. PeerError says what is wrong with it."""
        found: list[StagedPiece] = []
        if self._spec.table is None:
            for piece, sealed, part in zip(push.pieces, push.filtered, data, strict=True):
                decoded = self._receiver.decode(unseal(sealed.meta, sealed.lengths, part), size=piece[2] - piece[1])
                if isinstance(decoded, NeedIds):
                    return decoded
                found.append((*piece, _own(decoded.values, part)))
            return found
        for sealed, part in zip(push.filtered, data, strict=True):
            decoded = self._receiver.decode(unseal(sealed.meta, sealed.lengths, part))
            if isinstance(decoded, NeedIds):
                return decoded
            assert decoded.ids is not None
            found += self._by_slot(decoded.ids, decoded.values)
        return found

    def _by_slot(self, ids: Array, rows: Array) -> list[StagedPiece]:
        bounds = slot_bounds(np.ascontiguousarray(ids), self._spec.num_slots)
        if bounds is None:
            raise PeerError(f"'{self._spec.name}': expected ids slot by slot, got them in another order")
        outside = bounds[self._slots.start] or len(ids) - bounds[self._slots.stop]
        if outside:
            raise PeerError(f"'{self._spec.name}': {outside} ids are not of slots {self._slots.start} to "
                            f"{self._slots.stop - 1}")  # fmt: skip
        width = rows.shape[1] * rows.itemsize
        found: list[StagedPiece] = []
        for slot in self._slots:
            lo, hi = bounds[slot], bounds[slot + 1]
            if hi > lo:
                data = np.empty((hi - lo) * (8 + width), np.uint8)
                data[: 8 * (hi - lo)] = ids[lo:hi].view(np.uint8)
                data[8 * (hi - lo) :] = rows[lo:hi].reshape(-1).view(np.uint8)
                found.append((slot, 0, int(hi - lo), data))
        return found


def misfiltered(push: m.Push, data: Sequence[Bytes], *, is_table: bool, has_filters: bool) -> str:
    """What is wrong with how a push was put together, if anything."""
    if bool(push.filtered) != (has_filters and bool(push.pieces)):
        came, has = ("without", "some") if has_filters else ("with", "none")
        return f"a push {came} filters came to a key that has {has}"
    expected = 1 if is_table and push.pieces else len(push.pieces)
    if push.filtered and not len(push.filtered) == len(data) == expected:
        return f"{len(push.pieces)} pieces came with {len(push.filtered)} payloads in {len(data)} buffers"
    return ""


def _own(values: Array, data: Bytes) -> Bytes:
    """Decoded numbers as bytes of their own: the memory of what came is given back."""
    flat: Bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return flat.copy() if np.may_share_memory(flat, data) else flat
