"""Collectives between processes of one machine, through shared memory.

`auto` has three ways. What fits into a notice is in it: one meeting, and everybody reduces everything. What lies in the
group's buffers is reduced where it lies: every member reads its own part of all and writes the result to all. Anything
else goes through in pieces (`pipeline.py`). A named strategy runs as its schedule says (`scheduled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from windlass.collectives.backend import Backend
from windlass.collectives.call import BARRIER, Call, Terms, Verb
from windlass.collectives.schedule import cut
from windlass.collectives.shared import kernels
from windlass.collectives.shared.buffers import NOWHERE, Buffers, Spot
from windlass.collectives.shared.meeting import INLINE_BYTES, Meeting
from windlass.collectives.shared.pipeline import PAST_CACHE_BYTES, Pipeline, control_bytes
from windlass.collectives.shared.reduction import Reduction
from windlass.collectives.shared.rendezvous import Exchange, meet
from windlass.collectives.shared.scheduled import Scheduled
from windlass.collectives.shared.segments import OwnSegment
from windlass.collectives.strategies import Machines, Strategy
from windlass.collectives.tensors import Flat, flat_of, tensor_over
from windlass.errors import ClusterError
from windlass.store.reduce import Reducer
from windlass.types import Array

CHUNK_BYTES = 4 << 20
"""A reduction in the group's buffers is done in steps of so many bytes: Ctrl-C is noticed in between."""

MAX_READ_BYTES = 1 << 20
"""What travels in notices is read by everybody, all of it: above this, each had better reduce a part."""

MAX_PREPARED = 1024


class SharedBackend(Backend):
    """A member of a group in shared memory."""

    name = "shared memory"

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        timeout: float,
        warn_seconds: float,
        finished: Callable[[], Collection[int]] = tuple,
        loss: Callable[[], ClusterError | None] = lambda: None,
    ) -> None:
        """`finished` gives the ranks that will not come to any call any more, `loss` what may be the reason."""
        self.rank, self.size = rank, size
        own = OwnSegment(control_bytes(size))
        self._meeting = Meeting(rank, meet(exchange, own.place, size), own, warn_seconds, finished, loss)
        self._meeting.sync(Call(BARRIER, None, timeout))
        own.hide()
        self._buffers = Buffers(self._meeting)
        self._pipeline = Pipeline(self._meeting)
        self._scheduled = Scheduled(self._meeting, self._buffers)
        self._reductions: dict[tuple[str, Reducer], Reduction] = {}
        self._prepared: dict[Terms, Reduction] = {}  # the same again, found faster
        self._out = np.zeros(1, np.int64)

    def meet(self, call: Call) -> Flat | None:
        kind = call.terms.kind
        if call.tensor is None or not kind.size:
            self._meeting.open(call)
            return None
        flat = flat_of(call.tensor, kind)
        if self._is_inline(call.terms):
            self._meeting.open(call, payload=flat.address, nbytes=kind.nbytes)
        else:
            spot = NOWHERE if flat.write_back else self._buffers.find(flat.address, kind.nbytes)
            self._meeting.open(call, spot)
        return flat

    def carry_out(self, call: Call, opened: Flat | None, machines: Machines | None) -> None:
        agreed = call.terms
        if opened is None:
            return
        if agreed.strategy is not Strategy.AUTO:
            self._scheduled.run(call, agreed.schedule(self.size, machines, agreed.strategy))
            return
        if self._is_inline(agreed):
            self._inline(agreed, opened.address)
        elif (addresses := self._all_in_buffers()) is not None:
            self._direct(call, addresses)
        else:
            self._pipeline.run(call, opened.address, self._reduction(agreed))
        if opened.write_back is not None:
            opened.write_back()

    def buffer(self, call: Call, dtype: Any) -> Any:
        return tensor_over(self._buffers.make(call, call.terms.kind.nbytes), call.terms.kind, dtype)

    def leave(self, reason: str) -> None:
        self._meeting.leave(reason)

    # --- what auto does -----------------------------------------------------------------------------------------------

    def _is_inline(self, agreed: Terms) -> bool:
        return (
            agreed.kind.nbytes <= INLINE_BYTES
            and agreed.kind.nbytes * self.size <= MAX_READ_BYTES
            and agreed.strategy is Strategy.AUTO
        )

    def _reduction(self, agreed: Terms) -> Reduction | None:
        found = self._prepared.get(agreed)
        if found is not None or not agreed.reduces:
            return found
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        key = agreed.kind.dtype, agreed.reducer
        if key not in self._reductions:
            self._reductions[key] = Reduction(*key, self.size)
        return self._prepared.setdefault(agreed, self._reductions[key])

    def _inline(self, agreed: Terms, address: int) -> None:
        kind, payloads, reduction = agreed.kind, self._meeting.payloads, self._reduction(agreed)
        self._out[0] = address
        if reduction is not None:
            own = (0, kind.size) if agreed.verb is Verb.ALLREDUCE else cut(0, kind.size, self.size)[self.rank]
            reduction.run(self._out, payloads, *own)
        elif agreed.verb is Verb.BROADCAST:
            kernels.copy(self._out, payloads[[agreed.root]], np.array([kind.nbytes]), False)
        else:
            spans = np.array(cut(0, kind.size, self.size), np.int64) * kind.itemsize
            kernels.copy(address + spans[:, 0], payloads + spans[:, 0], spans[:, 1] - spans[:, 0], False)

    def _all_in_buffers(self) -> Array | None:
        """Where this process sees everybody's tensor, if they are all in the group's buffers."""
        spots = [Spot(*self._meeting.words(rank)[:2]) for rank in range(self.size)]
        if any(spot.number < 0 for spot in spots):
            return None
        return np.array([self._buffers.address(rank, spot) for rank, spot in enumerate(spots)], np.int64)

    def _direct(self, call: Call, addresses: Array) -> None:
        agreed, itemsize = call.terms, call.terms.kind.itemsize
        reduction, past_cache = self._reduction(agreed), agreed.kind.nbytes >= PAST_CACHE_BYTES
        lo, hi = cut(0, agreed.kind.size, self.size)[self.rank]
        outs = addresses[[self.rank]] if agreed.verb is Verb.REDUCE_SCATTER else addresses
        source = agreed.root if agreed.verb is Verb.BROADCAST else self.rank
        others = np.delete(addresses, source)
        chunk = CHUNK_BYTES // itemsize
        for start in range(lo, hi, chunk):
            stop = min(hi, start + chunk)
            if reduction is not None:
                reduction.run(outs, addresses, start, stop)
            else:
                offset, lengths = start * itemsize, np.full(others.size, (stop - start) * itemsize)
                kernels.copy(others + offset, np.full_like(others, addresses[source] + offset), lengths, past_cache)
        self._meeting.sync(call)
