"""Checkpoints that a cluster saves by itself, and goes back to when a server is lost."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import windlass as wl
from windlass.checkpoint import AfterRound, Reader, list_checkpoints
from windlass.engines._saving import SavePlan

SIZE = 20_000


def _count(store: wl.Store, rounds: int, pause: float = 0.0) -> float:
    store.create("w", np.zeros(SIZE, np.float32), update="add")
    for _ in range(rounds):
        store.push("w", np.ones(SIZE, np.float32)).wait()
        time.sleep(pause)
    return float(store.pull("w").min())


def test_a_run_is_saved_every_so_often_and_at_its_end(tmp_path):
    with wl.Cluster(engine="threads", workers=2, checkpoint=tmp_path, checkpoint_every=0.1, keep=2) as cluster:
        assert cluster.last_checkpoint == ""
        cluster.run(_count, 20, 0.03)
        listed = list_checkpoints(tmp_path)
        assert len(listed) == 2
        assert listed[0].manifest.step < 20
        assert cluster.last_checkpoint == listed[-1].path
        assert Reader(tmp_path).keys["w"].moment == AfterRound(20)
        assert Reader(tmp_path).array("w").min() == 40.0


def test_without_an_interval_a_run_is_saved_when_it_is_over_and_not_when_it_failed(tmp_path):
    def fail(store):
        _count(store, 1)
        raise ValueError("no")

    with wl.Cluster(engine="threads", checkpoint=tmp_path) as cluster:
        with pytest.raises(ValueError, match="no"):
            cluster.run(fail)
        assert cluster.last_checkpoint == ""
        cluster.run(_count, 2)
        assert cluster.last_checkpoint == f"{tmp_path}/step-000003"


def test_what_nobody_has_pushed_to_pushes_out_no_checkpoint(tmp_path):
    def work(store):
        _count(store, 3)
        store.save(tmp_path)
        store.delete("w")
        store.create("v", np.zeros(SIZE, np.float32), update="add")
        time.sleep(0.3)

    with wl.Cluster(engine="threads", checkpoint=tmp_path, checkpoint_every=0.05, keep=1) as cluster:
        cluster.run(work)
        store = cluster.store()
        assert store._saver.save(store._every_name, tmp_path, needs_updates=True) == ""
    assert [list(Reader(one.path).keys) for one in list_checkpoints(tmp_path)] == [["w"]]


def test_what_cannot_be_saved_is_warned_of_and_the_run_goes_on(tmp_path, caplog):
    place = tmp_path / "place"
    with wl.Cluster(engine="threads", checkpoint=place, checkpoint_every=0.05) as cluster:
        place.rmdir()
        place.touch()

        def num_warned() -> int:
            texts = [record.getMessage() for record in caplog.records]
            return sum("no checkpoint was saved to" in text and "tried again in 0.05 s" in text for text in texts)

        def work(store: wl.Store) -> bool:
            pushes, deadline = 0, time.monotonic() + 60
            while num_warned() < 2 and time.monotonic() < deadline:
                pushes += 1
                _count(store, 1, 0.01)
            return float(store.pull("w").min()) == pushes

        cluster.run(_then_free, work, place)
        assert num_warned() >= 2
        assert cluster.last_checkpoint.startswith(f"{place}/step-")


def _then_free(store: wl.Store, work: Callable[[wl.Store], bool], place: Path) -> None:
    """The place is free again before the end."""
    assert work(store)
    place.unlink()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_whose_last_save_fails_raises_why_and_names_the_last_good_checkpoint(tmp_path, is_first):
    place, other = tmp_path / "place", tmp_path / "other"

    def work(store):
        _count(store, 1)
        if not is_first:
            store.save(other)
        place.rmdir()
        place.touch()

    with wl.Cluster(engine="threads", checkpoint=place) as cluster:
        with pytest.raises(wl.ClusterError) as caught:
            cluster.run(work)
        told = str(caught.value)
        assert told.startswith(f"the run ended well, but could not be saved to '{place}': ")
        assert "expected a directory for checkpoints, got a file; " in told
        good = "there is no checkpoint of it" if is_first else f"the last good checkpoint is '{other}/step-000001'"
        assert f"; {good}; the keys have their values until the cluster is closed" in told
        assert cluster.store().save(other) == f"{other}/step-000001"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint_every": 3}, "checkpoint_every expects checkpoint="),
        ({"checkpoint": "x", "checkpoint_every": 0}, "checkpoint_every expects seconds above 0, or None, got 0"),
        ({"checkpoint": "x", "keep": 0}, "keep expects a whole number of at least 1"),
        ({"checkpoint": 3}, "checkpoint expects a path or a URL, got 3"),
        ({"checkpoint": __file__}, "checkpoint expects a place to save to: .* cannot be made: File exists"),
        ({"load": 3}, "load expects a path or a URL, got 3"),
        ({"load": __file__}, "load expects a checkpoint, or a directory of them, got a file"),
        ({"load": "nowhere/step-000003"}, "load expects a checkpoint: there is none at 'nowhere/step-000003'"),
        ({"on_server_loss": "retry"}, "on_server_loss expects 'fail' or 'restore', got 'retry'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(options, text):
    with pytest.raises(wl.UsageError, match=text):
        wl.Cluster(engine="threads", **options)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_cluster_goes_on_with_the_newest_checkpoint_and_begins_anew_where_there_is_none(tmp_path, caplog, engine):
    options = {"engine": engine, "workers": 2, "checkpoint": tmp_path, "load": tmp_path}
    with wl.Cluster(**options) as cluster:
        assert cluster.run(_count, 2) == [4.0] * 2
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"there is no checkpoint in '{tmp_path}' yet: this run begins anew"]
    with wl.Cluster(**options, servers=2) as cluster:
        assert cluster.last_checkpoint == f"{tmp_path}/step-000002"
        assert cluster.run(_count, 2) == [8.0] * 2
        assert cluster.last_checkpoint == f"{tmp_path}/step-000004"
    assert [record.getMessage() for record in caplog.records] == said
    with wl.Cluster(engine=engine, workers=2, load=tmp_path / "step-000002") as cluster:
        assert cluster.run(_count, 1) == [6.0] * 2


def test_a_place_that_is_there_only_with_its_first_file_is_nothing_to_warn_of(tmp_path):
    said = []
    assert SavePlan(f"{tmp_path}/later").to_load(said.append) == ""  # as on an object store
    assert said == []


def test_a_run_that_begins_anew_beside_older_checkpoints_is_warned_of(tmp_path, caplog):
    for _ in range(2):
        with wl.Cluster(engine="threads", checkpoint=tmp_path, keep=2) as cluster:
            cluster.run(_count, 3)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        f"there are checkpoints in '{tmp_path}', the newest is '{tmp_path}/step-000003'; this run begins anew, "
        f"unless it loads one itself, and keep=2 will remove the oldest; load='{tmp_path}' goes on with the newest"
    )


# --- a server is lost -------------------------------------------------------------------------------------------------


def _lose(store: wl.Store, pid: int, flag: Path) -> list[float]:
    """Four rounds, a save, three more; then, the first time, a server dies."""
    store.create("w", np.zeros(SIZE, np.float32), update="add")
    store.create("v", np.zeros(SIZE, np.float32), update="add")
    seen = [float(store.pull("w").max())]
    for step in range(7):
        store.push({"w": np.ones(SIZE, np.float32), "v": np.ones(SIZE, np.float32)}).wait()
        if step == 3 and store.rank == 0:
            store.save(flag.parent / "saved")
        store.barrier()
    if store.rank == 0 and not flag.exists():
        flag.touch()
        os.kill(pid, signal.SIGKILL)
    for _ in range(3):
        store.push({"w": np.ones(SIZE, np.float32), "v": np.ones(SIZE, np.float32)}).wait()
    return [*seen, float(store.pull("w").min()), float(store.pull("w").max())]


def _pid(cluster: wl.Cluster) -> int:
    return next(node.pid for node in cluster.nodes() if node.name == "server-1")


def test_a_lost_server_is_an_error_that_names_the_range_and_the_last_checkpoint(tmp_path):
    with wl.Cluster(servers=2, workers=2, chunk_bytes=16 << 10) as cluster:
        with pytest.raises(wl.LostRange) as caught:
            cluster.run(_lose, _pid(cluster), tmp_path / "flag")
        assert caught.value.checkpoint == cluster.last_checkpoint == f"{tmp_path}/saved/step-000004"
    assert f"load the last checkpoint, '{tmp_path}/saved/step-000004', or have that done" in str(caught.value)
    assert caught.value.server == "server-1"


def test_a_lost_server_without_a_checkpoint_is_an_error_that_says_so(tmp_path):
    def work(store, pid):
        _count(store, 1)
        os.kill(pid, signal.SIGKILL)
        _count(store, 100)

    text = "on_server_loss='restore' has nothing to go back to, no checkpoint was saved yet: begin anew, with"
    with (
        wl.Cluster(servers=2, chunk_bytes=16 << 10, on_server_loss="restore") as cluster,
        pytest.raises(wl.LostRange, match=text),
    ):
        cluster.run(work, _pid(cluster))


def test_with_restore_the_run_begins_again_from_the_last_checkpoint(tmp_path, caplog):
    options = {"servers": 2, "workers": 2, "chunk_bytes": 16 << 10, "on_server_loss": "restore"}
    with wl.Cluster(**options, checkpoint=tmp_path / "saved") as cluster:
        with caplog.at_level(logging.WARNING, "windlass"):
            found = cluster.run(_lose, _pid(cluster), tmp_path / "flag")
        assert found == [[8.0, 28.0, 28.0]] * 2  # four rounds of two workers were in it; ten more
        assert cluster.store().version("w") == 14
        assert cluster.last_checkpoint == f"{tmp_path}/saved/step-000014"
        assert sorted(node.name for node in cluster.nodes() if node.role == "server" and node.state == "alive") == [
            "server-0", "server-2",
        ]  # fmt: skip
    told = [record.getMessage() for record in caplog.records if "going back to" in record.getMessage()]
    assert len(told) == 1
    assert f"going back to '{tmp_path}/saved/step-000004', and the function is run again" in told[0]


def test_a_server_that_is_lost_again_and_again_ends_in_an_error(tmp_path):
    def work(store):
        _count(store, 1)
        if store.rank == 0:
            name, pid = next(
                (node.name, node.pid) for node in store._client.state.nodes.values() if node.role == "server"
            )
            os.kill(pid, signal.SIGKILL)
        _count(store, 100)
        return name

    with wl.Cluster(chunk_bytes=16 << 10, on_server_loss="restore") as cluster:
        cluster.run(_count, 2)
        cluster.store().save(tmp_path)
        with pytest.raises(wl.LostRange) as caught:
            cluster.run(work)
        told = str(caught.value)
        back = f"goes back to the last checkpoint, '{cluster.last_checkpoint}', at most three times a run"
        assert f"on_server_loss='restore' {back}" in told
        assert "or have that done" not in told  # it is done already
        assert sum(node.role == "server" for node in cluster.nodes()) == 4  # one, and three in its place


def _lose_at_last(store: wl.Store, pid: int, flag: Path, saves: bool) -> float:
    """The first time, a server dies after the last push: nobody needs it any more, but whoever saves."""
    result = _count(store, 2)
    if saves and not flag.exists():
        store.save(flag.parent / "saved")
    if not flag.exists():
        flag.touch()
        os.kill(pid, signal.SIGKILL)
    return result


@pytest.mark.parametrize(("on_server_loss", "saves"), [("fail", True), ("restore", False)])
def test_what_is_lost_before_the_last_save_is_an_error_of_the_run(tmp_path, on_server_loss, saves):
    options = {"servers": 2, "chunk_bytes": 16 << 10, "on_server_loss": on_server_loss}
    with (
        wl.Cluster(**options, checkpoint=tmp_path / "saved") as cluster,
        pytest.raises(wl.LostRange, match=r"held by (server-1|a server), which died"),
    ):
        cluster.run(_lose_at_last, _pid(cluster), tmp_path / "flag", saves)


def test_what_is_lost_before_the_last_save_is_made_again_from_the_last_checkpoint(tmp_path):
    options = {"servers": 2, "chunk_bytes": 16 << 10, "on_server_loss": "restore"}
    with wl.Cluster(**options, checkpoint=tmp_path / "saved") as cluster:
        assert cluster.run(_lose_at_last, _pid(cluster), tmp_path / "flag", True) == [4.0]
        assert cluster.last_checkpoint == f"{tmp_path}/saved/step-000004"
