"""The benchmark of tables runs, says what it measured, and asks for peers that are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.pages import ROOT, section


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.sparse", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=150
    )


def test_tiny_parts_without_peers_write_their_section_between_the_markers(tmp_path: Path) -> None:
    parts = [word for part in ("pairs", "batches", "size", "growth") for word in ("--only", part)]
    tiny = ["--num-ids", "1000", "--rows", "200000", "--sample-seconds", "0.01"]
    few = ["--without", "redis", "--without", "rpc", "--without", "torch", "--workers", "2", "--alternations", "1"]
    # 1 where a busy machine misses a target
    text = section("sparse", [*parts, *tiny, *few], tmp_path / "benchmarks.md", statuses=(0, 1))
    assert "| 2 | Windlass, SGD on the server |" in text
    assert "| in the worker, raw ids: the different ones found and sorted by slot |" in text
    assert "| 200,000 rows of 16 with Adagrad: bytes, beside those of values and state |" in text
    assert ": the longest that a pull of another worker takes |" in text
    assert "python -m bench.sparse --only pairs" in text


def test_a_missing_peer_ends_the_run_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    found_in = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run("--without", "redis", PATH="", PYTHONPATH=found_in)
    assert done.returncode == 2, done.stderr
    assert "the peer 'rpc' needs torch" in done.stderr
    assert "--without rpc" in done.stderr
