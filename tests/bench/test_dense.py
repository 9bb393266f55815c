"""The benchmark runs, says what it measured, and leaves the rest of a document alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.pages import ROOT, section


def test_a_tiny_run_without_peers_writes_its_section_between_the_markers(tmp_path: Path) -> None:
    options = "--without gloo --without mpi --workers 2 --elements 256 --alternations 1 --sample-seconds 0.01 "
    options += "--no-extras --only shm"
    text = section("dense", options.split(), tmp_path / "benchmarks.md")
    assert "| 2 | 1 KiB | Windlass, plain arrays |" in text
    assert "python -m bench.dense --without gloo" in text


def test_a_missing_peer_ends_the_run_with_what_to_do() -> None:
    without_tools = {"PATH": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bench.dense", "--without", "gloo"]
    done = subprocess.run(command, cwd=ROOT, env=without_tools, capture_output=True, text=True, timeout=150)
    assert done.returncode == 2
    assert "--without mpi" in done.stderr
