"""The server's end of a chain, for one key: payloads back to values. Deterministic; what came is never trusted."""

from __future__ import annotations

from windlass.errors import PeerError
from windlass.filters.chain import Chain, spread
from windlass.filters.lists import IdLists
from windlass.filters.parcel import Context, Decoded, NeedIds, Payload
from windlass.types import Array

MAX_ROWS = 1 << 24


class Receiver:
    """Reads the payloads of a key. It has no state but the id lists, which all keys of a server may share, so a payload
    means the same on any server: what it does not know it asks for."""

    def __init__(self, chain: Chain, lists: IdLists | None = None, *, max_rows: int = MAX_ROWS) -> None:
        self.chain = chain
        self.lists = IdLists() if lists is None and chain.has_id_cache else lists
        self.max_rows = max_rows

    def decode(self, payload: Payload, *, size: int | None = None, out: Array | None = None) -> Decoded | NeedIds:
        """What the payload says, for a range of `size` elements (dense keys) or for the ids that it brings or names.
        `out` is where a dense range is to be written. Values are of the dtype that the chain computes in, float32 for
        16-bit keys, where it is lossy; else of the key's own.

        PeerError says in words what is wrong with a payload; nothing has been changed then but `out`."""
        target = self.chain.target
        if target.is_table == (size is not None):
            raise ValueError("a dense key's payload is read for a size, a table's is not")
        limit = self.max_rows if size is None else size
        found = self.chain.decode(payload, Context(lists=self.lists, max_rows=limit))
        if isinstance(found, NeedIds):
            return found
        if size is None:
            if found.ids is None or found.kept is not None:
                raise PeerError(f"'{target.name}': a payload cannot be read: expected ids with the rows of a table")
            return Decoded(found.matrix, found.ids)
        if found.ids is not None or found.rows != size:
            raise PeerError(
                f"'{target.name}': a payload cannot be read: expected {size} elements, got {found.rows}"
                f"{' with ids' if found.ids is not None else ''}"
            )
        return Decoded(spread(found, out))
