"""What a command says fits its reader: whole words on a terminal, whole lines in a file."""

from __future__ import annotations

import pytest

import windlass as wl
from tests.cli.command import on_terminal, windlass
from windlass._words import count, folded


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--transport", "tls", __file__),
        ("run", "--servers", "1", "--replicas", "3", __file__),
        ("chaos", "--kill", "server:any"),
        ("demo", "--mode", "allreduce", "--consistency", "bounded:2", "--plot", "/tmp/x.png"),
        ("checkpoint", "ls", "/no/such/directory/" + "very-long-name/" * 4 + "x"),
        ("status", "--manager", "tcp:127.0.0.1:1"),
    ],
)
def test_a_sentence_breaks_between_words_on_a_terminal_and_nowhere_in_a_file(arguments: tuple[str, ...]) -> None:
    told = windlass(*arguments, env={"WINDLASS_TOKEN": ""})
    status, shown = on_terminal(*arguments)
    said = told.stderr or told.stdout
    assert said.count("\n") == 1, said
    assert status == told.returncode != 0
    assert " ".join(shown.split()) == " ".join(said.split())
    assert all(len(line) <= 80 or " " not in line.rstrip() for line in shown.splitlines()), shown


def test_a_long_line_is_folded_between_words_and_a_path_stays_whole() -> None:
    path = "/somewhere/" + "deep/" * 20
    lines = folded(f"windlass: worker-0 exited with status 1; its files are in {path}\n  indented", 40).split("\n")
    assert path in lines
    assert all(len(line) <= 40 for line in lines if line != path)
    assert lines[-1] == "  indented"


def test_one_is_one_and_others_are_many() -> None:
    told = [count(number, "server") for number in (0, 1, 2, 2000)]
    assert told == ["0 servers", "1 server", "2 servers", "2,000 servers"]
    with wl.Cluster(engine="threads", workers=2) as cluster:
        assert repr(cluster) == "<Cluster 1 server, 2 workers | open>"
