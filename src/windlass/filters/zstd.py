"""Compression of whatever is left at the end of a chain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from windlass.errors import PeerError, options_checked
from windlass.filters import packing
from windlass.filters.filter import Filter, require
from windlass.filters.parcel import Form, Parcel
from windlass.types import Array


@options_checked
@dataclass(frozen=True)
class Zstd(Filter):
    """Compresses everything, losing nothing. It pays after filters that leave many equal bytes (Int8, Cast), and on
    slow links; gradients of float32 hardly become shorter. What does not is sent as it is. A higher `level` is slower
    and shorter. With `pull=True` answers of pulls are compressed as well."""

    takes: ClassVar[Form] = Form.CODES
    gives: ClassVar[Form] = Form.BYTES
    is_lossy: ClassVar[bool] = False
    is_fused: ClassVar[bool] = True

    level: int = 1
    pull: bool = False

    def __post_init__(self) -> None:
        require(type(self.level) is int and -100 <= self.level <= 22, self, "level", "a whole number from -100 to 22")

    def encode(self, parcel: Parcel) -> Parcel:
        import zstandard

        header, arrays = packing.pack(parcel)
        flat = [packing.as_bytes(each) for each in arrays]
        data = flat[0] if len(flat) == 1 else np.concatenate(flat)
        packed = np.frombuffer(zstandard.ZstdCompressor(level=self.level).compress(data.data), np.uint8)
        is_shorter = packed.size < data.size
        meta = {"arrays": header, "lengths": [each.size for each in flat], "packed": int(is_shorter)}
        return replace(parcel, values=packed if is_shorter else data, ids=None, kept=None, side=(), meta=meta)

    def decode(self, parcel: Parcel) -> Parcel:
        lengths = self._lengths(parcel)
        total = sum(lengths)
        data = parcel.values
        if data.dtype != np.uint8 or parcel.side or parcel.ids is not None or parcel.kept is not None:
            raise PeerError("expected one buffer of bytes from Zstd")
        if packing.need_int(parcel.meta, "packed", 0, 1):
            data = self._decompress(data, total)
        if data.size != total:
            raise PeerError(f"expected {total} bytes from Zstd, got {data.size}")
        ends = np.cumsum([0, *lengths]).tolist()
        buffers = [data[lo:hi] for lo, hi in pairwise(ends)]
        opened = packing.unpack(parcel.meta.get("arrays"), buffers, parcel.rows, parcel)
        return replace(opened, meta={})

    def for_pull(self) -> Filter | None:
        return self if self.pull else None

    @staticmethod
    def _lengths(parcel: Parcel) -> list[int]:
        """How long each array is; together no longer than the parcel's rows could ever need."""
        lengths = parcel.meta.get("lengths") if isinstance(parcel.meta, dict) else None
        if not isinstance(lengths, list | tuple) or not all(type(each) is int and each >= 0 for each in lengths):
            raise PeerError(f"expected the lengths of Zstd's arrays, got {lengths!r:.60}")
        limit = 4096 + 16 * parcel.rows * (parcel.width + 1)
        if sum(lengths) > limit:
            raise PeerError(f"expected at most {limit} bytes of {parcel.rows} rows, Zstd says {sum(lengths)}")
        return list(lengths)

    @staticmethod
    def _decompress(packed: Array, total: int) -> Array:
        import zstandard

        data = packed.data
        try:
            if zstandard.frame_content_size(data) != total:
                raise PeerError(f"expected {total} bytes from Zstd, its frame says otherwise")
            plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=total, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise PeerError(f"expected a Zstd frame of {total} bytes, got {packed.size} bytes: {error}") from error
        return np.frombuffer(plain, np.uint8)
