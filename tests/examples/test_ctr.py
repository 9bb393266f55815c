"""The click example: trained as by torch alone, it says how good and how fast, and what filters save."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import windlass as wl
from windlass.apps.clicks import FIELDS, NUMBERS, Source, auc
from windlass.apps.ctr import Plan, train, train_alone

SCRIPT = Path(__file__).parents[2] / "examples" / "ctr.py"
PLAN = Plan(source=Source(max_ids=2000), samples=16384, tests=4000, batch_size=1024, dim=4, depth=0)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(SCRIPT), *arguments]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=cwd, env=environment)


def test_one_worker_trains_as_nn_embedding_does():
    steps = []
    plain = train_alone(PLAN, lambda count, loss: steps.append((count, loss)))
    with wl.Store() as store:
        mine = train(store, PLAN)
    assert [count for count, _ in steps] == [1024] * 16
    assert np.array_equal(mine.labels, plain.labels)
    assert mine.scores[0] == pytest.approx(plain.scores[0], abs=2e-3)  # of log-odds that differ by ±2
    assert np.abs(mine.scores[0] - plain.scores[0]).mean() < 1e-4
    assert auc(mine.scores[0], mine.labels) == pytest.approx(auc(plain.scores[0], plain.labels), abs=1e-4)
    assert auc(mine.scores[0], mine.labels) > 0.6


def test_it_reports_speed_and_area_and_filters_save_bytes(tmp_path):
    small = ["--samples", "16384", "--tests", "4000", "--batch-size", "4096", "--ids", "20000", "--engine", "threads"]
    done = run(*small, "--compare", "--servers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"([\d,]+) samples/s   AUC (0\.\d+) \(the planted model: (0\.\d+)\)", done.stdout)
    assert len(found) == 2
    without, filtered = (float(each[1]) for each in found)
    assert without > 0.55
    assert filtered == pytest.approx(without, abs=0.02)
    assert float(re.search(r"([\d.]+)x less", done.stdout)[1]) > 4


def test_it_reads_criteos_file(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for label in rng.integers(0, 2, 600):
        ids = rng.integers(0, 20, FIELDS)
        ids[3] = label  # a field that tells
        lines.append("\t".join([str(label), *["1"] * NUMBERS, *(f"{each:08x}" for each in ids)]))
    path = tmp_path / "train.txt"
    path.write_text("\n".join(lines) + "\n")
    options = ["--data", str(path), "--batch-size", "50", "--dim", "4", "--engine", "threads", "--workers", "1"]
    done = run(*options, "--epochs", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"AUC ([\d.]+)$", done.stdout.strip())[1]) > 0.95


def test_what_cannot_be_done_is_one_line(tmp_path):
    done = run("--data", "nothing.txt", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "ctr.py: there is no file 'nothing.txt'\n"
    done = run("--prefetch", "9", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "ctr.py: tables that may miss 4 pushes cannot be asked 9 batches ahead\n"


@pytest.mark.parametrize(
    ("changes", "workers", "text"),
    [
        (
            {"samples": 100}, 2,
            "100 samples are too few for one step of 2 workers: they are dealt out in blocks of 4096, and somebody has "
            "0 of the 512 that each takes. Expected 4608 samples or more, or fewer workers",
        ),
        (
            {"samples": 100}, 1,
            "100 samples are too few for a step of 1024: expected 1024 samples or more, or a batch of 100 or less",
        ),
        ({"batch_size": 1}, 2, "a batch of 1 cannot be shared by 2 workers: expected 2 or more"),
        ({"tests": 0}, 1, "expected 1 sample to test with, or more, got 0"),
    ],
)  # fmt: skip
def test_too_few_samples_are_told_with_how_many_would_do(changes, workers, text):
    with pytest.raises(wl.UsageError) as caught:
        replace(PLAN, **changes).check(workers)
    assert str(caught.value) == text


def test_whoever_waits_for_the_first_step_is_told_that_kernels_may_be_compiled():
    spec = importlib.util.spec_from_file_location("ctr", SCRIPT)
    ctr = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ctr)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with ctr.bar(console, "no filters", 10):
        pass
    assert "a new install compiles kernels" in console.file.getvalue()
