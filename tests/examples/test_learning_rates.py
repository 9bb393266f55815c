"""The example runs, learns, and shows what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "learning_rates.py"


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=150, cwd=cwd, env={**os.environ, **environment}
    )


def test_it_shows_the_linear_scaling_rule_and_draws_it(tmp_path):
    done = run("--images", "4000", "--rates", "0.001", "0.002", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 4][1:]
    table = {float(row[0]): [float(each) for each in row[1:]] for row in rows}
    assert set(table) == {0.001, 0.002}
    for one, two, four, scaled in table.values():
        assert one > two > four  # fewer steps at the same rate
        assert scaled == pytest.approx(one, abs=0.03)  # at 4 times the rate they are made up for
        assert scaled > four + 0.03
    assert table[0.001][0] == pytest.approx(table[0.002][1], abs=0.03)
    assert (tmp_path / "learning_rates.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_how_to_get_it(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    small = ["--images", "100", "--rates", "0.001", "--devices", "1", "2"]
    done = run(*small, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "pip install 'windlass[demo]'" in done.stderr
    assert not (tmp_path / "learning_rates.png").exists()


def test_a_device_that_is_not_there_is_one_line(tmp_path):
    done = run("--device", "tpu", "--images", "100", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("learning_rates.py: 'tpu:0' is not the name of a device")
    assert done.stderr.count("\n") == 1
