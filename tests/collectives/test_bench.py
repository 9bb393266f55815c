"""The benchmark of the collectives runs, judges itself, and leaves the rest of a document alone."""

from __future__ import annotations

from pathlib import Path

from tests.bench.pages import section


def test_a_tiny_run_without_peers_writes_its_section_between_the_markers(tmp_path: Path) -> None:
    options = "--without gloo --without mpi --workers 2 --elements 256 --alternations 1 --sample-seconds 0.01"
    text = section("collectives", options.split(), tmp_path / "page.md")
    assert "| 2 | 1 KiB | Windlass, plain tensors |" in text
    assert "| 2 | 1 KiB | Windlass, `group.buffer` |" in text
