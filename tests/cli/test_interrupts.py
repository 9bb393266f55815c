"""Ctrl-C while a command is still importing what it needs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
STRIKE = """
import os, signal, sys
strike_at, num_imports = int(sys.argv.pop(1)), 0
def count(event, arguments):
    global num_imports
    if event == "import":
        num_imports += 1
        if num_imports == strike_at: os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(count)
try:
    from {module} import {function} as main
    main()
finally:
    if not strike_at: print(num_imports)
"""


def _struck(at: int) -> subprocess.CompletedProcess[str]:
    """A command that gets Ctrl-C at its n-th import. At no import, it prints their number."""
    module, _, function = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]["windlass"].partition(":")
    code = STRIKE.format(module=module, function=function)
    command = [sys.executable, "-c", code, str(at), "checkpoint", "ls", "/no/such/place"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_ctrl_c_while_a_command_imports_ends_it_quietly() -> None:
    whole = _struck(0)
    assert whole.returncode == 2
    num_imports = int(whole.stdout)
    assert num_imports > 300
    for at in range(2, num_imports, num_imports // 12):  # the first is the entry point itself
        done = _struck(at)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), at
