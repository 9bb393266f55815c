"""A wait that ends, or warns, is told in the words of its caller: the store's own keys have names that mean nothing."""

from __future__ import annotations

import pytest

import windlass as wl


def late(store: wl.Store, call: str) -> str:
    """Worker 0 waits for worker 1, which comes only after the wait has ended; gives what worker 0 was told."""
    said = ""
    if store.rank == 0:
        with pytest.raises(wl.TimeoutError) as raised:
            store.exchange(b"abc", timeout=0.3) if call == "exchange" else store.barrier(timeout=0.3)
        said = str(raised.value)
        store.create("over", [0.0])
    else:
        store.create("over", [0.0])  # has its first value from rank 0, and so comes after
        store.exchange(b"abc") if call == "exchange" else store.barrier()
    return said


@pytest.mark.parametrize(("call", "words"), [("barrier", "store.barrier()"), ("exchange", "an exchange between all")])
def test_a_wait_for_all_workers_names_what_was_called_and_who_is_missing(call: str, words: str) -> None:
    with wl.Cluster(servers=1, workers=2, engine="threads") as cluster:
        said, _ = cluster.run(late, call)
    assert said.startswith(words)
    assert "it waits for server-0: round 1 of" in said
    assert "waits for worker-1" in said
    assert "windlass/" not in said


def test_a_wait_for_a_first_value_names_who_was_to_give_it() -> None:
    def work(store: wl.Store) -> str:
        if store.rank == 0:
            store.barrier(timeout=60)  # until worker 1 has given up
            return ""
        with pytest.raises(wl.TimeoutError) as raised:
            store.create("w", [0.0])
        store.barrier(timeout=60)
        return str(raised.value)

    with wl.Cluster(servers=1, workers=2, engine="threads", timeout=1) as cluster:
        _, said = cluster.run(work)
    assert said.startswith("create('w'), which waits for rank 0's value, did not finish within 1.")
    assert said.endswith("no answer from server-0, which says: 'w' waits for its first value from rank 0")
