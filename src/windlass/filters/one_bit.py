"""One bit a number: its sign. The rest of it is left to the error feedback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windlass.errors import PeerError, options_checked
from windlass.filters.filter import Lossy, as_float32, require
from windlass.filters.parcel import Form, Parcel

MAX_BLOCK = 1 << 20


@options_checked
@dataclass(frozen=True)
class OneBit(Lossy):
    """Sends the sign of each number, and for each block the mean magnitude, which the server gives to all of them. What
    that is wrong by is added to the next push: without feedback it does not converge."""

    gives: ClassVar[Form] = Form.CODES

    block: int = 1024

    def __post_init__(self) -> None:
        is_block = type(self.block) is int and 8 <= self.block <= MAX_BLOCK and self.block % 8 == 0
        require(is_block, self, "block", f"a multiple of 8 from 8 to {MAX_BLOCK}")

    def encode(self, parcel: Parcel) -> Parcel:
        return self._encode(parcel, keep=False)

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        is_float32 = parcel.values.dtype == np.float32
        return self._encode(parcel, keep=True) if is_float32 else self.encode_and_subtract(parcel)

    def _encode(self, parcel: Parcel, keep: bool) -> Parcel:
        from windlass.filters import kernels

        size = parcel.values.size
        bits, scales = np.empty(-(-size // 8), np.uint8), np.empty(-(-size // self.block), np.float32)
        kernels.encode_signs(bits, scales, as_float32(parcel.values), self.block, keep)
        return parcel.pass_on(bits, scales)

    def decode(self, parcel: Parcel) -> Parcel:
        from windlass.filters import kernels

        (scales,) = parcel.take_side("float32")
        size, bits = parcel.count * parcel.width, parcel.values
        if bits.dtype != np.uint8 or bits.size != -(-size // 8) or scales.size != -(-size // self.block):
            raise PeerError(
                f"expected {size} bits in uint8 and a scale for every {self.block} of them, "
                f"got {bits.size} of {bits.dtype.name} and {scales.size} scales"
            )
        numbers = np.empty(size, np.float32)
        kernels.decode_signs(numbers, bits, scales, self.block)
        return parcel.give_back(numbers.astype(parcel.number, copy=False), sides=1)
