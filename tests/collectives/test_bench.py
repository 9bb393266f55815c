"""The benchmark of the collectives runs, judges itself, and leaves the rest of a document alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_tiny_run_without_peers_writes_its_section_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Before\n\n<!-- bench.collectives begin -->\nold\n<!-- bench.collectives end -->\n\nAfter.\n")
    options = "--without gloo --without mpi --workers 2 --elements 256 --alternations 1 --sample-seconds 0.01"
    command = [sys.executable, "-m", "bench.collectives", *options.split(), "--markdown", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("# Before\n")
    assert text.endswith("\n\nAfter.\n")
    assert "| 2 | 1 KiB | Windlass, plain tensors |" in text
    assert "| 2 | 1 KiB | Windlass, `group.buffer` |" in text
