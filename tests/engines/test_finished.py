"""A worker that waits for one that has finished is told why: the reason that the other had comes first."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import windlass as wl


def _outlive_the_server(store: wl.Store, server: int) -> str:
    """Each waits for the other's push on a key of its own. Rank 0 kills the server, and takes in nothing more until
    rank 1 has finished because of it."""
    for key in "wv":
        store.create(key, np.zeros(4, np.float32), update="add")
    try:
        store.pushpull({"w": np.ones(4, np.float32), "v": np.ones(4, np.float32)})
        store.barrier()
        task = store.pushpull("wv"[store.rank], np.ones(4, np.float32), wait=False)
        if store.rank == 0:
            store._client._turn.take()
            try:
                os.kill(server, signal.SIGKILL)
                deadline = time.monotonic() + 60
                while 1 not in store.finished_ranks and time.monotonic() < deadline:
                    time.sleep(0.01)
            finally:
                store._client._turn.give()
        task.wait()
    except wl.ClusterError as error:
        return str(error)
    return ""


def test_who_waits_for_one_that_finished_because_a_server_died_hears_of_the_server() -> None:
    with wl.Cluster(servers=1, workers=2, timeout=100.0) as cluster:
        server = next(node.pid for node in cluster.nodes() if node.role == "server")
        for told in cluster.run(_outlive_the_server, server):
            assert "were held by server-0, which died" in told
