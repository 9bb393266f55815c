"""A push that the filters of the other end cannot read is refused, and nobody waits for it."""

from __future__ import annotations

import numpy as np
import pytest

import windlass as wl
from windlass.testing.examples import Unlucky

WIDTH = 8


def _push(store: wl.Store, key: str, number: int, *, is_table: bool) -> float:
    if is_table:
        rows = np.full((2, WIDTH), number, np.float32)
        return float(store.pushpull(key, rows, ids=np.array([7, -7]))[0, 0])
    return float(store.pushpull(key, np.full(WIDTH, number, np.float32))[0])


def _work(store: wl.Store, policy: wl.types.Consistency, is_table: bool) -> list[str]:
    if is_table:
        store.create_table("w", dim=WIDTH, update="add", consistency=policy, filters=[Unlucky()])
    else:
        store.create("w", np.zeros(WIDTH, np.float32), update="add", consistency=policy, filters=[Unlucky()])
    seen = []
    for number in (1, 13, 2):
        try:
            seen.append(f"{_push(store, 'w', number if store.rank == 0 else 1, is_table=is_table):g}")
        except wl.UsageError as error:
            seen.append(str(error))
    store.barrier()
    return seen


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize("policy", [wl.Sequential(), wl.Eventual()])
def test_what_the_other_end_cannot_read_is_told_and_the_next_push_counts(
    policy: wl.types.Consistency, is_table: bool
) -> None:
    with wl.Cluster(servers=1, workers=2, replicas=0, engine="threads", timeout=20.0) as cluster:
        told, others = cluster.run(_work, policy, is_table)
        value = cluster.store().pull("w", **({"ids": np.array([7])} if is_table else {}))
    assert "a push of worker-0 is refused" in told[1]
    assert "13 brings bad luck" in told[1]
    if isinstance(policy, wl.Sequential):  # the round changed nothing, for nobody
        assert (told[0], told[2], others[1]) == ("2", "5", told[1])
        assert np.ravel(value)[0] == 5
    else:
        assert np.ravel(value)[0] == 1 + 2 + 3 * 1
