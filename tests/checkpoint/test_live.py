"""Saving while everybody goes on pushing, in real clusters: one round, and nothing that was acknowledged is missing."""

from __future__ import annotations

import random
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windlass as wl
from tests.faults.scenes import TRANSPORTS, cluster, script, somewhere
from windlass.checkpoint import AfterRound, Reader, latest, verify
from windlass.server.state import ServerState
from windlass.testing.havoc import Hand, Havoc
from windlass.testing.mutants import FreezesNow, SavesWhatChanges
from windlass.testing.rig import Report, perform
from windlass.worker.checkpoint import read_slots
from windlass.worker.snapshot import Announcer

LARGE = 1_500_000  # elements: six slots of a megabyte


def _frozen(there: wl.Cluster) -> int:
    return sum(server["frozen"] for server in there.store().status()["servers"].values())


def _save_often(on: wl.Cluster, seed: int, root: Path, num_saves: int = 6) -> Report:
    def plan(hand: Hand) -> None:
        somewhere(hand, seed, between=(0.05, 0.05))
        for _ in range(num_saves):
            hand.save(str(root))

    return perform(on, script(seed, clock=80), plan)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_save_under_pushes_is_one_round_of_each_key_and_has_all_that_was_acknowledged(transport, tmp_path):
    with cluster(transport, workers=4) as there:
        report = _save_often(there, 1, tmp_path)
        assert _frozen(there) == 0
    assert report.errors == ()
    assert report.verdict.ok, report.verdict.reason
    during = [save for save in report.saves if save.began < report.ended]
    rounds = [Reader(save.path).keys["sequential-1"].moment for save in during]
    assert len(set(rounds)) > 1
    assert verify(Reader(during[-1].path)) == []


def test_a_server_that_dies_while_a_save_is_under_way_tears_nothing(tmp_path):
    def plan(hand: Hand) -> None:
        somewhere(hand, 2, between=(0.1, 0.3))
        hand.save(str(tmp_path))
        hand.kill(hand.rng.choice(hand.servers()))
        for _ in range(3):
            hand.save(str(tmp_path))

    with cluster("shm", workers=4) as there:
        report = perform(there, script(2, clock=80), plan)
    assert (report.errors, report.num_during("kill")) == ((), 1)
    assert report.verdict.ok, report.verdict.reason
    killed = report.shots[0].at
    assert any(save.began < report.ended and save.ended > killed for save in report.saves)
    saved = Reader(report.saves[0].path)
    for servers, replicas in ((1, 0), (4, 2)):
        with cluster("threads", servers=servers, replicas=replicas, workers=1) as other:
            store = other.store()
            store.load(saved.path)
            for name in saved.keys:
                assert np.array_equal(store.pull(name), saved.array(name))


def _save_around_a_death(there: wl.Cluster, root: Path) -> str:
    """Everything is frozen; then the server that holds the first shard is killed, before anything is read."""
    saver = there.store()._saver
    read, calls = saver._slots, []

    def kill_first(snapshot, key):
        if not calls:
            chain = there.store().status()["keys"][key.spec.name]["shards"][0]
            Hand(there, random.Random(0)).kill(chain[0])
        calls.append(key.spec.name)
        yield from read(snapshot, key)

    saver._slots = kill_first
    try:
        path = there.store().save(str(root))
    finally:
        del saver._slots
    assert len(calls) > 1  # it had to begin anew
    return path


def test_what_a_dead_server_kept_frozen_makes_the_save_begin_anew(tmp_path):
    def work(store):
        store.create("w", np.zeros(LARGE, np.float32), update=wl.Adam(lr=0.1))
        for _ in range(3):
            store.push("w", np.ones(LARGE, np.float32)).wait()

    with cluster("shm", workers=2, chunk_bytes=1 << 20) as there:
        there.run(work)
        path = _save_around_a_death(there, tmp_path)
        saved = Reader(path)
        assert saved.keys["w"].moment == AfterRound(3)
        assert np.array_equal(saved.array("w"), there.store().pull("w"))
        assert _frozen(there) == 0


# --- copy on write ----------------------------------------------------------------------------------------------------


def _count(store, rounds):
    store.create("w", np.zeros(LARGE, np.float32), update="add")
    for _ in range(rounds):
        store.push("w", np.ones(LARGE, np.float32)).wait()


def _read_later(kind: type[ServerState]) -> tuple[int, list[float]]:
    """Freeze a key, let its workers push on, read it then. Gives the round it was frozen after, and the values."""
    with cluster("shm", workers=2, chunk_bytes=1 << 20, _server_state=kind) as there:
        there.run(_count, 3)
        saver = there.store()._saver
        with saver._snapshot(Announcer(), ["w"]) as (snapshot, keys):
            rounds = saver.drive(snapshot.freeze(keys))
            there.run(_count, 4)
            found = [saved.arrays["value"] for saved in saver.drive(snapshot.read(keys[0], range(6)))]
        assert _frozen(there) == 0
        assert float(there.store().pull("w").min()) == 14.0
        return rounds[keys[0]], sorted({float(value) for slot in found for value in slot})


def test_what_is_being_saved_does_not_change_while_pushes_go_on():
    assert _read_later(ServerState) == (3, [6.0])


def test_a_server_that_does_not_copy_on_write_is_found_out():
    rounds, values = _read_later(SavesWhatChanges)
    assert rounds == 3
    assert values != [6.0]


def _freeze_ahead(kind: type[ServerState]) -> tuple[int, list[float]]:
    """Announce a round that is still to come, and let the workers come to it and go on. As `_read_later`."""
    found: list[np.ndarray] = []
    rounds: list[int] = []
    is_announced = threading.Event()

    def announcing(steps: Any) -> Any:
        """The steps of a freeze: a look at the round, then the announcement of another, which servers answer."""
        answers = None
        for step in count():
            try:
                answers = yield steps.send(answers)
            except StopIteration as end:
                return end.value
            if step == 1:
                is_announced.set()

    def plan(hand: Hand) -> None:
        saver = there.store()._saver
        with saver._snapshot(Announcer(margin=2), ["w"]) as (snapshot, keys):
            rounds.extend(saver.drive(announcing(snapshot.freeze(keys))).values())
            hand.await_version("w", 8)
            found.extend(saved.arrays["value"] for saved in saver.drive(snapshot.read(keys[0], range(6))))

    with cluster("tcp", workers=2, chunk_bytes=1 << 20, _server_state=kind) as there:
        there.run(_count, 3)
        with Havoc(there, plan, 0):
            assert is_announced.wait(60)
            there.run(_count, 6)
    return rounds[0], sorted({float(value) for slot in found for value in slot})


def test_a_snapshot_waits_for_the_round_that_was_announced():
    assert _freeze_ahead(ServerState) == (5, [10.0])


def test_a_server_that_freezes_without_minding_the_round_is_found_out():
    assert _freeze_ahead(FreezesNow) == (5, [6.0])


# --- keys that are pushed together, and keys that are not -------------------------------------------------------------


def test_keys_that_are_pushed_together_are_saved_after_the_same_round(tmp_path):
    def work(store, rounds):
        for name in "abc":
            store.create(name, np.zeros(4_000, np.float32), update="add")
        store.create("once", np.zeros(10, np.float32), update="add")
        store.push("once", np.ones(10, np.float32)).wait()
        for _ in range(rounds):
            for name in "abc":
                store.push(name, np.ones(4_000, np.float32)).wait()

    def plan(hand: Hand) -> None:
        hand.await_version("c", 5)
        for _ in range(3):
            hand.save(str(tmp_path))

    with cluster("shm", workers=2) as there, Havoc(there, plan, 0) as hand:
        there.run(work, 80)
    assert len(hand.saves) == 3
    for save in hand.saves:
        saved = Reader(save.path)
        rounds = {name: saved.keys[name].moment.round for name in ("a", "b", "c", "once")}
        assert rounds["a"] == rounds["b"] == rounds["c"] > 4
        assert rounds["once"] == 1
        for name in "abc":
            assert set(saved.array(name).tolist()) == {2.0 * rounds[name]}


def test_a_key_that_lags_behind_and_is_not_pushed_any_more_is_saved_as_it_is(tmp_path):
    store = wl.Store()
    for name, rounds in (("first", 5), ("second", 4), ("other", 1)):
        store.create(name, np.zeros(3, np.float32), update="add")
        for _ in range(rounds):
            store.pushpull(name, np.ones(3, np.float32))
    began = time.monotonic()
    saved = Reader(store.save(tmp_path))
    assert time.monotonic() - began < 5.0
    assert {name: key.moment.round for name, key in saved.keys.items()} == {"first": 5, "second": 4, "other": 1}
    assert saved.array("second").tolist() == [4.0] * 3


def test_a_worker_saves_while_the_others_push_on(tmp_path):
    def work(store):
        store.create("hits", np.zeros(50_000, np.int64), update="add", consistency=wl.Eventual())
        mine = np.zeros(50_000, np.int64)
        mine[store.rank :: 4] = 1
        for step in range(40):
            store.push("hits", mine).wait()
            if store.rank == 0 and step % 10 == 5:
                path = Reader(store.save(tmp_path, name=f"at-{step}"))
                assert set(path.array("hits")[::4].tolist()) == {step + 1}

    with cluster("shm", workers=4, chunk_bytes=64 << 10) as there:
        there.run(work)
        assert _frozen(there) == 0


# --- counting on ------------------------------------------------------------------------------------------------------


def test_rounds_count_on_in_another_cluster_and_in_every_process_of_it(tmp_path):
    def work(store, rounds):
        store.create("w", np.zeros(30_000, np.float32), update=wl.SGD(lr=1.0, momentum=0.5))
        store.create("h", np.zeros(30_000, np.float32), update="add", consistency=wl.Bounded(2))
        for _ in range(rounds):
            store.push("w", np.ones(30_000, np.float32)).wait()
            store.push("h", np.ones(30_000, np.float32)).wait()
        return store.version("w")

    with cluster("threads", workers=2) as there:
        there.run(work, 4)
        there.store().save(tmp_path)
    with cluster("shm", workers=3, servers=2) as there:
        there.store().load(tmp_path)
        assert there.run(work, 2) == [6] * 3
        assert there.store().save(tmp_path) == f"{tmp_path}/step-000006"
        there.add_server()
        there.remove_server("server-0")  # what it counted goes with its shards
        assert there.run(work, 1) == [7] * 3
        path = there.store().save(tmp_path)
    assert path == latest(tmp_path) == f"{tmp_path}/step-000007"
    assert str(Reader(path).keys["h"].moment).endswith("(version 17 or later)")


def test_one_process_may_read_and_save_again_and_again(tmp_path):
    store = wl.Store()
    store.create("w", np.zeros(3, np.float32), update="add")
    for step in range(1, 4):
        store.pushpull("w", np.ones(3, np.float32))
        assert store.save(tmp_path) == f"{tmp_path}/step-{step:06d}"
        _, (slot,) = read_slots(store._client, "w")
        assert slot.arrays["value"].tolist() == [float(step)] * 3
