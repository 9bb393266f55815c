"""Traces of real clusters: processes, a slow worker, a killed one; threads, an embedded store, the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import windlass as wl
from tests.cli.command import windlass
from tests.trace.checks import nodes_of, read, spans_of
from windlass import trace as wl_trace
from windlass.testing.rig import CHUNK_BYTES, Script, bits, perform
from windlass.worker.client import Client

SLOW_SECONDS = 0.3
STEPS = 4


def train(store, steps: int = STEPS):
    """Two keys, each on its own server; worker 1 is slow."""
    gradient = np.ones(50_000, np.float32)
    for key in ("a", "b"):
        store.create(key, np.zeros(50_000, np.float32), update=wl.SGD(lr=0.1))
    store.barrier()
    for step in range(steps):
        with store.trace("step", category="step", number=step):
            with store.trace("backward"):
                if store.rank == 1:
                    time.sleep(SLOW_SECONDS)
                task = store.push("a", gradient)
                time.sleep(0.005)
            store.pushpull("b", gradient)
            store.wait(task)
            store.pull("a")
    return type(store._client).__name__


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "out.json"
    with wl.Cluster(servers=2, workers=2, trace=path) as cluster:
        assert cluster.run(train) == ["TracedClient"] * 2
        assert not path.exists()
    return path


def test_each_node_shows_what_it_did(path):
    trace = read(path)
    assert nodes_of(trace) == ["server-0", "server-1", "worker-0", "worker-1"]
    assert trace["otherData"] == {"made_by": "windlass", "dropped": {}, "missing": []}

    for worker in ("worker-0", "worker-1"):
        pushes = spans_of(trace, worker, "push", "pushpull")
        assert [span["args"]["clock"] for span in pushes if span["name"] == "push a"] == [1, 2, 3, 4]
        assert [span["args"]["clock"] for span in pushes if span["name"] == "pushpull b"] == [1, 2, 3, 4]
        assert {span["args"]["bytes"] for span in pushes} == {200_000}
        assert len(spans_of(trace, worker, "pull")) == STEPS
        assert len(spans_of(trace, worker, "compute")) == STEPS
        assert [span["args"]["number"] for span in spans_of(trace, worker, "step")] == [0, 1, 2, 3]
        assert len(spans_of(trace, worker, "copy")) >= STEPS

    for server in ("server-0", "server-1"):
        updates = spans_of(trace, server, "reduce+update")
        assert [span["args"]["round"] for span in updates] == [1, 2, 3, 4]
        assert {(span["args"]["members"], span["args"]["bytes"]) for span in updates} == {(2, 400_000)}
        staged = [span for span in spans_of(trace, server, "stage") if span["args"]["bytes"]]
        assert len(staged) == 2 * STEPS
        assert len(spans_of(trace, server, "answer")) >= STEPS


def test_the_waits_name_the_slow_worker(path):
    trace = read(path)
    late = [span for span in spans_of(trace, "worker-0", "wait") if span["args"].get("key") == "b"]
    named = [span for span in late if span["args"]["on"] == "worker-1"]
    assert len(late) == STEPS
    assert len(named) >= STEPS - 1  # the machine may be so busy that worker-0 is late once
    assert all(span["args"]["behind_ms"] > 0 for span in named)
    assert sorted(span["args"]["behind_ms"] for span in named)[1] > SLOW_SECONDS * 1e3 / 2
    waited = wl_trace.waits(path)
    assert waited["worker-0"]["worker-1"] > waited["worker-1"].get("worker-0", 0.0)
    assert waited["worker-0"]["worker-1"] > SLOW_SECONDS * STEPS / 2


def test_what_a_server_updates_lies_between_what_arrived_and_what_was_answered(path):
    trace = read(path)
    clock_at: dict[tuple[str, int], list[dict]] = {}
    for server in ("server-0", "server-1"):
        for span in spans_of(trace, server, "stage"):
            clock_at.setdefault((span["args"]["key"], span["args"]["push"]), []).append(span)
    updates = spans_of(trace, "server-0", "reduce+update") + spans_of(trace, "server-1", "reduce+update")
    assert len(updates) == 2 * STEPS
    for update in updates:
        staged = clock_at[(update["args"]["key"], update["args"]["round"])]
        assert len(staged) == 2
        assert all(stage["ts"] + stage["dur"] <= update["ts"] + 0.01 for stage in staged)
        for worker in ("worker-0", "worker-1"):
            (push,) = (
                span
                for span in spans_of(trace, worker, "push", "pushpull")
                if (span["args"]["key"], span["args"]["clock"]) == (update["args"]["key"], update["args"]["round"])
            )
            assert push["ts"] < update["ts"]
            assert update["ts"] + update["dur"] < push["ts"] + push["dur"]


def test_overlap_is_what_the_trace_shows(tmp_path):
    path = tmp_path / "out.json"
    with wl.Cluster(servers=1, workers=1, trace=path) as cluster:

        def work(store):
            store.create("w", np.zeros(1000, np.float32), update="add")
            for _ in range(3):
                with store.trace("step", category="step"):
                    with store.trace("backward"):
                        store.push("w", np.ones(1000, np.float32))
                        time.sleep(0.03)
                    store.pull("w")

        cluster.run(work)
    rows = wl_trace.overlap(path)
    assert [(row.worker, row.step) for row in rows] == [("worker-0", step) for step in range(3)]
    for row in rows:
        assert 0.03 <= row.compute_seconds <= row.seconds
        assert 0 < row.hidden_seconds <= row.communication_seconds < row.seconds


def test_a_killed_worker_leaves_a_valid_trace_with_what_it_had_written(tmp_path):
    path = tmp_path / "out.json"

    def work(store):
        store.create("w", np.zeros(10, np.float32))
        for step in range(5):
            if step == 4 and store.rank == 1:
                time.sleep(0.3)
                store.version("w")  # the first span after a quarter of a second takes what was before it along
                os.kill(os.getpid(), signal.SIGKILL)
            store.pushpull("w", np.ones(10, np.float32))

    with wl.Cluster(servers=2, workers=2, trace=path) as cluster, pytest.raises(wl.ClusterError, match="SIGKILL"):
        cluster.run(work)
    trace = read(path)
    assert nodes_of(trace) == ["server-0", "server-1", "worker-0", "worker-1"]
    assert len(spans_of(trace, "worker-1", "pushpull")) == 4
    assert len(spans_of(trace, "worker-0", "pushpull")) == 5
    last = spans_of(trace, "worker-0", "wait")[-1]
    assert (last["args"]["on"], last["args"]["never_came"]) == ("worker-1", True)
    assert len(spans_of(trace, "server-0", "stage") + spans_of(trace, "server-1", "stage")) >= 9


def test_a_killed_server_leaves_a_valid_trace_and_pushes_that_end_in_an_error(tmp_path):
    path = tmp_path / "out.json"

    def work(store, victim: int = 0):
        store.create("w", np.zeros(10, np.float32))
        store.pushpull("w", np.ones(10, np.float32))
        if victim:
            os.kill(victim, signal.SIGKILL)
            store.pushpull("w", np.ones(10, np.float32))

    with wl.Cluster(servers=1, workers=1, trace=path) as cluster:
        (server,) = (node for node in cluster.nodes() if node.name == "server-0")
        cluster.run(work)
        with pytest.raises(wl.ClusterError):
            cluster.run(work, server.pid)
    trace = read(path)
    errors = [span["args"].get("error", "") for span in spans_of(trace, "worker-0", "pushpull")]
    assert [bool(error) for error in errors] == [False, False, True]
    assert "LostRange" in errors[-1]


def test_workers_that_take_the_seats_after_a_failed_run_have_their_own_place(tmp_path):
    path = tmp_path / "out.json.gz"
    with wl.Cluster(servers=1, workers=2, trace=path) as cluster:
        with pytest.raises(ZeroDivisionError):
            cluster.run(lambda store: 1 / 0)
        cluster.run(train, 1)
    trace = read(path)
    assert nodes_of(trace) == ["server-0", "worker-0", "worker-0 (2)", "worker-1", "worker-1 (2)"]
    assert not spans_of(trace, "worker-0", "push")
    assert len(spans_of(trace, "worker-0 (2)", "push")) == 1


@pytest.mark.parametrize("consistency", [wl.Sequential(), wl.Bounded(1), wl.Eventual()], ids=repr)
def test_threads_are_traced_under_every_consistency(tmp_path, consistency):
    path = tmp_path / "out.json"

    def work(store):
        store.create("w", np.zeros(10, np.float32), update="add", consistency=consistency)
        for _ in range(3):
            if store.rank == 1:
                time.sleep(0.15)
            store.push("w", np.ones(10, np.float32))
            store.pull("w")
        store.barrier()

    with wl.Cluster(servers=2, workers=2, engine="threads", trace=path) as cluster:
        cluster.run(work)
    trace = read(path)
    assert nodes_of(trace) == ["server-0", "server-1", "worker-0", "worker-1"]
    pulls = [span for span in spans_of(trace, "worker-0", "wait") if span["args"].get("key") == "w"]
    on = {span["args"]["clock"] for span in pulls if span["args"]["on"] == "worker-1"}
    expected = {wl.Sequential(): {1, 2, 3}, wl.Bounded(1): {2, 3}, wl.Eventual(): set()}[consistency]
    assert len(on ^ expected) <= 1  # one may be lost to a busy machine
    assert on <= expected
    members = [span["args"] for span in spans_of(trace, "server-0", "reduce+update")]
    members += [span["args"] for span in spans_of(trace, "server-1", "reduce+update")]
    if consistency == wl.Sequential():
        assert [one["round"] for one in members] == [1, 2, 3]
    else:
        assert sorted((one["of"], one["push"]) for one in members) == [
            (f"worker-{rank}", push) for rank in range(2) for push in (1, 2, 3)
        ]
    (barrier,) = spans_of(trace, "worker-0", "barrier")
    assert barrier["name"] == "barrier"


def test_links_that_are_cut_leave_every_push_in_the_trace_once_and_the_promises_kept(tmp_path):
    path = tmp_path / "out.json"
    keys = (
        bits("sequential", wl.Sequential(), chunk_bytes=CHUNK_BYTES),
        bits("bounded", wl.Bounded(1), chunk_bytes=CHUNK_BYTES),
    )
    with wl.Cluster(
        servers=2, workers=3, transport="tcp", timeout=20.0, chunk_bytes=CHUNK_BYTES, trace=path
    ) as cluster:
        report = perform(cluster, Script(keys, clock=8, seed=3, cuts=4))
    assert report.errors == ()
    assert report.verdict.ok, report.verdict.reason
    assert report.resends > 0
    trace = read(path)
    for worker in ("worker-0", "worker-1", "worker-2"):
        pushes = spans_of(trace, worker, "push", "pushpull")
        for key in ("sequential", "bounded"):
            clocks = sorted(span["args"]["clock"] for span in pushes if span["args"]["key"] == key)
            assert clocks == list(range(1, 9))
        assert all("on" in span["args"] for span in spans_of(trace, worker, "wait"))


def test_an_embedded_store_is_traced_until_it_is_closed_or_its_process_ends(tmp_path):
    path = tmp_path / "out.json"
    with wl.Store(trace=path) as store:
        store.create("w", np.zeros(10, np.float32))
        with store.trace("forward"):
            store.pushpull("w", np.ones(10, np.float32))
    trace = read(path)
    assert [span["name"] for span in spans_of(trace, "worker-0", "pushpull", "compute")] == ["forward", "pushpull w"]
    assert len(spans_of(trace, "server-0", "reduce+update")) == 1

    other = tmp_path / "other.json"
    script = (
        "import numpy as np, windlass as wl\n"
        f"store = wl.Store(trace={str(other)!r})\n"
        "store.create('w', np.zeros(10, np.float32))\n"
        "store.pushpull('w', np.ones(10, np.float32))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, timeout=150)
    assert len(spans_of(read(other), "worker-0", "pushpull")) == 1


def test_a_store_that_is_not_traced_runs_the_plain_classes_and_its_spans_do_nothing():
    with wl.Store() as store:
        assert type(store._client) is Client
        assert store.trace("forward") is store.trace("backward", category="step", number=3)
        with store.trace("forward"), store.trace("layer"):
            pass
        span = store.trace("backward")
        span.begin()
        span.end()
        with pytest.raises(wl.UsageError, match="the store's own category"):
            store.trace("mine", category="push")
    with wl.Cluster(servers=1, workers=1) as cluster:
        assert cluster.run(train, 1) == ["Client"]


def test_a_span_may_begin_in_one_function_and_end_in_another(tmp_path):
    path = tmp_path / "out.json"
    with wl.Store(trace=path) as store:
        span = store.trace("backward")
        span.end()  # harmless: it has not begun
        span.begin()
        span.end()
        span.end()
        with pytest.raises(ZeroDivisionError), store.trace("forward"):
            1 / 0  # noqa: B018
    names = [one["name"] for one in spans_of(read(path), "worker-0", "compute")]
    assert names == ["backward", "forward"]


SCRIPT = """
import sys, time
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(4, np.float32))
for step in range(3):
    with store.trace("compute"):
        time.sleep(0.01)
    store.pushpull("w", np.ones(4, np.float32))
sys.exit(3 if "fail" in sys.argv and store.rank else 0)
"""


@pytest.mark.parametrize("ending", ["well", "fail"])
def test_the_command_writes_a_trace_however_the_run_ends(tmp_path: Path, ending: str):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = windlass("run", "-s", 2, "-w", 2, "--trace", "out.json", "train.py", ending, cwd=tmp_path)
    assert done.returncode == (3 if ending == "fail" else 0), done.stderr
    assert f"spans are in {tmp_path}/out.json, for https://ui.perfetto.dev" in done.stderr
    trace = read(tmp_path / "out.json")
    assert nodes_of(trace) == ["server-0", "server-1", "worker-0", "worker-1"]
    assert len(spans_of(trace, "worker-0", "pushpull")) == 3
    assert len(spans_of(trace, "worker-0", "compute")) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "train.py"]


def test_the_command_refuses_a_trace_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = windlass("run", "--trace", "no/out.json", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no directory" in done.stderr
