"""Arrays on their way from one node to another: what is too long for one message goes in several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from windlass.types import MAX_CHUNK_BYTES, Array


def cut_arrays(arrays: Mapping[str, Array], max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[tuple[str, Array]]:
    """The arrays in order, flat, those that are too long in stretches of the same name. Nothing is copied that is
    contiguous."""
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        step = max(1, max_bytes // flat.itemsize)
        for lo in range(0, max(1, flat.size), step):
            yield name, flat[lo : lo + step]


def join_arrays(parts: Iterable[tuple[str, Array]]) -> dict[str, Array]:
    """What `cut_arrays` cut."""
    found: dict[str, list[Array]] = {}
    for name, part in parts:
        found.setdefault(name, []).append(part)
    return {name: some[0] if len(some) == 1 else np.concatenate(some) for name, some in found.items()}
