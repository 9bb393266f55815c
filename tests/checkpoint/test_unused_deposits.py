"""What filters had kept back of a key that was loaded, and that nobody has used since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import windlass as wl
from windlass.filters import TopK


def _push(store: wl.Store, number: int) -> Any:
    store.create("kept", np.zeros(4, np.float32), update="add", filters=[TopK(0.25)])
    for _ in range(number):
        store.push("kept", np.array([4, 3, 2, 1], np.float32))
    return np.asarray(store.pull("kept")).tolist()


def test_a_key_with_filters_that_a_run_does_not_use_is_saved_with_what_was_kept_back(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with wl.Cluster(engine="threads", timeout=10) as cluster:
        cluster.run(_push, 1)
        cluster.store().save(first)
        expected = cluster.run(_push, 2)
    with wl.Cluster(engine="threads", timeout=10, load=first) as cluster:
        cluster.store().load(first)  # the later load is the one that counts
        cluster.store().save(second)
    with wl.Cluster(engine="threads", timeout=10, load=second) as cluster:
        assert cluster.run(_push, 2) == expected
