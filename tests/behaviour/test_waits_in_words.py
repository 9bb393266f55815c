"""A wait that ends, or warns, is told in the words of its caller: the store's own keys have names that mean nothing."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
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


def push_beside_a_late_one(store: wl.Store, consistency: wl.types.Consistency) -> None:
    """Worker 1 pushes when worker 0 has waited for it, and warned."""
    store.create("w", [0.0], update="add", consistency=consistency)
    store.create("warned", [0.0], update="add", consistency=wl.Eventual())
    if store.rank == 0:
        told = threading.Thread(target=lambda: (time.sleep(0.7), store.push("warned", np.ones(1))))
        told.start()
        for _ in range(3):
            store.pushpull("w", np.ones(1))
        told.join()
    else:
        while not store.pull("warned")[0]:
            time.sleep(0.01)
        for _ in range(3):
            store.pushpull("w", np.ones(1))


@pytest.mark.parametrize(
    ("consistency", "words"),
    [
        (wl.Sequential(), r"pull 1 of 'w' waits for server-0: round 1 of 'w' waits for worker-1$"),
        (wl.Bounded(2), r"pull 3 of 'w' waits for server-0: 'w' waits for worker-1, 3 behind \(delay 2\)$"),
    ],
    ids=repr,
)
def test_a_long_wait_warns_with_call_time_key_worker_and_gap(
    consistency: wl.types.Consistency, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with wl.Cluster(servers=1, workers=2, engine="threads", warn_seconds=0.3) as cluster, caplog.at_level("WARNING"):
        cluster.run(push_beside_a_late_one, consistency)
    said = [record.getMessage() for record in caplog.records if "so far" in record.getMessage()]
    assert any(re.match(r"pushpull\('w'\) has taken \d+ s so far: " + words, text) for text in said), said


def test_a_wait_for_a_server_that_is_silent_names_it_when_it_warns_and_when_it_ends(tmp_path: Path) -> None:
    """There is no replica, so nobody can take its place, and it is waited for."""

    def work(store: wl.Store, server: int) -> tuple[str, str]:
        store.create("w", [0.0], update="add")
        with (tmp_path / "log").open("w") as file:
            logging.getLogger("windlass").addHandler(logging.StreamHandler(file))
            os.kill(server, signal.SIGSTOP)
            try:
                with pytest.raises(wl.TimeoutError) as raised:
                    store.pushpull("w", np.ones(1), timeout=2.0)
            finally:
                os.kill(server, signal.SIGCONT)
        return str(raised.value), (tmp_path / "log").read_text()

    with wl.Cluster(servers=1, workers=1, warn_seconds=0.5) as cluster:
        server = next(node.pid for node in cluster.nodes() if node.role == "server")
        ((ended, warned),) = cluster.run(work, server)
    why = r"pull 1 of 'w' waits for server-0: which does not answer"
    assert re.match(r"pushpull\('w'\) did not finish within \d\.\d s: " + why, ended)
    assert re.match(r"pushpull\('w'\) has taken \d s so far: " + why, warned)
