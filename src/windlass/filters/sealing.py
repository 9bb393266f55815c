"""A payload as one stretch of bytes, as it lies beside a message, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windlass.errors import PeerError
from windlass.filters.parcel import Payload
from windlass.types import Bytes

ALIGNED = 8
"""Every buffer begins at a multiple of this."""


def seal(payload: Payload) -> tuple[tuple[int, ...], Bytes]:
    """The lengths of its buffers, and a copy of them, one after the other."""
    buffers = [memoryview(each).cast("B") for each in payload.buffers if memoryview(each).nbytes]
    lengths = tuple(memoryview(each).nbytes for each in payload.buffers)
    data = np.zeros(sum(map(_room, lengths)), np.uint8)
    begin = 0
    for each in buffers:
        data[begin : begin + each.nbytes] = np.frombuffer(each, np.uint8)
        begin += _room(each.nbytes)
    return lengths, data


def unseal(meta: dict[str, Any], lengths: Sequence[int], data: Bytes) -> Payload:
    """The payload whose buffers lie in `data`. PeerError if they do not fit into it."""
    buffers = []
    begin = 0
    for length in lengths:
        if length < 0 or begin + length > data.nbytes:
            raise PeerError(f"a payload of {data.nbytes} bytes has no {length} bytes at {begin}")
        buffers.append(data[begin : begin + length])
        begin += _room(length)
    return Payload(meta, buffers)


def _room(length: int) -> int:
    return -(-length // ALIGNED) * ALIGNED
