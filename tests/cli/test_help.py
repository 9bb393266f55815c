"""What every command says of itself, on 80 columns."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from windlass.cli.app import app

INDENT = 1
COLUMNS = 80


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_flags_and_arguments_show_no_type_and_options_show_their_value(path: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS), "TERM": "dumb"})
    assert told.exit_code == 0
    assert "--help " in told.output
    assert "<" not in told.output, told.output
    assert all(len(line) <= COLUMNS for line in told.output.splitlines())
    if "run" in path:
        assert "SECONDS" in told.output
        assert "N [x>=1]" in told.output


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_line_of_a_commands_words_is_broken_again(path: tuple[str, ...]) -> None:
    words = Text.from_markup(inspect.cleandoc(ALL[path].help)).plain
    assert max(map(len, words.splitlines())) <= COLUMNS - 2 * INDENT


def test_the_package_runs_as_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "windlass", "--version"], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("windlass ")


@pytest.mark.parametrize(
    "arguments", [("logistic", "x", "--workers", "0"), ("logistic", "fit", "x", "--workers", "0"), ("demo", "-w", "0")]
)
def test_a_number_that_is_too_small_is_told_in_our_words_with_the_help_that_one_would_type(
    arguments: tuple[str, ...],
) -> None:
    told = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"}, prog_name="windlass")
    assert told.exit_code == 2
    assert f"Usage: windlass {arguments[0]} [" in told.output
    assert f"Try 'windlass {arguments[0]} --help'" in told.output
    assert "Invalid value for '--workers' / '-w': expected a number of at least 1" in told.output
