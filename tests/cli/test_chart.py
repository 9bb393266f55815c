from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import rc_context
from rich.console import Console

from windlass.apps.report import Epoch, Steps
from windlass.cli.board import Board, Course, show_curves
from windlass.cli.chart import HEIGHT, chart, write_picture

BLANK = "\u2800"


def drawing(values: list[float], high: float = 1.0, width: int = 40) -> list[str]:
    """The rows of a chart between its axes."""
    _, *rows, _, _ = chart("title", values, high, width)
    assert len(rows) == HEIGHT
    return [row.split("│")[1] for row in rows]


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    rows = drawing([0.0, 1.0])
    assert rows[-1][0] != BLANK
    assert rows[0][-1] != BLANK
    assert set(rows[0][: len(rows[0]) // 2] + rows[-1][len(rows[-1]) // 2 :]) == {BLANK}


def test_a_fall_is_drawn_without_gaps() -> None:
    rows = drawing([1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert all(set(row) != {BLANK} for row in rows)


def test_what_is_not_finite_leaves_a_gap() -> None:
    rows = drawing([0.5, 0.5, math.nan, 0.5, math.inf])
    columns = ["".join(row[at] for row in rows) for at in range(len(rows[0]))]
    is_drawn = [set(column) != {BLANK} for column in columns]
    assert is_drawn[0]
    assert not all(is_drawn)


@given(st.lists(st.floats() | st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 120), st.floats(0, 1e6))
def test_a_chart_fits_whatever_is_drawn(values, width, high) -> None:
    lines = chart("loss", values, high, width)
    assert len({len(line) for line in lines[1:-1]}) == 1
    assert len(lines[1]) <= max(width, len(f"{high:.2f}") + 6)


def test_curves_are_left_out_where_they_cannot_be_written() -> None:
    for encoding, is_drawn in (("utf-8", True), ("ascii", False)):
        file = io.TextIOWrapper(io.BytesIO(), encoding)
        show_curves(Console(file=file), [Epoch(1, 2.0, 0.1, 1.0, 1.0), Epoch(2, math.nan, 0.2, 1.0, 1.0)])
        file.seek(0)
        assert ("test accuracy" in file.read()) == is_drawn


def test_a_picture_of_one_epoch_shows_its_two_values(tmp_path) -> None:
    """One point makes no line: it is drawn large, with its number."""
    picture = tmp_path / "one.svg"
    with rc_context({"svg.fonttype": "none"}):  # letters as letters
        write_picture(picture, [Epoch(1, 2.125, 0.375, 1.0, 1.0)], "title")
    drawn = picture.read_text()
    assert "2.125" in drawn
    assert "0.375" in drawn


# --- the board --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


def test_an_epoch_is_shown_once_however_often_it_is_told(shown) -> None:
    seen: list[Epoch] = []
    one, two = Epoch(1, 2.3, 0.1, 12.34, 4862.0), Epoch(2, 1.5, 0.45, 11.0, 5454.4)
    with Board(Console(file=shown), Course(("worker-0",), 2, 10), seen) as board:
        for epochs in ([], [one], [one], [one, two], [one, two]):
            board.show([Steps(3, 1.0, 30)], epochs)
    assert seen == [one, two]
    assert shown.getvalue().splitlines() == [
        "epoch      loss   test accuracy   seconds   images/s",
        "    1    2.3000          0.1000      12.3      4,862",
        "    2    1.5000          0.4500      11.0      5,454",
    ]


def test_a_bar_shows_the_loss_since_the_last_look_and_is_full_at_the_end_of_an_epoch(shown) -> None:
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    with Board(console, Course(("worker-0",), 3, 10), []) as board:
        board.show([Steps(9, 90.0, 90)], [])
        board.show([Steps(10, 95.0, 100)], [])
    frames = [line for line in shown.getvalue().replace("\r", "\n").splitlines() if "worker-0" in line]
    assert "epoch  1 of 3 loss 0.500" in frames[-1]
