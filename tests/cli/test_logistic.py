from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.apps.logistic.data import make, write_libsvm
from windlass.apps.logistic import Source, load
from windlass.cli.app import app
from windlass.cli.demo_words import is_first_use
from windlass.cli.logistic import KERNELS, number


def windlass(*arguments):
    """In this process: a cluster of its own is started all the same."""
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["logistic", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logistic")
    for name, seed in (("train", 0), ("test", 1)):
        write_libsvm(folder / f"{name}.libsvm", make(300, seed=seed))
    return folder


def test_a_model_is_fitted_shown_scored_saved_and_applied(files):
    found = windlass(
        files / "train.libsvm", "--l1", "2", "--test", files / "train.libsvm", "--save", files / "model.npz",
        "--max-passes", "12",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "Algorithm 3" in found.output
    lines = re.findall(r"^ +(\d+) +([\d,.]+) +(\d+) +([\d.]+ k?B) +[\d.]+$", found.output, re.MULTILINE)
    assert [int(number) for number, *_ in lines] == [*range(11), 12]
    objectives = [float(objective.replace(",", "")) for _, objective, *_ in lines]
    seconds = re.findall(r"B +([\d.]+)$", found.output, re.MULTILINE)
    assert float(seconds[0]) < 2  # kernels are loaded, or compiled, before
    assert f"Objective {objectives[-1]:.6g} with" in found.output
    assert objectives[0] == pytest.approx(300 * np.log(2), abs=0.01)
    assert objectives[-1] < objectives[0]
    model = load(files / "model.npz")
    accuracy = model.score(files / "train.libsvm").accuracy
    assert f"Test accuracy {accuracy:.4f}" in found.output
    assert f"{model.ids.size} weights that are not 0" in found.output

    applied = windlass("predict", files / "model.npz", files / "test.libsvm")
    rows = Source(str(files / "test.libsvm")).read()
    assert [float(line) for line in applied.stdout.split()] == model.predict(rows).tolist()
    assert "300 examples" in applied.stderr
    chances = windlass("predict", files / "model.npz", files / "test.libsvm", "--chance")
    assert np.allclose([float(line) for line in chances.stdout.split()], model.chances(rows), rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nothing.libsvm"], "there is no file 'nothing.libsvm'"),
        (["{train}", "--l1", "-1"], "l1 must be a finite number"),
        (["{train}", "--algorithm", "2"], "expected algorithm 1 or 3, got 2"),
        (["{train}", "--consistency", "loose"], "loose"),
        (["{train}", "--save", "no/where/m.npz"], "there is no directory"),
        (["{train}", "--test", "nothing.t"], "there is no file 'nothing.t'"),
        (["predict", "nothing.npz", "{train}"], "there is no file 'nothing.npz'"),
    ],
)
def test_what_cannot_be_done_is_one_line_on_stderr(files, arguments, text):
    found = windlass(*(each.format(train=files / "train.libsvm") for each in arguments))
    assert found.exit_code == 2
    assert text in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_broken_line_is_named_by_the_worker_that_reads_it(files):
    broken = files / "broken.libsvm"
    broken.write_text((files / "train.libsvm").read_text() + "1 5:1 6:six\n")
    found = windlass(broken)
    assert found.exit_code != 0
    assert "broken.libsvm, line 301: expected index:value, with a finite number, got '6:six'" in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stdout == ""  # nothing was fitted, so nothing is said of it


@pytest.mark.parametrize("arguments", [["--help"], [], ["fit", "--help"]])
def test_help_is_that_of_a_fit_and_names_the_other_command(arguments):
    found = windlass(*arguments)
    assert found.exit_code == 0
    assert re.search(r"Usage: .*logistic \[OPTIONS\] .*FILE", found.stdout)
    assert "--l1" in found.stdout
    assert "--max-passes" in found.stdout
    assert "windlass logistic train.libsvm --l1 1" in found.stdout
    assert "windlass logistic predict --help" in found.stdout


def test_an_objective_is_told_to_the_hundredth_however_large():
    assert [number(each) for each in (22569.5678, 1234567.891, 207.94415, 0.693147)] == [
        "22,569.57", "1,234,567.89", "207.944", "0.693147",
    ]  # fmt: skip


def test_kernels_are_new_until_they_were_compiled_after_their_source_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert is_first_use(*KERNELS)
    for each in KERNELS:
        folder, _, file = each.rpartition("/")
        made = tmp_path / f"{folder.rpartition('/')[2]}_1234" / f"{file.removesuffix('.py')}.fn-1.py312.nbi"
        made.parent.mkdir(exist_ok=True)
        assert is_first_use(*KERNELS)
        made.touch()
    assert not is_first_use(*KERNELS)
