"""A benchmark as its user runs it, on a page that has other things on it, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section(name: str, options: list[str], page: Path, statuses: tuple[int, ...] = (0,)) -> str:
    """Run `bench.NAME` with these options; the page with its section written anew, and nothing else of it touched."""
    page.write_text(f"# Before\n\n<!-- bench.{name} begin -->\nold\n<!-- bench.{name} end -->\n\nAfter.\n")
    command = [sys.executable, "-m", f"bench.{name}", *options, "--markdown", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode in statuses, done.stderr
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("# Before\n")
    assert text.endswith("\n\nAfter.\n")
    return text
