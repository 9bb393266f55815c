from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.apps.logistic.data import make, write_libsvm
from windlass.apps.logistic import Source, load
from windlass.cli.app import app


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


def test_help_names_both_commands():
    found = windlass("--help")
    assert found.exit_code == 0
    assert "fit" in found.stdout
    assert "predict" in found.stdout
