"""Processes that a benchmark starts end with it, whatever they are doing."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from tests.bench.pages import ROOT
from tests.engines.processes import left_after

DRIVER = """
import signal, sys, time
from bench.children import Children

with Children("peer") as children:
    for _ in range(2):
        children.start((sys.executable, "-c", "import time; time.sleep(60)"), {})
    children.send(signal.SIGSTOP)
    print("stopped", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_peers_that_are_stopped_end_with_a_bench_that_is_killed(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "stopped\n"
        peers = [child.pid for child in psutil.Process(driver.pid).children()]
        assert len(peers) == 2
        driver.send_signal(number)
    assert left_after(peers, 2.0) == []
