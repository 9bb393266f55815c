"""Every planted mistake about replicas shows in real processes, at the moment it is made for; the real server passes at
the same moment."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import windlass as wl
from tests.busy import is_within
from tests.faults.scenes import cluster
from windlass.server.state import ServerState
from windlass.testing.havoc import CutOff, Deaf, Hand, Havoc, InheritsEarlyFromCutOff, is_over
from windlass.testing.mutants import MUTANTS, AcksUnreplicated, ClosesHalf, CountsResends, HeedsDeposed
from windlass.testing.rig import Script, bits, perform

LARGE_BYTES = 32 << 20
"""Far more than the buffers of a socket hold: what is sent to somebody who does not read is not on its way."""


def _chain(there: wl.Cluster, key: str) -> list[int]:
    """The pids of the servers that hold a key of one shard, head first."""
    pids = {node.name: node.pid for node in there.nodes()}
    (chain,) = there.store().status()["keys"][key]["shards"]
    return [pids[name] for name in chain]


def _await(path: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not happen"
        time.sleep(0.002)


# --- acknowledged, and not replicated ---------------------------------------------------------------------------------


def _push_beside_a_deaf_replica(kind: type[ServerState], consistency: wl.types.Consistency) -> tuple[bool, float]:
    """The successor is stopped, the worker pushes, the head is killed, the successor goes on as the head. Gives whether
    the push was acknowledged before the head died, and its part of the value afterwards."""
    size = LARGE_BYTES // 4

    def prepare(store: wl.Store) -> None:
        store.create("w", np.zeros(size, np.float32), update="add", consistency=consistency)
        store.push("w", np.ones(size, np.float32)).wait()

    def work(store: wl.Store, head: int, successor: int) -> bool:
        os.kill(successor, signal.SIGSTOP)
        try:
            task = store.push("w", np.ones(size, np.float32))
            try:
                task.wait(timeout=2.0)
                is_acked = True
            except wl.TimeoutError:
                is_acked = False
            os.kill(head, signal.SIGKILL)
        finally:
            os.kill(successor, signal.SIGCONT)
        task.wait()
        return is_acked

    options = {"servers": 2, "workers": 1, "lease_seconds": 8.0, "chunk_bytes": LARGE_BYTES, "_server_state": kind}
    with cluster("tcp", **options) as there:
        there.run(prepare)
        head, successor = _chain(there, "w")
        (is_acked,) = there.run(work, head, successor)
        value = there.store().pull("w")
        assert is_over(head)
        assert not is_over(successor)
    assert value.min() == value.max()
    return is_acked, float(value[0]) - 1


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Eventual()], ids=repr)
def test_a_push_is_acknowledged_only_when_the_chain_has_it(consistency: wl.types.Consistency) -> None:
    assert _push_beside_a_deaf_replica(ServerState, consistency) == (False, 1.0)


def test_a_server_that_acknowledges_before_its_chain_has_the_push_loses_it() -> None:
    is_acked, part = _push_beside_a_deaf_replica(AcksUnreplicated, wl.Eventual())
    assert is_acked
    assert part < 1.0  # nor was the push before it safe


# --- entries of a head that is out ------------------------------------------------------------------------------------


def _wake_a_head_with_pushes_in_its_ears(kind: type[ServerState], place: Path) -> list[float]:
    """The head is stopped. Worker 0 pushes three times, which wait in the head's socket, and stops, too. The replica
    takes over and counts a push of worker 1. Then the head wakes up, reads what waited, and sends it down its old
    chain, as number n + 1, n + 2, n + 3, of which the replica has n + 1. At last worker 0 goes on and sends its pushes
    again. Gives the value: thousands are worker 1's, ones, tens and hundreds worker 0's."""

    def work(store: wl.Store, head: int) -> list[float] | None:
        store.create("w", np.zeros(4, np.float32), update="add", consistency=wl.Eventual())
        store.barrier()
        if store.rank == 0:
            os.kill(head, signal.SIGSTOP)
            tasks = [store.push("w", np.full(4, 10.0**n, np.float32)) for n in range(3)]
            deadline = time.monotonic() + 20
            while store._client.undisturbed(lambda: store._client.hub.has_unsent) and time.monotonic() < deadline:
                time.sleep(0.002)
            (place / "pushed").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
            store.wait(*tasks)
        else:
            _await(place / "pushed")
            store.version("w")  # answered by the new head: the old one gets nothing of this worker
            store.push("w", np.full(4, 1000.0, np.float32)).wait()
            (place / "taken over").touch()
            _await(place / "all awake")
        store.barrier()
        return np.array(store.pull("w")).tolist()

    def plan(hand: Hand) -> None:
        hand.wait_until((place / "taken over").exists, "the replica has taken over")
        os.kill(head, signal.SIGCONT)
        hand.wait_until(lambda: is_over(head), "the old head has read what waited for it, and heard that it is out")
        os.kill(worker, signal.SIGCONT)
        (place / "all awake").touch()

    with cluster("tcp", servers=2, workers=2, _server_state=kind) as there:
        there.run(lambda store: store.create("w", np.zeros(4, np.float32), update="add", consistency=wl.Eventual()))
        head, _ = _chain(there, "w")
        worker = next(node.pid for node in there.nodes() if node.name == "worker-0")
        with Havoc(there, plan, 0):
            first, second = there.run(work, head)
        assert first == second
    return list(first)


def test_entries_of_a_head_that_is_out_are_not_taken(tmp_path: Path) -> None:
    assert _wake_a_head_with_pushes_in_its_ears(ServerState, tmp_path) == [1111.0] * 4


def test_a_server_that_takes_entries_of_a_head_that_is_out_loses_a_push(tmp_path: Path) -> None:
    found = _wake_a_head_with_pushes_in_its_ears(HeedsDeposed, tmp_path)
    assert found == [1110.0] * 4  # the first of worker 0 is gone, though acknowledged


# --- a head too many --------------------------------------------------------------------------------------------------


def _read_from_a_head_that_does_not_know(kind: type[ServerState], place: Path) -> tuple[float, float]:
    """The manager and the head cannot reach each other, so the replica is the new head. Worker 0 has not heard of it,
    worker 1 has: it pushes, and when that is acknowledged, worker 0 pulls. Gives what it sees, and how long worker 1
    had to wait."""

    def work(store: wl.Store, head: int) -> float:
        store.create("w", np.zeros(4, np.float32), update="add", consistency=wl.Eventual())
        store.push("w", np.ones(4, np.float32)).wait()
        store.barrier()
        if store.rank == 1:
            _await(place / "deaf")
            began = time.monotonic()
            os.kill(head, signal.SIGUSR1)
            generation = store._client.state.generation
            while store._client.undisturbed(lambda: store._client.state.generation) == generation:
                store.version("w")
            store.push("w", np.ones(4, np.float32)).wait()
            (place / "acknowledged").touch()
            waited = time.monotonic() - began
            _await(place / "over")
            return waited
        ears = Deaf(store)
        (place / "deaf").touch()
        _await(place / "acknowledged")
        task = store.pull("w", wait=False)
        deadline = time.monotonic() + 0.5
        while not task.is_done and time.monotonic() < deadline:
            time.sleep(0.002)
        assert ears.hear() >= 1
        value = float(task.wait()[0])
        (place / "over").touch()
        return value

    with cluster("tcp", servers=2, workers=2, lease_seconds=2.0, _server_state=kind) as there:
        there.run(lambda store: store.create("w", np.zeros(4, np.float32), update="add", consistency=wl.Eventual()))
        head, _ = _chain(there, "w")
        value, waited = there.run(work, head)
        assert [node.state for node in there.nodes() if node.pid == head] == ["gone"]
        assert not is_over(head)  # nor does it know
    return value, waited


def test_who_inherits_waits_until_the_old_head_cannot_answer(tmp_path: Path) -> None:
    value, waited = _read_from_a_head_that_does_not_know(CutOff, tmp_path)
    assert value == 3.0
    assert waited > 1.0


def test_a_server_that_inherits_early_leaves_a_head_too_many(tmp_path: Path) -> None:
    value, waited = _read_from_a_head_that_does_not_know(InheritsEarlyFromCutOff, tmp_path)
    assert value == 2.0  # though the third push was acknowledged before it asked
    assert is_within(waited, 1.0)


# --- under a script ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ClosesHalf, CountsResends])
def test_a_mistake_of_one_server_shows_in_a_chain_too(kind: type[ServerState]) -> None:
    """By TCP a push of a shard with several slots comes in several parts."""

    def plan(hand: Hand) -> None:
        hand.await_version("w", 5)
        hand.kill(hand.rng.choice(hand.servers()))

    with cluster("tcp", _server_state=kind) as there:
        keys = (bits("w", wl.Sequential(), num_slots=24), bits("v", wl.Eventual(), num_slots=24))
        report = perform(there, Script(keys, clock=20, seed=21, cuts=8, lag_seconds=0.008), plan)
    broken = {violation.rule for violation in report.verdict.violations}
    assert broken & MUTANTS[kind.__name__].rules
    assert report.num_during("kill") == 1
