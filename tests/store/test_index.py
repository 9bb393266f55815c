"""The index of a table's slot grows little by little."""

from __future__ import annotations

import numpy as np

from windlass.store.batch import address
from windlass.store.index import Index
from windlass.types import Heap

STEP = 2048


def test_no_few_pushes_make_much_of_an_index_anew():
    """All its parts fill at the same pace. If they grew at the same time, so would those of all other slots."""
    index, grown = Index(Heap()), []
    for step in range(250):
        ids = np.arange(step * STEP, (step + 1) * STEP)
        before = index.nbytes
        index.count(index.find(address(ids), STEP), ids, 0, 1)
        if index.size > 1 << 16:
            grown.append(index.nbytes / before - 1)
    assert index.size == 250 * STEP
    assert max(grown) < 0.1
