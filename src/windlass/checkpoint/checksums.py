"""The checksum of a file from those of its parts, so that no byte is read twice for it.

A CRC is the remainder of a division of polynomials over one bit, so that of two parts, one after the other, is the
first one's, moved on by the length of the second, plus the second one's: a multiplication by a power of x.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_POLYNOMIAL = 0xEDB88320  # of crc32; its lowest power is in the highest bit
_ONE = 1 << 31
_SMALL_BYTES = 64 << 10
"""Up to so many it is as fast to read them again."""


@dataclass(slots=True)
class Running:
    """The checksum of what has been added so far, and how many bytes that were."""

    nbytes: int = 0
    crc: int = 0

    def add(self, data: Any) -> None:
        self.nbytes += len(data)
        self.crc = zlib.crc32(data, self.crc)

    def join(self, data: Any, crc: int) -> None:
        """Add what has this checksum."""
        if len(data) <= _SMALL_BYTES:
            self.add(data)
            return
        self.nbytes += len(data)
        self.crc = _multiply(_moved_by(len(data)), self.crc) ^ crc


@lru_cache(maxsize=256)
def _moved_by(nbytes: int) -> int:
    """x to the power of so many bytes."""
    power, square = _ONE, _ONE >> 8  # x ** 8 is one byte
    while nbytes:
        if nbytes & 1:
            power = _multiply(square, power)
        square = _multiply(square, square)
        nbytes >>= 1
    return power


def _multiply(one: int, other: int) -> int:
    """Their product, modulo the polynomial."""
    product, bit = 0, _ONE
    while bit:
        if one & bit:
            product ^= other
        other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
        bit >>= 1
    return product
