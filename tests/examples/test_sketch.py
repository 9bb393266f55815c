"""The example runs, and shows that the bounds hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "sketch.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150)


def test_it_prints_every_sketch_embedded_and_from_workers():
    done = run("--inserts", "100000", "--num-ids", "20000", "--num-nodes", "500", "--epsilon", "0.001")
    assert done.returncode == 0, done.stderr
    for title in ("CountMin, 5 x 4096 counts", "HyperLogLog, 16384 registers", "Shortest paths, 500 nodes"):
        assert title in done.stdout
    assert done.stdout.count("\nembedded ") == done.stdout.count("\n2 workers ") == 3
    assert sum(line.endswith(" all") for line in done.stdout.splitlines()) == 2


def test_what_cannot_be_is_one_line():
    done = run("--epsilon", "2", "--engine", "threads", "--inserts", "100")
    assert done.returncode == 1
    assert "epsilon must be between 0 and 1" in done.stderr
