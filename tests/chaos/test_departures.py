"""Nodes that go though nothing was done to them are in the report."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.cli.command import WINDLASS, started
from windlass.chaos.departures import Departures
from windlass.chaos.report import Departed, Fault, Report
from windlass.chaos.table import print_report

JOB = """
import os, sys
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(60_000, np.float32), update="add", consistency=wl.Eventual())
print(f"worker {store.rank} is up as {os.getpid()}.", flush=True)
while not os.path.exists(sys.argv[1]):
    store.push("w", np.ones(60_000, np.float32)).wait()
"""


def _node(name: str, incarnation: int, state: str = "alive") -> dict[str, Any]:
    role = name.partition("-")[0]
    return {"name": name, "role": role, "incarnation": incarnation, "pid": 100 + incarnation, "state": state}


def test_a_worker_is_told_of_when_another_has_its_seat() -> None:
    seen = Departures()
    assert seen.look([_node("worker-0", 1), _node("worker-1", 2)], 1.0) == []
    assert seen.look([_node("worker-0", 1), _node("worker-1", 2, "awaited")], 2.0) == []
    told = seen.look([_node("worker-0", 1), _node("worker-1", 3), _node("worker-1", 2, "gone")], 3.0)
    assert told == seen.found == [Departed(who="worker-1", at=2.0, pid=102, note="another has its seat")]
    assert seen.look([_node("worker-0", 1), _node("worker-1", 3), _node("worker-1", 2, "gone")], 4.0) == []


def test_a_worker_that_came_and_went_between_two_looks_is_told_of() -> None:
    seen = Departures()
    seen.look([_node("worker-0", 1)], 1.0)
    [told] = seen.look([_node("worker-0", 3), _node("worker-0", 1, "gone"), _node("worker-0", 2, "gone")][:2], 2.0)
    assert told.pid == 101
    told, *rest = seen.look([_node("worker-0", 3), _node("worker-0", 1, "gone"), _node("worker-0", 2, "gone")], 3.0)
    assert (told.pid, rest) == (102, [])


def test_a_worker_that_has_finished_is_not_told_of() -> None:
    seen = Departures()
    seen.look([_node("worker-0", 1)], 1.0)
    assert seen.look([_node("worker-0", 1, "gone")], 2.0) == []


def test_a_server_is_told_of_at_once() -> None:
    seen = Departures()
    seen.look([_node("server-0", 1), _node("server-1", 2)], 1.0)
    assert seen.look([_node("server-0", 1), _node("server-1", 2, "gone")], 2.0) == [
        Departed(who="server-1", at=2.0, pid=102)
    ]


def test_whoever_was_disturbed_or_was_gone_before_is_not_told_of() -> None:
    seen = Departures()
    seen.look([_node("server-0", 1), _node("server-1", 2), _node("server-1", 9, "gone")], 1.0)
    seen.spare([2])
    gone = [_node("server-1", 2, "gone"), _node("server-1", 9, "gone")]
    assert seen.look([_node("server-0", 1), _node("server-1", 3), *gone], 2.0) == []


def test_the_table_shows_it_among_the_faults_in_the_order_of_time() -> None:
    faults = tuple(Fault(what="kill", who="worker-1", at=at) for at in (2.0, 6.0))
    departed = (Departed(who="worker-1", at=4.0, pid=7, note="another has its seat"),)
    file = io.StringIO()
    print_report(Report(seed=1, seconds=8.0, faults=faults, departed=departed), Console(file=file, width=80))
    rows = [line.split() for line in file.getvalue().splitlines() if "worker-1" in line]
    assert [row[:4] for row in rows] == [
        ["2.0", "s", "kill", "worker-1"],
        ["4.0", "s", "gone", "worker-1"],
        ["6.0", "s", "kill", "worker-1"],
    ]
    assert " ".join(rows[1][4:]) == "by itself; another has its seat"


@pytest.mark.timeout(120)  # a command starts an interpreter for each node
def test_the_death_of_a_worker_in_another_s_seat_is_in_the_report(tmp_path: Path) -> None:
    script, enough, report = tmp_path / "job.py", tmp_path / "enough", tmp_path / "report.json"
    script.write_text(JOB)
    run = (WINDLASS, "run", "--workers", 2, "--on-worker-loss", "wait", script, enough)
    options = ("--kill", "worker:1", "--every", "2s", "--for", "2s", "--json", report)
    with started("chaos", *options, "--", *run) as chaos:
        assert chaos.stdout is not None
        assert chaos.stderr is not None
        pids: list[int] = []
        while line := chaos.stdout.readline():
            if "worker 1 is up as" in line:
                pids.append(int(line.split()[-1].rstrip(".")))
                if len(pids) == 2:
                    os.kill(pids[1], signal.SIGKILL)
                if len(pids) == 3:
                    while "is gone by itself" not in (said := chaos.stderr.readline()):
                        assert said
                    assert f"worker-1 (pid {pids[1]}) is gone by itself, and another has its seat" in said
                    enough.touch()
        assert chaos.wait() == 0
    told = json.loads(report.read_text())
    assert [(fault["what"], fault["pid"]) for fault in told["faults"]] == [("kill", pids[0])]
    assert [(one["who"], one["pid"]) for one in told["departed"]] == [("worker-1", pids[1])]
