"""Half the bytes: 16-bit floats on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from windlass.errors import options_checked
from windlass.filters.filter import Filter, Lossy, as_float32, require
from windlass.filters.parcel import Form, Parcel
from windlass.types import Array

INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}


@options_checked
@dataclass(frozen=True)
class Cast(Lossy):
    """Sends numbers as "float16" or "bfloat16", rounded to the nearest. Beyond the largest of them it sends that, and
    the rest with the next push; with `feedback=False`, infinity. With `pull=True` answers of pulls are cast as well."""

    gives: ClassVar[Form] = Form.CODES

    dtype: str = "bfloat16"
    pull: bool = False

    def __post_init__(self) -> None:
        require(self.dtype in INFINITY, self, "dtype", "'float16' or 'bfloat16'")

    def encode(self, parcel: Parcel) -> Parcel:
        return parcel.pass_on(self._round(as_float32(parcel.values)))

    def encode_keeping(self, parcel: Parcel) -> Parcel:
        return self.encode_and_subtract(parcel)

    def decode(self, parcel: Parcel) -> Parcel:
        parcel.check_values("uint16")
        return parcel.give_back(self._widen(parcel.values).astype(parcel.number, copy=False))

    def for_pull(self) -> Filter | None:
        return replace(self, feedback=False) if self.pull else None

    def _round(self, numbers: Array) -> Array:
        from windlass.filters.kernels import hold_finite
        from windlass.store import kernels

        halves = np.empty(numbers.size, np.uint16)
        kernels.publish(halves, numbers, 0, numbers.size, kernels.ENCODINGS[self.dtype])
        if self.feedback:
            hold_finite(halves, np.uint16(INFINITY[self.dtype]))
        return halves

    def _widen(self, halves: Array) -> Array:
        from windlass.store import kernels

        numbers = np.empty(halves.size, np.float32)
        kernels.decode(numbers, halves.ctypes.data, kernels.ENCODINGS[self.dtype])
        return numbers
