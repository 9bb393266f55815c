"""The filters of one key in one worker: what a push becomes before it is sent, and what a filtered answer says."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from windlass._transport.base import Hub
from windlass._wire import messages as m
from windlass.errors import PeerError
from windlass.filters import Chain, Kept, NeedIds, Payload, Receiver, Sender, SenderState
from windlass.filters.sealing import seal, unseal
from windlass.store.batch import Route
from windlass.store.parts import cut_arrays, join_arrays
from windlass.types import STORAGE, Array, Block, Bytes, Incarnation
from windlass.worker.ops import KeyInfo, Op, Part, Sealed
from windlass.worker.split import Pieces

NORM_SECONDS = 0.5
"""How often the norm of a large residual is computed, which the servers are told."""

SMALL_BYTES = 1 << 18
MESSAGE_BYTES = 32 << 20
"""How many bytes of rows one message carries, before they are filtered."""


@dataclass(slots=True)
class Encoding:
    """A push on its way to its filters; `owned` gets the blocks to free when it is done."""

    encode: Callable[[Array], tuple[dict[int, list[Part]], list[Block]]]
    values: Array
    owned: list[Block]

    def __call__(self) -> dict[int, list[Part]]:
        parts, owned = self.encode(self.values)
        self.owned += owned
        return parts

    def own(self) -> None:
        self.values = self.values.copy()


def unfiltered(pieces: Pieces) -> dict[int, list[Part]]:
    """What a push is of, before it has become anything."""
    return {shard: [Part(wanted, ())] for shard, wanted in pieces.items()}


class KeyFilter:
    """Thread-safe. A residual belongs to this worker and this key; what is encoded counts as sent."""

    def __init__(self, key: KeyInfo, chain: Chain, hub: Hub, rank: int) -> None:
        self._key, self._hub = key, hub
        self.sender = Sender(chain, seed=zlib.crc32(key.spec.name.encode()) * 65537 + rank)
        on_pull = chain.for_pull()
        self._receiver = Receiver(on_pull) if on_pull.filters else None
        self._lock = threading.Lock()
        self._norm, self._norm_at = 0.0, -NORM_SECONDS
        self._since, self._num_encoded = key.since, 0  # pushes that were encoded, since we began at that clock
        self._asked: list[tuple[Incarnation, m.Deposit]] = []  # and by whom
        self._due: list[tuple[Incarnation, m.Deposit, SenderState | None]] = []
        self._given: dict[Incarnation, tuple[Incarnation, int]] = {}  # for each saver: to whom, for which attempt
        self._coming: dict[int, tuple[str, Array]] = {}  # parts of a residual out of a checkpoint

    # --- out ----------------------------------------------------------------------------------------------------------

    def check(self, values: Array) -> None:
        if self.sender.chain.keeps_loss:
            self.sender.check_finite(values)

    def dense(self, flat: Array, lo: int, pieces: Pieces) -> tuple[dict[int, list[Part]], list[Block]]:
        """A push of the elements from `lo` on: a payload for each piece, and the blocks to free when it is done."""
        owned: list[Block] = []
        parts: dict[int, list[Part]] = {}
        with self._lock:
            for shard, wanted in pieces.items():
                made = [self._part(shard, (piece,), flat, lo, owned) for piece in wanted]
                parts[shard] = made or [Part((), ())]
            self._count()
        return parts, owned

    def _part(self, shard: int, pieces: tuple[m.Piece], flat: Array, lo: int, owned: list[Block]) -> Part:
        [(slot, begin, end)] = pieces
        start = slot * self._key.slot_size + begin
        values = flat[start - lo : start - lo + end - begin]
        return self._sealed(shard, pieces, owned, values=values, lo=start)

    def rows(self, way: Route, pieces: Pieces, merged: Array) -> tuple[dict[int, list[Part]], list[Block]]:
        """A push to a table: a payload for each shard, of its ids slot by slot."""
        owned: list[Block] = []
        parts: dict[int, list[Part]] = {}
        with self._lock:
            for shard, wanted in pieces.items():
                if not wanted:
                    parts[shard] = [Part((), ())]
                    continue
                parts[shard] = [self._row_part(shard, some, way, merged, owned) for some in self._messages(wanted)]
            self._count()
        return parts, owned

    def _messages(self, pieces: tuple[m.Piece, ...]) -> list[tuple[m.Piece, ...]]:
        """Pieces that go together: as many as fit into a message."""
        found: list[list[m.Piece]] = [[]]
        size = 0
        for piece in pieces:
            nbytes = (piece[2] - piece[1]) * (8 + self._key.itemsize)
            if found[-1] and size + nbytes > MESSAGE_BYTES:
                found.append([])
                size = 0
            found[-1].append(piece)
            size += nbytes
        return [tuple(some) for some in found]

    def _row_part(
        self, shard: int, pieces: tuple[m.Piece, ...], way: Route, merged: Array, owned: list[Block]
    ) -> Part:
        lo, hi = way.bounds[pieces[0][0]] + pieces[0][1], way.bounds[pieces[-1][0]] + pieces[-1][2]
        return self._sealed(shard, pieces, owned, values=merged[lo:hi], ids=way.ids[lo:hi])

    def _sealed(self, shard: int, pieces: tuple[m.Piece, ...], owned: list[Block], **given: Any) -> Part:
        before = self.sender.sizes
        payload = self.sender.encode(**given, peer=self._key.head(shard) or 0)
        traffic = tuple((self.sender.sizes - before).tolist())
        return self._pack(pieces, payload, traffic, shard, owned)

    def _pack(
        self, pieces: tuple[m.Piece, ...], payload: Payload, traffic: tuple[int, ...], shard: int, owned: list[Block]
    ) -> Part:
        lengths, data = seal(payload)
        block, head = Block(data), self._key.head(shard)
        if data.nbytes > self._hub.copied_bytes and head is not None and self._hub.shares_memory_with(head):
            block = self._hub.memory.allocate(data.nbytes)
            block.array[:] = data
            owned.append(block)
        filtered = (m.Filtered(meta=payload.meta, lengths=lengths),)
        return Part(pieces, (block,), Sealed(filtered, traffic, self._residual_norm(), (payload,)))

    def in_full(self, part: Part, digest: str, peer: Incarnation) -> Part:
        if part.sealed is None:
            return part
        with self._lock:
            [payload] = part.sealed.payloads
            full = self.sender.resend(payload, NeedIds(digest), peer=peer)
            lengths, data = seal(full)
            sealed = Sealed(
                (m.Filtered(meta=full.meta, lengths=lengths),), part.sealed.traffic, part.sealed.residual, (full,)
            )
            return Part(part.pieces, (Block(data),), sealed)

    def name_ids(self, way: Route, shards: Iterable[int]) -> tuple[dict[int, str], set[int]]:
        """What a pull calls the ids of each shard, so that the push that follows need not send them; and who is
        believed to have them already."""
        digests: dict[int, str] = {}
        known: set[int] = set()
        if not self.sender.chain.has_id_cache:
            return digests, known
        with self._lock:
            for shard in shards:
                slots = self._key.spec.shard_slots(shard, len(self._key.chains))
                lo, hi = way.bounds[slots.start], way.bounds[slots.stop]
                if hi > lo:
                    named = self.sender.name_ids(way.ids[lo:hi], peer=self._key.head(shard) or 0)
                    digests[shard] = named.digest
                    if named.ids is None:
                        known.add(shard)
        return digests, known

    def miss(self, digest: str, peer: Incarnation) -> None:
        """This peer has not got that list."""
        with self._lock:
            self.sender.miss(digest, peer=peer)

    def forget_peers(self) -> None:
        with self._lock:
            self.sender.forget_peers()

    def _residual_norm(self) -> float:
        now = time.monotonic()
        if self.sender.residual_bytes < SMALL_BYTES or now - self._norm_at >= NORM_SECONDS:
            self._norm, self._norm_at = self.sender.residual_norm, now
        return self._norm

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def _clock(self) -> int:
        """The push that was encoded last. It may not have started yet."""
        if self._since != self._key.since:
            self._since, self._num_encoded = self._key.since, 0
        return self._since + self._num_encoded

    def _count(self) -> None:
        """A push is encoded: what was to be given after it is due."""
        clock = self._clock + 1
        self._num_encoded += 1
        for peer, asked in [(peer, asked) for peer, asked in self._asked if asked.clock <= clock]:
            self._asked.remove((peer, asked))
            self._due.append((peer, asked, self.sender.dump() if asked.clock == clock else None))

    def ask(self, peer: Incarnation, deposit: m.Deposit) -> None:
        with self._lock:
            is_given = self._given.get(deposit.saver) == (peer, deposit.attempt)
            if is_given or (peer, deposit) in self._asked:
                return  # it is asked again and again, until it has come
            if deposit.clock > self._clock:
                self._asked.append((peer, deposit))
            else:
                is_now = deposit.clock in (-1, self._clock)
                self._due.append((peer, deposit, self.sender.dump() if is_now else None))

    def deposits(self) -> list[tuple[Incarnation, m.Deposited, tuple[Block, ...]]]:
        with self._lock:
            due, self._due = self._due, []
            self._given |= {asked.saver: (peer, asked.attempt) for peer, asked, _ in due}
        return [(peer, *message) for peer, asked, state in due for message in _deposited(asked, state)]

    def relink(self, peer: Incarnation) -> None:
        """The link to this peer is new: what was given on the old one may not have come."""
        with self._lock:
            self._given = {saver: given for saver, given in self._given.items() if given[0] != peer}

    def take_back(self, residual: m.Residual, data: tuple[Bytes, ...]) -> None:
        with self._lock:
            if residual.part == 0:
                self._coming.clear()  # of one that was broken off
            for part in data:
                self._coming[residual.part] = (residual.name, part.copy().view(residual.dtype))
            if len(self._coming) < residual.parts:
                return
            arrays = join_arrays(self._coming[number] for number in sorted(self._coming))
            self._coming.clear()
            self.sender.restore(state_of(arrays, residual.meta, self.sender.chain.target.width))

    # --- in -----------------------------------------------------------------------------------------------------------

    def open(self, pulled: m.Pulled, data: tuple[Bytes, ...], op: Op) -> tuple[Bytes, ...]:
        """What a filtered answer says, a buffer for each piece; and what it says of thresholds is noted."""
        values = data[: len(pulled.pieces)]
        rest = data[len(pulled.pieces) :]
        if pulled.filtered:
            values, rest = self._decoded(pulled, data)
        if pulled.threshold is not None:
            self._note(pulled, values, rest, op)
        return values

    def _decoded(self, pulled: m.Pulled, data: tuple[Bytes, ...]) -> tuple[tuple[Bytes, ...], tuple[Bytes, ...]]:
        count = len(pulled.filtered)
        if self._receiver is None or count > len(data):
            raise PeerError(f"'{self._key.spec.name}': an answer came filtered that should not be")
        width = 1 if self._key.spec.table is None else self._key.spec.table.dim
        counts = [(hi - lo) * width for _, lo, hi in pulled.pieces]
        sizes = counts if self._key.spec.table is None else [sum(counts)]
        found: list[Array] = []
        for sealed, part, size in zip(pulled.filtered, data, sizes, strict=False):
            decoded = self._receiver.decode(unseal(sealed.meta, sealed.lengths, part), size=size)
            assert not isinstance(decoded, NeedIds)
            found.append(self._published(decoded.values))
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        storage = STORAGE[self._key.spec.dtype].itemsize
        ends = np.cumsum([0, *(each * storage for each in counts)]).tolist()
        flat = whole.reshape(-1).view(np.uint8)
        return tuple(flat[lo:hi] for lo, hi in pairwise(ends)), data[count:]

    def _published(self, values: Array) -> Array:
        """As the key's own type; what was decoded of 16-bit numbers is float32."""
        dtype = self._key.spec.dtype
        if values.dtype == STORAGE[dtype]:
            return np.ascontiguousarray(values)
        from windlass.store import kernels

        halves = np.empty(values.size, np.uint16)
        kernels.publish(halves, np.ascontiguousarray(values).reshape(-1), 0, values.size, kernels.ENCODINGS[dtype])
        return halves

    def _note(self, pulled: m.Pulled, values: tuple[Bytes, ...], rest: tuple[Bytes, ...], op: Op) -> None:
        """Remember how large a gradient has to be to matter."""
        key, ids = self._key, _ids_by_piece(op)
        dtype = STORAGE[key.spec.dtype]
        with self._lock:
            for place, (piece, part) in enumerate(zip(pulled.pieces, values, strict=True)):
                threshold: Any = pulled.threshold
                if threshold == -1.0:
                    threshold = rest[place].view(np.float32)
                weights = part.view(dtype)
                if key.spec.table is None:
                    self.sender.note_pulled(weights, threshold, lo=piece[0] * key.slot_size + piece[1])
                else:
                    self.sender.note_pulled(weights, threshold, ids=ids[piece])

    def status(self) -> dict[str, Any]:
        with self._lock:
            return self.sender.status()


def _deposited(asked: m.Deposit, state: SenderState | None) -> list[tuple[m.Deposited, tuple[Block, ...]]]:
    """What is sent of a residual; of None, that its moment has gone by."""
    which = {"key": asked.key, "saver": asked.saver, "snapshot": asked.snapshot, "attempt": asked.attempt}
    if state is None:
        return [(m.Deposited(**which, is_missed=True), ())]  # type: ignore[arg-type]
    arrays: dict[str, Array] = {}
    for number, kept in enumerate(state.residual):
        arrays[f"{number}.values"] = kept.values
        if kept.ids is not None:
            arrays[f"{number}.ids"] = kept.ids
    meta = {"sent": state.sent, "los": [kept.lo for kept in state.residual]}
    parts = list(cut_arrays(arrays or {"": np.empty(0, np.uint8)}))
    messages = [
        m.Deposited(**which, name=name, dtype=str(array.dtype), meta=meta, part=number, parts=len(parts))  # type: ignore[arg-type]
        for number, (name, array) in enumerate(parts)
    ]
    blocks = [(Block(array.view(np.uint8)),) for _, array in parts]
    return list(zip(messages, blocks, strict=True))


def state_of(arrays: dict[str, Array], meta: dict[str, Any], width: int | None) -> SenderState:
    """The other way round."""
    residual = []
    for number, lo in enumerate(meta["los"]):
        values, ids = arrays[f"{number}.values"], arrays.get(f"{number}.ids")
        residual.append(Kept(values if width is None else values.reshape(-1, width), lo, ids))
    return SenderState(residual, meta["sent"])


def _ids_by_piece(op: Op) -> dict[m.Piece, Array]:
    if op.ids is None or op.pull is None:
        return {}
    return {
        piece: block.array.view(np.int64)
        for shard, pieces in op.pull.items()
        for piece, block in zip(pieces, op.ids[shard], strict=True)
    }
