"""Send a list of ids once, and its digest from then on.

The digest is of the list as it is, order included, so both ends hold the same list under it. A server that has lost the
list, or never had it, answers NeedIds, and the worker sends the same payload again in full: nothing was counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from windlass.errors import PeerError, UsageError
from windlass.filters.filter import Filter
from windlass.filters.lists import MissingIds, digest_of
from windlass.filters.parcel import Form, Parcel, Target


@dataclass(frozen=True)
class IdCache(Filter):
    """Names a list of ids that the server has seen by its digest, 16 bytes instead of 8 an id. For tables. Put it
    first, so that the list is the same whatever other filters leave out of it: they then send which of its rows they
    kept."""

    takes: ClassVar[Form] = Form.CODES
    is_lossy: ClassVar[bool] = False
    is_fused: ClassVar[bool] = True

    def encode(self, parcel: Parcel) -> Parcel:
        if parcel.ids is None:
            raise UsageError("IdCache needs ids, and they were taken already: it stands in a chain once")
        parcel.context.taken_ids, parcel.context.digest = parcel.ids, digest_of(parcel.ids)
        return replace(parcel, ids=None, meta={})

    def decode(self, parcel: Parcel) -> Parcel:
        context, lists = parcel.context, parcel.context.lists
        ids = context.taken_ids
        if ids is None:
            ids = lists.get(context.digest) if lists is not None else None
            if ids is None:
                raise MissingIds(context.digest)
        elif (found := digest_of(ids)) != context.digest:
            raise PeerError(f"expected ids with the digest {context.digest!r:.60}, got ids with {found}")
        elif lists is not None:
            ids = lists.put(found, ids)
        if parcel.ids is not None or len(ids) != parcel.rows:
            raise PeerError(f"expected the values of {len(ids)} ids, got those of {parcel.rows} rows")
        kept = parcel.kept
        return replace(parcel, ids=ids if kept is None else ids[kept], kept=None, rows=parcel.count, meta={})

    def form_after(self, form: Form) -> Form:
        return form

    def check(self, target: Target) -> None:
        if not target.is_table:
            raise UsageError(f"'{target.name}': IdCache is for tables, a dense key has no ids")
