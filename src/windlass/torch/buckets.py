"""How parameters are put together for travelling.

A *bucket* is one key of the store: neighbouring parameters of one group and one dtype, laid end to end. Small ones
share a bucket, because a message costs as much as many bytes; a large one has its own, and the store cuts it further.
Buckets are filled from the last parameter to the first, the order in which backward produces gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BUCKET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as it is declared: what every worker must agree on."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    group: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Bucket:
    """`members` are the numbers of its parameters; the k-th begins at element `offsets[k]`. A higher `priority` is
    needed earlier by the next forward."""

    name: str
    members: tuple[int, ...]
    offsets: tuple[int, ...]
    size: int
    group: int
    priority: int


def plan(parameters: Sequence[Parameter], numbers: Sequence[int], bucket_bytes: int) -> list[Bucket]:
    """Put these of the parameters into buckets, in the order in which backward will fill them. With `bucket_bytes`
    0 each has its own."""
    buckets: list[Bucket] = []
    open_: list[int] = []
    nbytes = 0
    for number in sorted(numbers, reverse=True):
        parameter = parameters[number]
        size = parameter.size * parameter.itemsize
        if open_:
            first = parameters[open_[0]]
            is_alike = (first.group, first.dtype) == (parameter.group, parameter.dtype)
            if not is_alike or nbytes + size > bucket_bytes:
                buckets.append(_close(parameters, open_))
                open_, nbytes = [], 0
        open_.append(number)
        nbytes += size
    if open_:
        buckets.append(_close(parameters, open_))
    return buckets


def _close(parameters: Sequence[Parameter], members: list[int]) -> Bucket:
    offsets: list[int] = []
    size = 0
    for number in members:
        offsets.append(size)
        size += parameters[number].size
    first, last = parameters[members[-1]].name, parameters[members[0]].name
    return Bucket(
        name=first if len(members) == 1 else f"{first}..{last}",
        members=tuple(members),
        offsets=tuple(offsets),
        size=size,
        group=parameters[members[0]].group,
        priority=-1 - members[-1],
    )
