from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.apps.sets import cut
from tests.cli.command import WINDLASS, finish, on_terminal, started, windlass
from windlass import trace
from windlass.cli.demo import Demo, demo
from windlass.cli.demo_words import foresee
from windlass.errors import UsageError
from windlass.types import Eventual, Sequential

ROW = re.compile(r"^ +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d,]+) *$", re.MULTILINE)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut(tmp_path_factory.mktemp("set"), train=600, test=200).directory


def rows(text: str) -> list[tuple[int, float, float]]:
    """Number, loss and accuracy of each epoch in the table."""
    return [(int(number), float(loss), float(accuracy)) for number, loss, accuracy, _, _ in ROW.findall(text)]


def asked(directory: Path, **changes: object) -> Demo:
    default = {
        "servers": 1,
        "workers": 2,
        "devices": "1",
        "consistency": Sequential(),
        "mode": "store",
        "data": str(directory),
        "epochs": 2,
        "batch_size": 100,
        "lr": 0.2,
        "seed": 0,
        "plot": directory / "curves.png",
        "trace": "",
        "is_plain": True,
    }
    return Demo(**{**default, **changes})


# --- it trains --------------------------------------------------------------------------------------------------------


def test_the_demo_learns_on_the_sample_and_says_that_it_is_the_sample(tmp_path) -> None:
    """The short form: a sixteenth of the batch, and so sixteen times the steps in one pass."""
    picture = tmp_path / "windlass-demo.png"
    command = [WINDLASS, "demo", "--data", "sample", "--epochs", "1", "--batch-size", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert "LeNet on the sample of Fashion-MNIST that ships with Windlass" in done.stdout
    assert "10,000 images to train on and 2,000 to test" in done.stdout
    assert "2 servers and 2 workers" in done.stdout
    [(number, loss, accuracy)] = rows(done.stdout)
    assert number == 1
    assert loss < 2.1
    assert accuracy > 0.4
    assert f"Test accuracy {accuracy:.4f} after 1 epoch" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_workers_show_the_numbers_of_the_plain_loop(data, capsys) -> None:
    demo(asked(data, workers=3))
    plain = capsys.readouterr().out
    record = str(data / "trace.json")
    demo(asked(data, is_plain=False, mode="allreduce", trace=record))
    together = capsys.readouterr().out
    assert "A plain torch loop, without Windlass" in plain
    assert "The plain loop is one process: --servers 1 and --workers 3 change nothing." in plain
    assert "a blind guess, for 300 steps or so at this learning rate: 50 epochs here" in together
    assert "mode allreduce" in together
    for one, other in zip(rows(plain), rows(together), strict=True):
        assert one == pytest.approx(other, abs=2e-4)
    assert "training loss" in plain  # the curves
    assert "⠉" in plain
    assert f"The trace is in {record}" in together
    steps = [(row.worker, row.step) for row in trace.overlap(record)]
    assert {worker for worker, _ in steps} == {"worker-0", "worker-1"}
    assert len(steps) >= 2 * 11  # two workers, two epochs of six steps; the first has nothing before it


@pytest.mark.parametrize(
    ("lr", "steps_per_epoch", "epochs", "words"),
    [
        (0.2, 235, 10, "for 300 steps or so at this learning rate: 1.3 epochs here."),
        (0.2, 40, 25, "for 300 steps or so at this learning rate: 7.5 epochs here."),
        (0.2, 300, 1, "for 300 steps or so at this learning rate: 1 epoch here."),
        (0.9, 235, 10, "for 70 steps or so at this learning rate: 0.3 epochs here."),
        (0.01, 40, 25, "for 6,000 steps or so at this learning rate: 150 epochs here, more than this run has."),
    ],
)
def test_how_long_the_loss_stays_goes_by_the_learning_rate(lr, steps_per_epoch, epochs, words) -> None:
    assert foresee(lr, steps_per_epoch, epochs).endswith(words)


# --- on a terminal ----------------------------------------------------------------------------------------------------


def test_a_terminal_shows_a_bar_for_each_worker_and_a_table_that_grows(data) -> None:
    options = ["--epochs", "3", "--devices", "2", "--consistency", "bounded:2", "--plot", str(data / "terminal.svg")]
    status, shown = on_terminal("demo", "--data", data, *options)
    assert status == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    lines = re.split(r"[\r\n]+", plain)
    bars = [line for line in lines if "━" in line]
    assert "devices 2; bounded(2), mode store" in re.sub(r"\s+", " ", plain)
    for worker in ("worker-0", "worker-1"):
        assert any(re.search(rf"{worker} .*epoch +\d of 3 loss 2\.\d+", bar) for bar in bars)
    assert max(map(len, lines)) <= 80
    assert [number for number, _, _ in rows("\n".join(lines))] == [1, 2, 3]
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")  # the cursor is back


def test_ctrl_c_leaves_with_a_word_and_nothing_behind(data) -> None:
    with started("demo", "--data", data, "--epochs", 999) as process:
        assert process.stdout is not None
        while not rows(process.stdout.readline()):
            assert process.poll() is None
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        status, out, err, seconds = finish(process)
    assert (status, err) == (130, "")
    assert re.search(r"^Stopped by Ctrl-C after \d+ epochs?\.$", out, re.MULTILINE)
    assert seconds < 10
    _, alive = psutil.wait_procs(children, timeout=5)
    assert len(children) >= 5
    assert not alive


# --- what may be missing or wrong -------------------------------------------------------------------------------------


def test_without_matplotlib_the_demo_says_how_to_get_the_picture(data, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture = data / "none.png"
    demo(asked(data, epochs=1, plot=picture))
    assert "which needs matplotlib: pip install 'windlass[demo]'" in capsys.readouterr().out
    assert not picture.exists()


def test_without_torch_the_demo_says_how_to_get_it(data, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"trains with PyTorch, which is not here: pip install 'windlass\[demo\]'"):
        demo(asked(data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "ring"}, "--mode expects store or allreduce, got 'ring'"),
        ({"mode": "allreduce", "consistency": Eventual()}, "--mode allreduce expects --consistency sequential"),
        ({"plot": Path("/nonexistent/a.png")}, "--plot: there is no directory /nonexistent"),
        ({"plot": Path("curves")}, "--plot expects a name that ends in .png, .svg, .pdf, got 'curves'"),
        ({"data": "/nonexistent"}, "expected auto, full, sample or a directory that has the idx files"),
        ({"devices": "cuda:7,cuda:8", "is_plain": False}, "device 'cuda:7' does not exist"),
        ({"devices": "cpu,cpu,cpu", "is_plain": False}, "as many for each of 2 workers, got 3 (cpu, cpu, cpu): name 2"),
        ({"devices": "gpu", "is_plain": False}, "'gpu' is not the name of a device; 'cpu' and 'cuda:0' are"),
        ({"devices": "60", "is_plain": False}, "a batch is shared by 120 devices"),
        ({"trace": "a.json"}, "--trace shows servers and workers, and --plain has none"),
        ({"trace": "/nonexistent/a.json", "is_plain": False}, "there is no directory '/nonexistent'"),
        ({"lr": 0.0}, "--lr expects a number above 0, got 0"),
        ({"devices": "0"}, "--devices expects a number of at least 1, or names, got 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_started(data, changes, message) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        demo(asked(data, **changes))


def test_an_error_is_one_line_and_a_status() -> None:
    done = windlass("demo", "--mode", "ring")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "windlass: --mode expects store or allreduce, got 'ring'\n"
