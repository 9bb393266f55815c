"""The lists of ids that both ends remember: what a server keeps, and what a worker believes that it keeps.

    worker                                         server
      | push (digest, ids)  first time               |   keeps the list
      | push (digest) ---------------------------->  |   has it: decodes
      | push (digest) ---------------------------->  |   has lost it, or is another server now
      | <------------------------- NeedIds(digest)   |   counted nothing of it
      | push (digest, ids)  the same payload         |   keeps the list

A list belongs to no log and no replica: an heir begins without any. A worker forgets what it believes when the
generation changes, and sends what is under way again in full (`Payload.in_full`), so a failover costs no round trip.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from windlass.errors import PeerError
from windlass.filters.parcel import NeedIds
from windlass.types import Array


class MissingIds(Exception):
    """Inside decoding: no list under this digest."""

    def __init__(self, digest: str) -> None:
        super().__init__(digest)
        self.digest = digest


def digest_of(ids: Array) -> str:
    """32 hexadecimal digits that stand for these int64 ids in this order."""
    from windlass.filters import hashing

    first, second = hashing.digest(ids)
    return f"{int(first):016x}{int(second):016x}"


@dataclass(frozen=True)
class NamedIds:
    """A list of ids in a request: its digest and, where the other end may not have it, the list."""

    digest: str
    ids: Array | None = None


class IdLists:
    """A server's lists, by digest: the most recently used, at most `max_bytes` of them. One for all keys and workers.
    Not thread-safe."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.hits = 0
        self.misses = 0
        self._lists: OrderedDict[str, Array] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lists)

    def get(self, digest: str) -> Array | None:
        found = self._lists.get(digest)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._lists.move_to_end(digest)
        return found

    def put(self, digest: str, ids: Array) -> Array:
        """Keep a copy under its digest, read-only, and drop the least recently used for it. One that is larger than all
        the room there is is not kept. Returns what to read."""
        known = self._lists.get(digest)
        if known is not None:
            self._lists.move_to_end(digest)
            return known
        if ids.nbytes > self.max_bytes:
            return ids
        own = np.array(ids)
        own.flags.writeable = False
        self._lists[digest] = own
        self.nbytes += own.nbytes
        while self.nbytes > self.max_bytes:
            _, dropped = self._lists.popitem(last=False)
            self.nbytes -= dropped.nbytes
        return own

    def resolve(self, named: NamedIds) -> Array | NeedIds:
        """The ids that a request names, kept for the next one. PeerError if they are not what its digest says."""
        if named.ids is None:
            found = self.get(named.digest)
            return NeedIds(named.digest) if found is None else found
        if named.ids.dtype != np.int64 or named.ids.ndim != 1:
            raise PeerError(f"expected a list of int64 ids, got {named.ids.dtype.name} of shape {named.ids.shape}")
        if (digest := digest_of(named.ids)) != named.digest:
            raise PeerError(f"expected ids with the digest {named.digest!r:.60}, got ids with {digest}")
        return self.put(digest, named.ids)


class KnownLists:
    """A worker's belief: which lists each peer has. A *peer* is whatever has lists of its own: the head of a shard, by
    its incarnation. It is believed to keep the last `max_bytes` that it was told; whenever it turns out to have lost a
    list, half of that, so that a server whose memory is too small for its workers is soon sent its ids as if there were
    no cache, rather than everything twice."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self.max_bytes = max_bytes
        self._beliefs: dict[int, _Belief] = {}

    def tell(self, peer: int, digest: str, nbytes: int) -> bool:
        """Whether the peer has been sent that list, of so many bytes. From now on it has."""
        belief = self._beliefs.setdefault(peer, _Belief(self.max_bytes))
        is_known = digest in belief.lists
        belief.keep(digest, nbytes)
        return is_known

    def miss(self, peer: int, digest: str) -> None:
        """The peer has not got that list, though it was told."""
        belief = self._beliefs.setdefault(peer, _Belief(self.max_bytes))
        belief.max_bytes //= 2
        belief.drop(digest)

    def forget(self) -> None:
        """The generation has changed: whoever is asked next may be another, and have nothing."""
        self._beliefs.clear()


class _Belief:
    """What one peer is believed to keep, the least recently used first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.lists: OrderedDict[str, int] = OrderedDict()

    def keep(self, digest: str, nbytes: int) -> None:
        self.drop(digest)
        self.lists[digest] = nbytes
        self.nbytes += nbytes
        while self.nbytes > self.max_bytes:
            self.drop(next(iter(self.lists)))

    def drop(self, digest: str) -> None:
        self.nbytes -= self.lists.pop(digest, 0)
