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
from typing import NamedTuple

import numpy as np

from windlass.collectives.call import Call, Verb
from windlass.collectives.schedule import cut
from windlass.collectives.shared import kernels
from windlass.collectives.shared.meeting import PIECES, Meeting
from windlass.collectives.shared.reduction import Reduction
from windlass.collectives.tensors import Kind
from windlass.types import Array

PIECE_BYTES = 1 << 20
"""What one member has in its room at once. Larger pieces meet less often, smaller ones stay in a smaller cache."""

PAST_CACHE_BYTES = 8 << 20
"""From this size on, results are written past the cache."""

MAX_LAYOUTS = 256


def share_bytes(members: int) -> int:
    """A piece's share of one part."""
    return max(4096, PIECE_BYTES // members // 4096 * 4096)


def control_bytes(members: int) -> int:
    """A control segment: the meeting's part, two pieces, and two results."""
    return PIECES + 2 * (members + 1) * share_bytes(members)


@dataclass(frozen=True, slots=True)
class _Route:
    """Which parts this member copies in; which it copies out, from where, by turn and part, and how many pieces later;
    and where its own part's result goes, by turn, besides into its tensor: -1 if nowhere."""

    gives: Array
    takes: Array
    sources: tuple[Array, Array]
    lag: int
    results: tuple[int, int] = (-1, -1)


class _Layout(NamedTuple):
    """Of each part of a tensor: where it begins and how long it is, in bytes."""

    offsets: Array
    lengths: Array


class Pipeline:
    """The rooms of all members. One call at a time."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._rank, members = meeting.rank, meeting.size
        share = self._share = share_bytes(members)
        bases = [segment.address + PIECES for segment in meeting.segments]
        # By turn: where each member has its shares of all parts, and where it has its result.
        self._pieces = [
            np.array([[base + (turn * members + part) * share for part in range(members)] for base in bases], np.int64)
            for turn in (0, 1)
        ]
        self._results = [np.array([base + (2 * members + turn) * share for base in bases], np.int64) for turn in (0, 1)]
        self._inputs = [each[:, self._rank].copy() for each in self._pieces]
        self._layouts: dict[tuple[int, int], _Layout] = {}
        self._routes: dict[tuple[Verb, int], _Route] = {}

    def run(self, call: Call, address: int, reduction: Reduction | None) -> None:
        """Carry out a call, which has been opened, on this member's tensor at this address."""
        agreed, share, meeting = call.terms, self._share, self._meeting
        route, layout = self._route(agreed.verb, agreed.root), self._layout(agreed.kind)
        starts, lengths = address + layout.offsets, layout.lengths
        pieces, past_cache = -(-int(lengths[0]) // share), agreed.kind.nbytes >= PAST_CACHE_BYTES
        for at in range(pieces + route.lag):
            done = at - route.lag
            if done >= 0:
                rooms = route.sources[done % 2]
                kernels.exchange(rooms, starts, lengths, route.takes, done, share, False, past_cache)
            if reduction is not None and 1 <= at <= pieces:
                length = min(share, int(lengths[self._rank]) - (at - 1) * share)
                self._reduce(route, reduction, at - 1, int(starts[self._rank]), length // agreed.kind.itemsize)
            if at < pieces:
                rooms = self._pieces[at % 2][self._rank]
                kernels.exchange(rooms, starts, lengths, route.gives, at, share, True, False)
            if at < pieces + route.lag - 1:
                meeting.sync(call)

    def _reduce(self, route: _Route, reduction: Reduction, piece: int, start: int, length: int) -> None:
        """Reduce the own part's share of a piece: from everybody's room and the own tensor, into the latter and where
        the others find it."""
        own, result = start + piece * self._share, route.results[piece % 2]
        inputs = self._inputs[piece % 2]
        inputs[self._rank] = own
        reduction.run(np.array([own] if result < 0 else [result, own], np.int64), inputs, 0, length)

    def _layout(self, kind: Kind) -> _Layout:
        key = kind.size, kind.itemsize
        if key not in self._layouts:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            spans = np.array(cut(0, kind.size, self._meeting.size), np.int64) * kind.itemsize
            self._layouts[key] = _Layout(spans[:, 0].copy(), spans[:, 1] - spans[:, 0])
        return self._layouts[key]

    def _route(self, verb: Verb, root: int) -> _Route:
        if (verb, root) not in self._routes:
            self._routes[verb, root] = self._new_route(verb, root)
        return self._routes[verb, root]

    def _new_route(self, verb: Verb, root: int) -> _Route:
        rank, (even, odd) = self._rank, self._results
        everyone, nobody = np.arange(self._meeting.size), np.empty(0, np.int64)
        others = np.delete(everyone, rank)
        match verb:
            case Verb.ALLREDUCE:
                return _Route(others, others, (even, odd), 2, (int(even[rank]), int(odd[rank])))
            case Verb.REDUCE_SCATTER:
                return _Route(others, nobody, (even, odd), 1)
            case Verb.ALL_GATHER:
                own = [each.diagonal().copy() for each in self._pieces]
                return _Route(everyone[[rank]], others, (own[0], own[1]), 1)
            case Verb.BROADCAST if rank == root:
                return _Route(everyone, nobody, (even, odd), 1)
            case Verb.BROADCAST:
                return _Route(nobody, everyone, (self._pieces[0][root], self._pieces[1][root]), 1)
            case _:
                raise AssertionError(f"{verb} moves no tensor")
