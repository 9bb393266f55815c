"""Plain tensors through shared memory, in pieces that stay in the cache.

A tensor has one *part* for each member. A *piece* is as much of every part as fits its room: a member copies its
piece in, reduces its own part's share of everybody's piece, and copies the others' results out. Its own part it neither
copies in nor out: it is the one that reduces it. The three run side by side on successive pieces, so that there is one
meeting for each piece:

    meeting         1        2        3        4
    copy in    p0   |   p1   |   p2   |        |
    reduce          |   p0   |   p1   |   p2   |
    copy out        |        |   p0   |   p1   |  p2

Each area has room for two pieces, used in turn: what is read between two meetings was written before the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windlass.collectives.call import Call, Verb
from windlass.collectives.schedule import cut
from windlass.collectives.shared import kernels
from windlass.collectives.shared.meeting import PIECES, Meeting
from windlass.collectives.shared.reduction import Reduction
from windlass.types import Array

PIECE_BYTES = 1 << 20
"""What one member has in its room at once. Larger pieces meet less often, smaller ones stay in a smaller cache."""

PAST_CACHE_BYTES = 8 << 20
"""From this size on, results are written past the cache."""


def share_bytes(members: int) -> int:
    """A piece's share of one part."""
    return max(4096, PIECE_BYTES // members // 4096 * 4096)


def control_bytes(members: int) -> int:
    """A control segment: the meeting's part, two pieces, and two results."""
    return PIECES + 2 * (members + 1) * share_bytes(members)


@dataclass(frozen=True, slots=True)
class _Route:
    """Which parts this member copies in; which it copies out, and from where, by turn and part; how many pieces later;
    and where its own part's result goes, by turn, besides into its tensor."""

    gives: Array
    takes: Array
    sources: Array
    lag: int
    results: Array


class Pipeline:
    """The rooms of all members. One call at a time."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        members, self._share = meeting.size, share_bytes(meeting.size)
        bases = np.array([segment.address + PIECES for segment in meeting.segments], np.int64)
        # By turn, member and part: where a member has its share of a part; and by turn and member: its result.
        offsets = np.arange(2 * members, dtype=np.int64).reshape(2, 1, members) * self._share
        self._pieces = bases.reshape(1, members, 1) + offsets
        self._results = bases + (2 * members + np.arange(2).reshape(2, 1)) * self._share

    def run(self, call: Call, address: int, reduction: Reduction | None) -> None:
        """Carry out a call, which has been opened, on this member's tensor at this address."""
        share, itemsize, rank = self._share, call.terms.kind.itemsize, self._meeting.rank
        spans = np.array(cut(0, call.terms.kind.size, self._meeting.size), np.int64) * itemsize
        starts, lengths = address + spans[:, 0], spans[:, 1] - spans[:, 0]
        pieces = -(-int(lengths.max()) // share)
        past_cache = call.terms.kind.nbytes >= PAST_CACHE_BYTES
        route = self._route(call)

        def copy_out(piece: int) -> None:
            left = np.clip(lengths - piece * share, 0, share)
            to, sources = starts + piece * share, route.sources[piece % 2]
            kernels.copy(to[route.takes], sources[route.takes], left[route.takes], past_cache)

        def reduce(piece: int, reduction: Reduction) -> None:
            length = min(share, int(lengths[rank]) - piece * share) // itemsize
            inputs, own = self._pieces[piece % 2, :, rank].copy(), starts[rank] + piece * share
            inputs[rank] = own
            reduction.run(np.append(route.results[piece % 2], own), inputs, 0, length)

        def copy_in(piece: int) -> None:
            left = np.clip(lengths - piece * share, 0, share)
            to, sources = self._pieces[piece % 2, rank], starts + piece * share
            kernels.copy(to[route.gives], sources[route.gives], left[route.gives], False)

        for at in range(pieces + route.lag):
            if at >= route.lag:
                copy_out(at - route.lag)
            if reduction is not None and 1 <= at <= pieces:
                reduce(at - 1, reduction)
            if at < pieces:
                copy_in(at)
            if at < pieces + route.lag - 1:
                self._meeting.sync(call)

    def _route(self, call: Call) -> _Route:
        rank = self._meeting.rank
        everyone, nobody = np.arange(self._meeting.size), np.empty(0, np.int64)
        others, nowhere = np.delete(everyone, rank), self._results[:, :0]
        match call.terms.verb:
            case Verb.ALLREDUCE:
                return _Route(others, others, self._results, 2, self._results[:, rank : rank + 1])
            case Verb.REDUCE_SCATTER:
                return _Route(others, nobody, self._results, 1, nowhere)
            case Verb.ALL_GATHER:
                return _Route(everyone[[rank]], others, self._pieces[:, everyone, everyone], 1, nowhere)
            case Verb.BROADCAST if rank == call.terms.root:
                return _Route(everyone, nobody, self._results, 1, nowhere)
            case Verb.BROADCAST:
                return _Route(nobody, everyone, self._pieces[:, call.terms.root], 1, nowhere)
            case _:
                raise AssertionError(f"{call.terms.verb} moves no tensor")
