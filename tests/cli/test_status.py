from __future__ import annotations

import io
import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from tests.cli.command import named, read_lines, started, windlass
from windlass.cli.tables import show
from windlass.engines.config import find_clusters

SCRIPT = """
import time
import numpy as np
import windlass as wl
store = wl.connect()
store.create("layer/w", np.zeros((30, 100), np.float32), update=wl.SGD(lr=0.1, momentum=0.9))
store.create("count", np.zeros(1, np.int64), update="add", consistency=wl.Bounded(2))
for _ in range(3):
    store.pushpull("layer/w", np.ones((30, 100), np.float32))
if store.rank == 1:
    store.push("count", np.ones(1, np.int64)).wait()
store.barrier()
print("up", store.rank)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path_factory.mktemp("status") / "script.py"
    script.write_text(SCRIPT)
    with started("run", "--servers", 2, "--workers", 2, script) as run:
        assert read_lines(run, 2) == ["[worker-0] up 0", "[worker-1] up 1"]
        yield run


def seen(run: subprocess.Popen[str]) -> dict[str, Any]:
    """This run among all the clusters of this machine."""
    clusters = json.loads(windlass("status", "--json").stdout)
    (found,) = (one for one in clusters if one["driver"] == run.pid)
    return dict(found)


def test_status_tells_nodes_keys_and_clocks_of_a_run(run: subprocess.Popen[str]) -> None:
    cluster = seen(run)
    assert "run --servers 2 --workers 2" in cluster["command"]
    assert (cluster["generation"], cluster["problems"]) == ("1.1", [])  # the looker is no member
    nodes = {node["name"]: node for node in cluster["nodes"]}
    assert {"server-0", "server-1", "worker-0", "worker-1"} <= set(nodes)
    assert nodes["server-1"]["pid"] == named(run, "server-1").pid
    assert all(node["state"] == "alive" for node in nodes.values())
    key = cluster["keys"]["layer/w"]
    assert (key["shape"], key["dtype"], key["update"]) == ([30, 100], "float32", "sgd")
    held = cluster["servers"][key["shards"][0][0]]["keys"]["layer/w"]
    assert (held["version"], held["clocks"]) == (3, {"worker-0": 3, "worker-1": 3})


def test_status_shows_tables_within_80_columns(run: subprocess.Popen[str]) -> None:
    shown = windlass("status").stdout
    (text,) = (one for one in shown.split("Cluster of pid ") if one.startswith(f"{run.pid}:"))  # others may run here
    assert max(map(len, text.splitlines()[1:])) <= 80
    for words in ("generation 1.1", "server-0  server", "bounded(2)", "sum, sgd", "clocks"):
        assert words in text


def test_nodes_that_have_left_are_told_as_a_number() -> None:
    node = {"rank": 0, "pid": 7, "address": "", "incarnation": 1}
    nodes = [{"name": "server-0", "role": "server", "state": "alive"} | node]
    nodes += [{"name": f"worker-{rank}", "role": "worker", "state": "gone"} | node for rank in range(40)]
    nodes += [{"name": "server-1", "role": "server", "state": "gone"} | node]
    cluster = {
        "driver": 1, "command": "", "manager": [], "generation": "1.43", "nodes": nodes, "keys": {}, "servers": {},
        "problems": [],
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    show(console, cluster)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "gone: 1 server, 40 workers" in told
    assert "worker-3" not in told
    assert told.count("server-") == 1


def test_lines_of_a_status_count_properly_and_are_whole_in_a_file() -> None:
    held = {"version": 1, "value_bytes": 1, "state_bytes": 0, "staged_bytes": 0, "waiting_pulls": 0, "clocks": {}}
    key = {
        "shape": [3], "dtype": "float32", "reduce": "sum", "update": "add", "replicas": 0, "consistency": "Eventual()",
        "shards": [["server-0"]],
    }  # fmt: skip
    names = [f"w{number}" for number in range(31)]
    work = {"epoch": 0, "epochs": 12, "size": 60_000, "batch_size": 7, "done": 8_571, "held": 2}
    cluster = {
        "driver": 1, "command": "", "manager": [], "generation": "1.0", "problems": [],
        "nodes": [{"name": "server-0", "role": "server", "state": "alive", "pid": 7, "address": ""}],
        "expected": {"servers": 1, "workers": 4}, "keys": dict.fromkeys(names, key),
        "servers": {"server-0": {"keys": dict.fromkeys(names, held)}},
        "workloads": {"0": work | {"name": "x"}, "an-epoch-of-all-the-clicks-of-the-last-year": work},
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    show(console, cluster)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[1] == "generation 1.0, not complete: 1 of 1 server and 0 of 4 workers here"
    assert "and 1 more key; --json shows all" in lines
    name = "an-epoch-of-all-the-clicks-of-the-last-year"
    assert f"leased work {name}: epoch 1 of 12, 8571 of 8572 batches done, 2 held" in lines


@pytest.mark.parametrize("width", [80, 160])
def test_keys_with_long_names_and_filters_are_whole_in_80_columns(width: int) -> None:
    name = "embeddings/user-clicks"
    held = {
        "version": 6, "value_bytes": 3e7, "state_bytes": 2e6, "staged_bytes": 0, "waiting_pulls": 0, "rows": 100_000,
        "clocks": {"worker-0": 3, "worker-1": 3}, "residual_norms": {"worker-0": 10.6, "worker-1": 11.5},
        "filters": [
            {"filter": "id_cache", "before": 43.2e6, "after": 4e7}, {"filter": "int8", "before": 4e7, "after": 1.18e7}
        ],
    }  # fmt: skip
    key = {
        "shape": [0, 16], "is_table": True, "dtype": "float32", "reduce": "sum", "update": "adagrad", "replicas": 1,
        "consistency": "Bounded(delay=4)", "shards": [["server-0", "server-1"]] * 4 + [["server-1", "server-0"]] * 4,
    }  # fmt: skip
    nodes = [{"name": f"worker-{n}", "role": "worker", "state": "alive", "pid": 7, "address": ""} for n in (0, 1)]
    cluster = {
        "driver": 1, "command": "", "manager": [], "generation": "1.1", "nodes": nodes, "problems": [],
        "keys": {name: key}, "servers": {"server-0": {"keys": {name: held}}},
    }  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    show(console, cluster)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, told.splitlines())) <= width
    for whole in (
        "float32 table, 100,000 × 16", "sum, adagrad", "bounded(4)", "4@0 4@1 ×2", "32 MB", "43.2 MB",
        "id_cache 40 MB →", "int8 11.8 MB", "worker-0 10.6,", "worker-1 11.5",
    ):  # fmt: skip
        assert whole in told
    assert told.count(name) == (4 if width == 80 else 3)


def test_a_manager_is_named_by_address_and_token(run: subprocess.Popen[str]) -> None:
    (config,) = (config for pid, config in find_clusters() if pid == run.pid)
    arguments = ("status", "--json", "--manager", ",".join(config.manager))
    done = windlass(*arguments, env={"WINDLASS_TOKEN": config.token})
    assert json.loads(done.stdout)[0]["generation"] == "1.1"
    done = windlass(*arguments, env={"WINDLASS_TOKEN": "0" * 64})
    assert done.returncode == 1
    assert "token" in json.loads(done.stdout)[0]["problems"][0]
    done = windlass("status", "--manager", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected an address like unix:@name" in done.stderr
    done = windlass(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set WINDLASS_TOKEN" in done.stderr


def test_a_node_that_does_not_answer_is_named_within_five_seconds(run: subprocess.Popen[str]) -> None:
    server = named(run, "server-1")
    server.send_signal(signal.SIGSTOP)
    try:
        done = windlass("status", "--json")
    finally:
        server.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    (cluster,) = (one for one in json.loads(done.stdout) if one["driver"] == run.pid)
    (problem,) = cluster["problems"]
    assert problem.startswith(f"server-1 (pid {server.pid}, unix:@windlass-")
    assert problem.endswith(") did not answer within 4 s")
    assert "server-0" in cluster["servers"]
