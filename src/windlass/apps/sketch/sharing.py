"""A sketch's place in a store: its numbers under one key, and under another the numbers that choose its hashes."""

from __future__ import annotations

import numpy as np

from windlass.errors import UsageError
from windlass.types import Array, Consistency
from windlass.worker.store import Store


def declare(store: Store, key: str, value: Array, hashes: Array, reduce: str, consistency: Consistency | None) -> None:
    """Declare the key, merged by `reduce`. Sketches whose hashes differ cannot be merged, and nothing would show it: so
    the first one's are kept beside the key, and a worker whose own differ is told."""
    store.create(key, value, reduce=reduce, update="merge", consistency=consistency)
    store.create(f"{key}/hashes", hashes)
    if not np.array_equal(store.pull(f"{key}/hashes"), hashes):
        raise UsageError(f"'{key}' was made with another seed: sketches that are merged must all have the same one")
