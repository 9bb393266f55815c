"""A parcel as buffers with a header, and back. What came off the wire is checked here: kinds, dtypes, counts, lengths.

A header names every buffer: [kind, dtype, count]. A selection of rows is sent as a bit for every row (`bits`) or as the
gaps between the kept ones (`gaps`), whichever is shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from windlass.errors import PeerError, UsageError
from windlass.filters.parcel import Parcel
from windlass.types import STORAGE, Array

DTYPES = {name: dtype for name, dtype in STORAGE.items() if dtype.name == name}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
KINDS = ("ids", "bits", "gaps", "values", "side")
MAX_ARRAYS = 64

Header = list[list[Any]]


def selection_bytes(kept: Array | None, rows: int) -> int:
    """About what a selection takes to send: a byte for a gap below 128, two below 16,384, and so on."""
    if kept is None:
        return 0
    gap = rows / max(1, len(kept))
    return int(min((rows + 7) // 8, len(kept) * (1 if gap < 64 else 1.3 if gap < 128 else 2 if gap < 16384 else 3)))


def pack(parcel: Parcel) -> tuple[Header, list[Array]]:
    """Everything in the parcel but its meta. UsageError if a filter gave an array that cannot travel."""
    named: list[tuple[str, Array]] = []
    if parcel.ids is not None:
        named.append(("ids", parcel.ids))
    elif parcel.kept is not None:
        named.append(_pack_selection(parcel.kept, parcel.rows))
    named.append(("values", parcel.values))
    named.extend(("side", each) for each in parcel.side)
    header: Header = [[kind, _name_of(array), array.size] for kind, array in named]
    if parcel.kept is not None:
        header[0][2] = len(parcel.kept)
    return header, [array for _, array in named]


def unpack(header: object, buffers: Sequence[Any], rows: int, like: Parcel) -> Parcel:
    """The parcel of so many rows that these buffers are. PeerError unless all is as it should be."""
    entries = _check_header(header, len(buffers))
    ids: Array | None = None
    kept: Array | None = None
    values: Array | None = None
    side: list[Array] = []
    for (kind, dtype, count), buffer in zip(entries, buffers, strict=True):
        if kind in ("bits", "gaps"):
            kept = _unpack_selection(kind, buffer, count, rows)
            continue
        array = as_array(buffer, dtype, count)
        if kind == "ids":
            if dtype != "int64" or count != rows:
                raise PeerError(f"expected {rows} ids of int64, got {count} of {dtype}")
            ids = array
        elif kind == "values":
            values = array
        else:
            side.append(array)
    if values is None or (ids is not None and kept is not None):
        raise PeerError("expected values once, and either ids or a selection of rows")
    return replace(like, rows=rows, ids=ids, kept=kept, values=values, side=tuple(side))


def as_array(buffer: Any, dtype: str, count: int) -> Array:
    """The buffer's bytes as so many elements; a copy only where they are not aligned."""
    data = as_bytes(buffer)
    form = DTYPES[dtype]
    if data.size != count * form.itemsize:
        raise PeerError(f"expected {count} elements of {dtype} in {count * form.itemsize} bytes, got {data.size} bytes")
    if data.ctypes.data % form.itemsize:
        data = data.copy()
    return data.view(form)


def as_bytes(buffer: Any) -> Array:
    if isinstance(buffer, np.ndarray):
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)
    return np.frombuffer(buffer, np.uint8)


def need_int(meta: object, name: str, lo: int, hi: int) -> int:
    """A whole number of a filter's meta, from lo to hi. PeerError if it is not one."""
    found = meta.get(name) if isinstance(meta, dict) else None
    if type(found) is not int or not lo <= found <= hi:
        raise PeerError(f"expected '{name}' from {lo} to {hi}, got {found!r:.60}")
    return found


def _name_of(array: Array) -> str:
    name = _NAMES.get(array.dtype)
    if name is None:
        raise UsageError(f"a filter gave an array of {array.dtype}; what travels is of {', '.join(DTYPES)}")
    return name


def _check_header(header: object, num_buffers: int) -> list[tuple[str, str, int]]:
    if not isinstance(header, list | tuple) or len(header) != num_buffers or num_buffers > MAX_ARRAYS:
        size = len(header) if isinstance(header, list | tuple) else f"{header!r:.60}"
        raise PeerError(f"expected a header for {num_buffers} buffers (at most {MAX_ARRAYS}), got {size}")
    entries: list[tuple[str, str, int]] = []
    for entry in header:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise PeerError(f"expected [kind, dtype, count] of a buffer, got {entry!r:.60}")
        kind, dtype, count = entry
        if kind not in KINDS or (kind != "side" and kind in [each[0] for each in entries]):
            raise PeerError(f"expected a buffer of {', '.join(KINDS)}, only 'side' more than once, got {kind!r:.60}")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise PeerError(f"expected a dtype among {', '.join(DTYPES)}, got {dtype!r:.60}")
        if type(count) is not int or count < 0:
            raise PeerError(f"expected a count of elements, got {count!r:.60}")
        entries.append((kind, dtype, count))
    return entries


def _pack_selection(kept: Array, rows: int) -> tuple[str, Array]:
    from windlass.filters import selecting

    bits_bytes = (rows + 7) // 8
    if len(kept) < bits_bytes:
        gaps = np.empty(min(10 * len(kept), 5 * len(kept) if rows < 1 << 35 else 10 * len(kept)), np.uint8)
        used = selecting.encode_gaps(gaps, kept)
        if used < bits_bytes:
            return "gaps", gaps[:used]
    flags = np.zeros(rows, np.bool_)
    flags[kept] = True
    return "bits", np.packbits(flags, bitorder="little")


def _unpack_selection(kind: str, buffer: Any, count: int, rows: int) -> Array:
    from windlass.filters import selecting

    data = as_bytes(buffer)
    if count > rows or (kind == "bits" and data.size != (rows + 7) // 8) or (kind == "gaps" and data.size < count):
        raise PeerError(f"expected a selection of {count} of {rows} rows as {kind}, got {data.size} bytes")
    kept = np.empty(count, np.int64)
    read = selecting.decode_bits if kind == "bits" else selecting.decode_gaps
    if not read(kept, data, rows):
        raise PeerError(f"expected a selection of {count} of {rows} rows as {kind}, but the bytes say something else")
    return kept
