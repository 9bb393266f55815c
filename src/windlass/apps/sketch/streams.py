"""Ids as they come in practice: a few often, most seldom."""

from __future__ import annotations

import numpy as np

from windlass.types import Array


def zipf_ids(count: int, *, num_ids: int, exponent: float = 1.05, seed: int | tuple[int, ...] = 0) -> Array:
    """So many of the ids from 0 to num_ids, the n-th of them in proportion to 1 / n ** exponent. Which id is the n-th
    is shuffled, and the same for every seed."""
    heights = np.cumsum(np.arange(1, num_ids + 1) ** -exponent)
    drawn = np.random.default_rng(seed).random(count) * heights[-1]
    names = np.random.default_rng(num_ids).permutation(num_ids)
    found: Array = names[np.searchsorted(heights, drawn)]
    return found
