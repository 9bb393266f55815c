from __future__ import annotations

import numpy as np
from bench.linear import Size, make, near

from windlass.apps.logistic import Fitted, Pass


def test_the_set_is_the_same_every_time_and_has_frequent_and_rare_features():
    size = Size(rows=2000, features=10_000, per_row=44, informative=500)
    rows, again = make(size), make(size)
    assert np.array_equal(rows.ids, again.ids)
    assert np.array_equal(rows.labels, again.labels)
    assert len(rows) == 2000
    assert 38 < rows.ids.size / len(rows) < 44
    counts = np.bincount(rows.ids, minlength=size.features)
    assert counts.max() > 200
    assert np.median(counts[counts > 0]) < 10
    assert 0.3 < rows.positive / len(rows) < 0.7


def test_the_time_is_that_of_the_worker_that_was_last_near_enough():
    def fitted(*passes):
        return Fitted(None, [Pass(i, s, o, 0, 0, 0) for i, (s, o) in enumerate(passes)], None)

    found = near([fitted((1.0, 9.0), (2.0, 5.0), (3.0, 4.0)), fitted((1.1, 9.0), (2.5, 5.0), (2.9, 4.0))], enough=5.0)
    assert (found.number, found.seconds) == (1, 2.5)
