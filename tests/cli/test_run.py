"""`windlass run` when all goes well, and when the caller is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import windlass

TALK = """
import os, sys, time
import numpy as np
import windlass as wl
store = wl.connect()
store.create("w", np.zeros(3, np.float32))
store.push("w", np.ones(3, np.float32))
print("rank", store.rank, "of", store.num_workers, sys.argv[1:], store.pull("w").tolist())
print("a complaint", file=sys.stderr)
sys.stdout.buffer.write(b"\\xff not text\\n")
for percent in range(0, 101, 50):
    print(f"\\r{percent} %", end="")
print()
print(store.options.consistency, store.options.timeout, os.environ["WINDLASS_MANAGER"][:4])
print("no line end", end="")
"""


def test_each_line_has_its_workers_name_and_the_script_its_own_options(tmp_path: Path) -> None:
    script = tmp_path / "talk.py"
    script.write_text(TALK)
    done = windlass("run", "--servers", 2, "--workers", 2, script, "--servers", "9", "-m", "--", "x")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stderr.splitlines()) == ["[worker-0] a complaint", "[worker-1] a complaint"]
    for rank in range(2):
        prefix = f"[worker-{rank}] "
        mine = [line.removeprefix(prefix) for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert mine[0] == f"rank {rank} of 2 ['--servers', '9', '-m', '--', 'x'] [2.0, 2.0, 2.0]"
        assert mine[1] == "\\xff not text"
        assert mine[-3:] == ["100 %", "Sequential() 300.0 unix", "no line end"]
    assert done.stdout.count("\n") == len(done.stdout.splitlines())


def test_options_reach_the_workers_of_a_module_over_tcp(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(
        "import os, sys, windlass as wl\n"
        "with wl.connect() as store:\n"
        "    print(__name__, sys.argv[1:], store.options.consistency, store.options.timeout, "
        "os.environ['WINDLASS_MANAGER'][:4])\n"
    )
    options = ("--consistency", "bounded:2", "--timeout", 9, "--transport", "tcp", "-m", "package.train", "--lr", "1")
    done = windlass("run", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[worker-0] __main__ ['--lr', '1'] Bounded(delay=2) 9.0 tcp:\n"


def test_a_script_that_needs_no_cluster_runs_too(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("import os, time; rank = int(os.environ['WINDLASS_RANK']); time.sleep(rank / 2); print('done')")
    done = windlass("run", "--workers", 2, script)
    [told] = done.stderr.splitlines()
    assert done.returncode == 0
    assert "no worker called wl.connect()" in told
    assert done.stdout == "[worker-0] done\n[worker-1] done\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "windlass: no script at 'nowhere.py'\n"),
        (("/",), "windlass: '/' is a directory without a __main__.py: name the script\n"),
        (("json.tool",), "windlass: no script at 'json.tool'; for the module: -m json.tool\n"),
        (
            ("--consistency", "strong", __file__),
            "windlass: --consistency expects sequential, bounded:DELAY or eventual, got 'strong'\n",
        ),
        (("--load", "", __file__), "windlass: --load expects a path or a URL, got ''\n"),
        (("--transport", "udp", __file__), "windlass: transport expects 'auto', 'shm', 'tcp' or 'tls', got 'udp'\n"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: tuple[str, ...], message: str) -> None:
    done = windlass("run", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_debug_shows_the_traceback() -> None:
    done = windlass("--debug", "run", "nowhere.py")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "UsageError: no script at 'nowhere.py'" in done.stderr


def test_version_and_help_are_told() -> None:
    assert windlass("--version").stdout.startswith("windlass 0.")
    helped = windlass("run", "--help").stdout
    assert "windlass run --servers 2 --workers 4 train.py --epochs 3" in helped
    assert "wl.connect()" in helped
