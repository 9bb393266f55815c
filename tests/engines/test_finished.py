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
                while store._client.doubt is None and time.monotonic() < deadline:
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


def _wait_in_a_group(store: wl.Store, server: int) -> str:
    """The same, but rank 0 waits for rank 1 in a group: it would not hear of the server otherwise."""
    store.create("w", np.zeros(4, np.float32), update="add")
    group = wl.Group(store)
    try:
        store.pushpull("w", np.ones(4, np.float32))
        group.barrier()
        if store.rank == 1:
            store.pushpull("w", np.ones(4, np.float32))
            return ""
        store._client._turn.take()
        try:
            os.kill(server, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while store._client.doubt is None and time.monotonic() < deadline:
                time.sleep(0.01)
            named = store.finished_ranks
        finally:
            store._client._turn.give()
        assert named == frozenset(), "rank 1 has finished for what is not known here yet"
        group.barrier()
    except wl.ClusterError as error:
        return str(error)
    return ""


def test_who_waits_in_a_group_for_one_that_finished_because_a_server_died_hears_of_the_server() -> None:
    with wl.Cluster(servers=1, workers=2, timeout=100.0) as cluster:
        server = next(node.pid for node in cluster.nodes() if node.role == "server")
        for told in cluster.run(_wait_in_a_group, server):
            assert "were held by server-0, which died" in told


def _leave_a_group(store: wl.Store) -> str:
    group = wl.Group(store)
    try:
        if store.rank == 0:
            group.barrier()
    except wl.UsageError as error:
        return str(error)
    return ""


def test_who_waits_in_a_group_for_one_that_just_finished_hears_of_that() -> None:
    with wl.Cluster(servers=1, workers=2, timeout=100.0) as cluster:
        assert "has finished its function and does not come to it" in cluster.run(_leave_a_group)[0]
