from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

from tests.cli.command import EXAMPLES, WINDLASS, windlass

SMALL = ("demo", "--workers", "2", "--steps", "50", "--features", "20", "--pause", "0.5")


def rows(text: str) -> dict[str, list[float]]:
    """The numbers of the result table, by consistency."""
    found = re.findall(r"^(sequential|bounded\(2\)|eventual) +([\d.,% ]+)$", text, re.MULTILINE)
    return {name: [float(cell) for cell in re.sub("[,%]", "", cells).split()] for name, cells in found}


def test_the_demo_fits_under_all_three_consistencies_and_compares_them() -> None:
    done = windlass(*SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for name in ("sequential", "bounded(2)", "eventual"):
        assert re.search(rf"^{re.escape(name)} +100%  loss ", done.stdout, re.MULTILINE)
    table = rows(done.stdout)
    assert list(table) == ["sequential", "bounded(2)", "eventual"]
    for _, steps_per_second, loss, distance, _ in table.values():
        assert steps_per_second > 0
        assert loss < 0.2
        assert distance < 10
    assert table["sequential"][4] == 0.0
    assert table["bounded(2)"][4] <= 2.0


def test_the_demo_shows_bars_on_a_terminal_of_80_columns() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "40", "TERM": "xterm-256color"}
    with subprocess.Popen([WINDLASS, *SMALL], stdout=theirs, stderr=theirs, env=environment) as demo:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # Linux says EIO at the end of a terminal
            pass
        os.close(ours)
    assert demo.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    bars = [line for line in re.split(r"[\r\n]+", plain) if "━" in line]
    assert any("eventual" in bar and "100 %" in bar for bar in bars)
    assert max(map(len, bars)) <= 80


def test_the_linear_example_finds_the_truth_in_every_worker() -> None:
    done = windlass("run", "--servers", 2, "--workers", 4, EXAMPLES / "linear.py")
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(done.stdout.splitlines())
    assert [line.split(": ")[0] for line in lines] == [f"[worker-{n}] distance to the truth" for n in range(4)]
    assert all(float(line.split(": ")[1]) < 0.01 for line in lines)


def test_the_notebook_example_counts_every_push() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "notebook_style.py")], capture_output=True, text=True, timeout=40
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "in the end   [100. 100. 100.]" in done.stdout
