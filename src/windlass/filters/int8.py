"""A quarter of the bytes: eight bits a number, and a scale for each block of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from windlass.errors import PeerError, options_checked
from windlass.filters.filter import Filter, Lossy, as_float32, require
from windlass.filters.parcel import Form, Parcel

MAX_BLOCK = 1 << 20


@options_checked
@dataclass(frozen=True)
class Int8(Lossy):
    """Sends each number as a multiple, from -127 to 127, of its block's scale, which is the largest magnitude in the
    block over 127. Chance rounds it up or down, so that on average it is right (`stochastic=False`: to the nearest). A
    smaller `block` rounds more finely and sends more scales. With `pull=True` answers of pulls are rounded to the
    nearest in the same way."""

    gives: ClassVar[Form] = Form.CODES

    block: int = 256
    stochastic: bool = True
    pull: bool = False

    def __post_init__(self) -> None:
        is_block = type(self.block) is int and 2 <= self.block <= MAX_BLOCK and self.block % 2 == 0
        require(is_block, self, "block", f"an even number from 2 to {MAX_BLOCK}")

    def encode(self, parcel: Parcel) -> Parcel:
        return self._encode(parcel, keep=False)

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        is_float32 = parcel.values.dtype == np.float32
        return self._encode(parcel, keep=True) if is_float32 else self.encode_and_subtract(parcel)

    def _encode(self, parcel: Parcel, keep: bool) -> Parcel:
        from windlass.filters import kernels

        numbers = as_float32(parcel.values)
        codes, scales = np.empty(numbers.size, np.int8), np.empty(-(-numbers.size // self.block), np.float32)
        job = np.array([self.block, self.stochastic, keep, parcel.context.seed], np.int64)
        kernels.encode_int8(codes, scales, numbers, numbers.view(np.uint32), job)
        return parcel.pass_on(codes, scales)

    def decode(self, parcel: Parcel) -> Parcel:
        from windlass.filters import kernels

        parcel.check_values("int8")
        (scales,) = parcel.take_side("float32")
        if scales.size != -(-parcel.values.size // self.block):
            raise PeerError(f"expected a scale for every {self.block} of {parcel.values.size} codes, got {scales.size}")
        numbers = np.empty(parcel.values.size, np.float32)
        kernels.decode_int8(numbers, parcel.values, scales, self.block)
        return parcel.give_back(numbers.astype(parcel.number, copy=False), sides=1)

    def for_pull(self) -> Filter | None:
        return replace(self, feedback=False, stochastic=False) if self.pull else None
