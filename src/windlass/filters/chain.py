"""A chain of filters: numbers to a payload in the worker, and back in the server.

What travels is meta = {"rows", "arrays", "filters", and with IdCache "digest" and "ids"}: how many rows the parcel
spanned at the end, the header of the buffers, each filter's own meta in order, and the digest of the ids that were
taken out, with their count if the list itself is the first buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from windlass.errors import PeerError, UsageError, in_words
from windlass.filters import packing
from windlass.filters.cast import INFINITY, Cast
from windlass.filters.filter import Filter
from windlass.filters.id_cache import IdCache
from windlass.filters.lists import MissingIds
from windlass.filters.parcel import Context, Form, NeedIds, Parcel, Payload, Target
from windlass.filters.selector import MAX_SEED
from windlass.store import naming
from windlass.types import STORAGE, Array


class Chain:
    """Filters in order, for one key. It has no state: a Sender and a Receiver have. UsageError if they do not fit the
    key, or one another.

    A key of 16-bit floats is cast at the end of a lossy chain where no other filter gives codes: it should not travel
    in more bytes than it has."""

    def __init__(self, filters: Sequence[Filter], target: Target) -> None:
        self.target = target
        for each in filters:
            if not isinstance(each, Filter):
                hint = f"; did you mean {each.__name__}(...)?" if isinstance(each, type) else ""
                raise UsageError(f"'{target.name}': filters= expects filters, got {naming.describe(each)}{hint}")
            each.check(target)
        self.is_lossy = any(each.is_lossy for each in filters)
        self.filters = self._complete(tuple(filters))
        self._check_order()
        self.has_id_cache = any(isinstance(each, IdCache) for each in filters)
        self.is_fused = all(each.is_fused for each in self.filters)
        lossy = [each.keeps_loss for each in self.filters if each.is_lossy]
        # A filter of the user's own is measured together with the others, so its feedback is all or nothing.
        self.keeps_loss = any(lossy) if self.is_fused else bool(lossy) and all(lossy)
        self.number = target.number if self.is_lossy else STORAGE[target.dtype]

    def __repr__(self) -> str:
        return f"<Chain {', '.join(map(str, self.filters))} for '{self.target.name}'>"

    def for_pull(self) -> Chain:
        """What is done to the answers of pulls. It keeps no losses. Rows of a table are one stretch of numbers here:
        whoever pulls them knows their ids."""
        made = [each.for_pull() for each in self.filters]
        return Chain([each for each in made if each is not None], replace(self.target, width=None))

    def encode(self, parcel: Parcel, *, keep: bool) -> tuple[Payload, list[int]]:
        """The payload, and how many bytes the parcel had before the first filter and after each. With `keep`, what was
        lost is left in parcel.values; without, they stay as they are. Needs finite numbers with `keep`."""
        sizes = [parcel.nbytes]
        context, seed = parcel.context, parcel.context.seed
        metas: list[dict[str, Any]] = []
        steps: list[tuple[Parcel, Parcel]] = []
        last = parcel
        for number, each in enumerate(self.filters):
            context.seed = _mixed(seed, number)
            before, last = last, self._step(each, last, keep)
            steps.append((before, last))
            metas.append(last.meta)
            sizes.append(last.nbytes)
        if keep and self.is_fused:
            self._gather_losses(steps)
        header, buffers = packing.pack(last)
        meta: dict[str, Any] = {"rows": last.rows, "arrays": header, "filters": metas}
        if context.digest:
            meta["digest"] = context.digest
        payload = Payload(meta, buffers, context.taken_ids)
        if keep and not self.is_fused:
            # Another array: the payload's buffers may be the parcel's own.
            parcel.values = parcel.values - self._lay_out(self._unwind(payload, parcel), parcel)
        return payload, sizes

    def decode(self, payload: Payload, context: Context) -> Parcel | NeedIds:
        """The parcel as it was before the first filter, without what was lost: checked in every count. PeerError says
        what is wrong with the payload. NeedIds: the list of ids must come along."""
        meta, buffers = payload.meta, list(payload.buffers)
        metas = meta.get("filters") if isinstance(meta, dict) else None
        if not isinstance(metas, list | tuple) or len(metas) != len(self.filters):
            raise PeerError(f"{self._name}: expected the meta of {len(self.filters)} filters, got {metas!r:.60}")
        if not all(isinstance(each, dict) for each in metas):
            raise PeerError(f"{self._name}: expected a dictionary of every filter, got {metas!r:.60}")
        try:
            self._read_ids(meta, buffers, context)
            rows = packing.need_int(meta, "rows", 0, context.max_rows)
            like = Parcel(rows, np.empty(0, self.number), self.target.width or 1, self.number, context=context)
            parcel = packing.unpack(meta.get("arrays"), buffers, rows, like)
            for each, own in zip(reversed(self.filters), reversed(metas), strict=True):
                parcel = each.decode(replace(parcel, meta=own))
            self._check_decoded(parcel)
        except MissingIds as missing:
            return NeedIds(missing.digest)
        except PeerError as error:
            raise PeerError(f"{self._name}: a payload cannot be read: {error}") from error
        except (Exception, SystemExit) as error:  # a filter of the user's own, or one of ours that did not check enough
            raise PeerError(f"{self._name}: a payload cannot be read: {in_words(error)}") from error
        return parcel

    # --- the way out ---

    def _step(self, each: Filter, before: Parcel, keep: bool) -> Parcel:
        if not keep or not self.is_fused or not each.is_lossy:
            return each.encode(before)
        if each.keeps_loss:
            return each.encode_keeping(before)
        after = each.encode(before)
        before.values[:] = 0  # what it loses is forgotten
        return after

    def _gather_losses(self, steps: list[tuple[Parcel, Parcel]]) -> None:
        """Every filter has left its loss in what it was given. Bring those of the rows that were passed on back into
        what they were selected from, the last first."""
        from windlass.filters import kernels

        touched = False
        for each, (before, after) in zip(reversed(self.filters), reversed(steps), strict=True):
            if not each.is_lossy:
                continue
            if each.gives is not Form.NUMBERS:
                touched = True
                continue
            if touched:
                if after.origin is None:
                    before.values[:] = after.values
                else:
                    kernels.scatter(before.values, after.values, _among(after.origin, before), before.width)
            touched = True

    # --- the way in ---

    def _read_ids(self, meta: dict[str, Any], buffers: list[Any], context: Context) -> None:
        digest = meta.get("digest", "")
        if not isinstance(digest, str) or bool(digest) != self.has_id_cache:
            raise PeerError(f"expected {'a' if self.has_id_cache else 'no'} digest of ids, got {digest!r:.60}")
        context.digest, context.taken_ids = digest, None
        if "ids" not in meta:
            return
        count = packing.need_int(meta, "ids", 0, context.max_rows)
        if not buffers or not self.has_id_cache:
            raise PeerError("expected no ids beside the arrays")
        context.taken_ids = packing.as_array(buffers.pop(0), "int64", count)

    def _check_decoded(self, parcel: Parcel) -> None:
        parcel.check_values(self.number)
        if parcel.side:
            raise PeerError(f"expected nothing more, got {len(parcel.side)} arrays that no filter wanted")
        if parcel.rows > parcel.context.max_rows:
            raise PeerError(f"expected at most {parcel.context.max_rows} rows, got {parcel.rows}")

    def _unwind(self, payload: Payload, first: Parcel) -> Parcel:
        """What the server will make of a payload that was just made."""
        decoded = self.decode(payload.in_full(), Context(max_rows=first.rows))
        assert isinstance(decoded, Parcel), "it has its ids with it"
        return decoded

    def _lay_out(self, decoded: Parcel, first: Parcel) -> Array:
        """Decoded numbers where they were in the first parcel."""
        if decoded.ids is None or first.ids is None:
            return spread(decoded)
        order = np.argsort(first.ids, kind="stable")
        positions = order[np.searchsorted(first.ids, decoded.ids, sorter=order)]
        numbers = np.zeros_like(first.values)
        numbers.reshape(-1, first.width)[positions] = decoded.matrix
        return numbers

    # --- declaring ---

    @property
    def _name(self) -> str:
        return f"'{self.target.name}'"

    def _complete(self, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
        """With the cast that 16-bit keys need."""
        gives_codes = [each for each in filters if each.is_lossy and each.gives is not Form.NUMBERS]
        if not self.is_lossy or gives_codes or self.target.dtype not in INFINITY:
            return filters
        at = 1 + max(i for i, each in enumerate(filters) if each.is_lossy)
        return *filters[:at], Cast(self.target.dtype, feedback=filters[at - 1].keeps_loss), *filters[at:]

    def _check_order(self) -> None:
        form, last = Form.NUMBERS, ""
        seen_cache = False
        for each in self.filters:
            if form is Form.BYTES or (each.takes is Form.NUMBERS and form is not Form.NUMBERS):
                raise UsageError(f"{self._name}: {each} cannot go on with what {last} leaves: put it before that")
            if isinstance(each, IdCache):
                if seen_cache:
                    raise UsageError(f"{self._name}: IdCache stands in a chain once")
                seen_cache = True
            form, last = each.form_after(form), str(each)


def spread(parcel: Parcel, out: Array | None = None) -> Array:
    """The numbers of all rows of a dense parcel, 0 where it has none; into `out` if there is one."""
    from windlass.filters import kernels

    if parcel.kept is None:
        if out is None:
            return parcel.values
        out[:] = parcel.values
        return out
    if out is None:
        out = np.zeros(parcel.rows * parcel.width, parcel.values.dtype)
    else:
        out[:] = 0
    kernels.scatter(out, parcel.values, parcel.kept, parcel.width)
    return out


def _among(origin: Array, before: Parcel) -> Array:
    """Which of `before`'s rows these first rows are."""
    return origin if before.origin is None else np.searchsorted(before.origin, origin)


def _mixed(seed: int, number: int) -> int:
    """A seed for each filter of a chain, far from one another."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ((1 << 64) - 1)
    return (z ^ (z >> 31)) & MAX_SEED
