"""Every Python block of README and docs runs, in order, page by page; every link leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path):
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)))
    done = subprocess.run([sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    if page.name == "README.md":
        assert done.stdout.count("1.4999") == 4, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
