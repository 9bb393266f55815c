"""The worker's end of a chain, for one key: what it has kept back, what servers are believed to know, and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from windlass.errors import UsageError
from windlass.filters.chain import Chain
from windlass.filters.id_cache import IdCache
from windlass.filters.kkt import ALWAYS_SEND, KKT
from windlass.filters.lists import KnownLists, NamedIds, digest_of
from windlass.filters.memory import DenseMemory, Kept, TableMemory
from windlass.filters.parcel import Context, NeedIds, Parcel, Payload
from windlass.filters.selector import MAX_SEED
from windlass.types import STORAGE, Array


@dataclass(frozen=True)
class Traffic:
    """Bytes that came to a filter, and that left it."""

    filter: str
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class SenderState:
    """What a checkpoint keeps of a sender: its residual, and how many parcels it has sent (lots are drawn by that)."""

    residual: list[Kept]
    sent: int


class Sender:
    """Filters one worker's pushes on one key. Not thread-safe; nothing in it blocks.

    `seed` should differ between workers and keys, and be the same when a run is repeated. A call that raises has
    changed nothing."""

    def __init__(self, chain: Chain, *, seed: int = 0) -> None:
        self.chain = chain
        self._seed = seed
        self._sent = 0
        self._known = KnownLists()
        self._sizes = np.zeros(len(chain.filters) + 1, np.int64)
        target = chain.target
        self._dense = DenseMemory(target.number, size=target.size)
        self._table = TableMemory(target.width or 1, target.number)
        self._kkt = next((each for each in chain.filters if isinstance(each, KKT)), None)
        self._dense_slack = DenseMemory(target.number, ALWAYS_SEND, target.size)
        self._table_slack = TableMemory(target.width or 1, target.number, ALWAYS_SEND)

    def encode(self, values: Array, *, ids: Array | None = None, lo: int = 0, peer: int = 0) -> Payload:
        """The payload of these values: the elements from `lo` on, or a row for each id. It counts as sent: keep it
        until it is acknowledged and send it again as it is, or in full. `peer` is whose id lists it may rely on.

        Where the chain keeps losses an infinite or NaN value, and an id that is there twice, is a UsageError."""
        numbers, rows = self._check(values, ids)
        ids = None if ids is None else np.ascontiguousarray(ids)
        parcel = Parcel(rows, numbers, self.chain.target.width or 1, self.chain.number, ids=ids)
        parcel.context = Context(seed=self._next_seed(), slack=self._slack(lo, rows, ids))
        payload = self._encode_keeping(parcel, lo) if self.chain.keeps_loss else self._encode(parcel, keep=False)
        self._sent += 1
        if payload.digest is None or payload.ids is None or self._known.tell(peer, payload.digest, payload.ids.nbytes):
            return payload
        return self._in_full(payload)

    def resend(self, payload: Payload, need: NeedIds, *, peer: int = 0) -> Payload:
        """The answer to NeedIds: the same payload in full. The peer is believed to keep less from now on."""
        self._known.miss(peer, need.digest)
        return self._in_full(payload)

    def _in_full(self, payload: Payload) -> Payload:
        """With its list of ids, which counts as what IdCache leaves."""
        full = payload.in_full()
        place = next((number for number, each in enumerate(self.chain.filters) if isinstance(each, IdCache)), None)
        if place is not None and full is not payload and payload.ids is not None:
            self._sizes[place + 1 :] += payload.ids.nbytes
        return full

    def check_finite(self, values: Array) -> None:
        """UsageError if a push of these values would be one for that reason. Changes nothing."""
        flat = np.ascontiguousarray(values).reshape(-1)
        _check_finite(_as_numbers(flat, self.chain.target.dtype), self.chain.target.name)

    def name_ids(self, ids: Array, *, peer: int = 0) -> NamedIds:
        """How a pull names its ids, so that the push that follows it need not send them: `IdLists.resolve` reads it.
        In full where the chain has no IdCache."""
        ids = np.ascontiguousarray(ids)
        digest = digest_of(ids)
        is_known = self.chain.has_id_cache and self._known.tell(peer, digest, ids.nbytes)
        return NamedIds(digest, None if is_known else ids)

    def note_pulled(self, weights: Array, threshold: Any, *, ids: Array | None = None, lo: int = 0) -> None:
        """What a pull brought: weights, and the threshold (one, or one for each) up to which KKT need not send."""
        if self._kkt is None:
            return
        slack = self._kkt.slack(weights, threshold, self.chain.target.width or 1).astype(self.chain.target.number)
        if ids is None:
            self._dense_slack.view(lo, lo + slack.size)[:] = slack
        else:
            self._table_slack.write(ids, slack)

    def miss(self, digest: str, *, peer: int = 0) -> None:
        """A list that this peer was told is not there: it is believed to keep less from now on."""
        self._known.miss(peer, digest)

    def forget_peers(self) -> None:
        """The generation has changed: ids are sent in full again. What is under way is to be sent again `in_full`."""
        self._known.forget()

    # --- what is kept back ---

    @property
    def sizes(self) -> Array:
        """Bytes before the first filter and after each, since the beginning."""
        return self._sizes.copy()

    @property
    def residual_bytes(self) -> int:
        return self._memory.nbytes

    @property
    def residual_norm(self) -> float:
        """The Euclidean norm of everything that was kept back."""
        return self._memory.norm()

    def dump(self) -> SenderState:
        """A copy of what a checkpoint needs."""
        return SenderState(self._memory.dump(), self._sent)

    def restore(self, state: SenderState) -> None:
        """Become what was dumped."""
        self._memory.clear()
        for kept in state.residual:
            self._memory.add(kept)
        self._sent = state.sent

    def add_residual(self, kept: Kept) -> None:
        """Send this as well, as the chain allows: what a worker kept back that is not there any more, or what was in a
        push that the server refused."""
        self._memory.add(kept)

    def take_residual(self) -> list[Kept]:
        """Everything that was kept back, to be pushed without filters; nothing is kept back now."""
        residual = self._memory.dump()
        self._memory.clear()
        return residual

    # --- looking ---

    def traffic(self) -> list[Traffic]:
        """Bytes before and after each filter, since the beginning."""
        names = [str(each) for each in self.chain.filters]
        sizes = self._sizes.tolist()
        return [Traffic(*each) for each in zip(names, sizes, sizes[1:], strict=False)]

    def status(self) -> dict[str, Any]:
        """Plain values for `status()`."""
        filters = [{"filter": each.filter, "before": each.bytes_before, "after": each.bytes_after}
                   for each in self.traffic()]  # fmt: skip
        return {"filters": filters, "residual_norm": self.residual_norm, "residual_bytes": self._memory.nbytes}

    # --- within ---

    @property
    def _memory(self) -> DenseMemory | TableMemory:
        return self._table if self.chain.target.is_table else self._dense

    def _encode(self, parcel: Parcel, *, keep: bool) -> Payload:
        payload, sizes = self.chain.encode(parcel, keep=keep)
        self._sizes += sizes
        return payload

    def _encode_keeping(self, parcel: Parcel, lo: int) -> Payload:
        """Adds the residual, and keeps what is lost in its place."""
        from windlass.filters import kernels

        numbers, largest = parcel.values, np.finfo(parcel.number).max
        _check_finite(numbers, self.chain.target.name)
        if parcel.ids is None and self.chain.is_fused:
            parcel.values = self._dense.view(lo, lo + numbers.size)
            kernels.accumulate(parcel.values, numbers, largest)
            return self._encode(parcel, keep=True)
        if parcel.ids is None:
            kept = self._dense.view(lo, lo + numbers.size)
            parcel.values = kept.copy()
            kernels.accumulate(parcel.values, numbers, largest)
            payload = self._encode(parcel, keep=True)
            kept[:] = parcel.values
            return payload
        positions = self._table.find(parcel.ids)
        parcel.values = np.empty_like(numbers)
        kernels.gather_and_add(parcel.values, numbers, self._table.rows, positions, largest)
        payload = self._encode(parcel, keep=True)
        kernels.scatter_rows(self._table.rows, positions, parcel.values)
        return payload

    def _slack(self, lo: int, rows: int, ids: Array | None) -> Array | None:
        if self._kkt is None:
            return None
        return self._dense_slack.view(lo, lo + rows) if ids is None else self._table_slack.read(ids)

    def _next_seed(self) -> int:
        return (self._seed * 0x9E3779B97F4A7C15 + self._sent * 0xD1342543DE82EF95) & MAX_SEED

    def _check(self, values: Array, ids: Array | None) -> tuple[Array, int]:
        """The values as flat numbers, and how many rows they are. UsageError unless they fit the key."""
        target = self.chain.target
        if values.dtype != STORAGE[target.dtype]:
            raise UsageError(f"'{target.name}': expected values of {target.dtype}, got {values.dtype.name}")
        if target.is_table != (ids is not None):
            raise UsageError(f"'{target.name}': expected {'ids with' if target.is_table else 'no ids with'} the values")
        flat = np.ascontiguousarray(values).reshape(-1)
        rows = flat.size
        if ids is not None:
            rows = len(ids)
            if ids.dtype != np.int64 or ids.ndim != 1 or flat.size != rows * (target.width or 1):
                raise UsageError(
                    f"'{target.name}': expected int64 ids and a row of {target.width} for each, got ids of "
                    f"{ids.dtype.name} of shape {ids.shape} and values of shape {values.shape}"
                )
        return (_as_numbers(flat, target.dtype) if self.chain.is_lossy else flat), rows


def _as_numbers(values: Array, dtype: str) -> Array:
    """16-bit floats as float32, others as they are."""
    if dtype not in ("float16", "bfloat16"):
        return values
    from windlass.store import kernels

    halves = np.require(values.view(np.uint16), requirements=["C", "A"])
    numbers = np.empty(halves.size, np.float32)
    kernels.decode(numbers, halves.ctypes.data, kernels.ENCODINGS[dtype])
    return numbers


def _check_finite(numbers: Array, name: str) -> None:
    from windlass.filters import kernels

    word, exponent = (np.uint32, 0x7F800000) if numbers.itemsize == 4 else (np.uint64, 0x7FF0000000000000)
    if kernels.has_special(numbers.view(word), word(exponent)):
        where = np.flatnonzero(~np.isfinite(numbers))
        raise UsageError(
            f"'{name}': value {where[0]} of this push is {numbers[where[0]]} ({len(where)} are not finite), and would "
            "stay in the residual for ever; leave the step out, or use filters with feedback=False"
        )
