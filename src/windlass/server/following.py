"""What a follower does with entries that are no pushes."""

from __future__ import annotations

from windlass._wire import messages as m
from windlass.consistency.rounds import StagedPiece
from windlass.server.log import Whole
from windlass.server.units import Echo, First, Put, Rest, Restored, Start, Unit
from windlass.store.parts import join_arrays


def followed(whole: Whole, pieces: list[StagedPiece]) -> list[Unit]:
    """The units of work of an entry that came from the predecessor, with these pieces: what its head has done."""
    index, entry = whole.index, whole.entry
    match entry.kind:
        case m.Kind.FIRST:
            return [Echo(index, slot, First(((slot, lo, hi),), (data,), None)) for slot, lo, hi, data in pieces]
        case m.Kind.WRITE:
            written = (entry.who, 0), entry.now
            return [Echo(index, piece[0], Put(*piece, *written, is_followed=True)) for piece in pieces]
        case m.Kind.START:
            return [Start(entry.who, entry.clock, entry.request, is_followed=True)]
        case m.Kind.REST:
            return [Rest(entry.who, entry.request, is_followed=True)]
        case m.Kind.RESTORE:
            named_arrays = zip(entry.names, entry.dtypes, pieces, strict=True)
            arrays = join_arrays((name, data.view(dtype)) for name, dtype, (*_, data) in named_arrays)
            return [Echo(index, entry.clock, Restored(entry.clock, arrays, entry.meta or {}, None, entry.count))]
        case _:
            raise AssertionError(f"an entry of kind {entry.kind} is a push")
