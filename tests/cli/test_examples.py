from __future__ import annotations

import subprocess
import sys

from tests.cli.command import EXAMPLES, windlass


def test_the_linear_example_finds_the_truth_in_every_worker() -> None:
    done = windlass("run", "--servers", 2, "--workers", 4, EXAMPLES / "linear.py")
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(done.stdout.splitlines())
    assert [line.split(": ")[0] for line in lines] == [f"[worker-{n}] distance to the truth" for n in range(4)]
    assert all(float(line.split(": ")[1]) < 0.01 for line in lines)


def test_the_notebook_example_counts_every_push() -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / "notebook_style.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    assert "in the end   [100. 100. 100.]" in done.stdout
