"""Curves: in a terminal, drawn with the dots of braille characters, and in a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from windlass.apps.report import Epoch

HEIGHT = 9
MAX_COLUMNS = 36
_BLANK = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of one character: four rows of two


def chart(title: str, values: Sequence[float], high: float, width: int) -> list[str]:
    """A line through values between 0 and `high`, at 1, 2, ...; lines of at most `width` characters. What is not finite
    is left out."""
    top, bottom = f"{high:.2f}", "0.00"
    margin = max(len(top), len(bottom))
    columns = max(4, min(MAX_COLUMNS, width - margin - 2))
    sides = [top, *[""] * (HEIGHT - 2), bottom]
    rows = zip(sides, _plot(values, high, columns), strict=True)
    return [
        f"{'':{margin}}  {title}",
        *(f"{side:>{margin}} │{''.join(map(chr, row))}" for side, row in rows),
        f"{'':{margin}} └{'─' * columns}",
        f"{'':{margin}}  1{len(values) if len(values) > 1 else '':>{columns - 1}}",
    ]


def _plot(values: Sequence[float], high: float, columns: int) -> list[list[int]]:
    cells = [[_BLANK] * columns for _ in range(HEIGHT)]
    right, floor = columns * 2 - 1, HEIGHT * 4 - 1
    before: int | None = None
    for x in range(right + 1):
        value = _between(values, x / right * (len(values) - 1))
        if not math.isfinite(value):
            before = None
            continue
        part = min(1.0, max(0.0, value / (high or 1.0)))
        y = round((1 - part) * floor)
        start = y if before is None else before
        for dot in range(min(start, y), max(start, y) + 1):
            cells[dot // 4][x // 2] |= _DOTS[dot % 4][x % 2]
        before = y
    return cells


def _between(values: Sequence[float], at: float) -> float:
    """The value at a place between two given ones."""
    left = min(int(at), len(values) - 1)
    part = at - left
    return values[left] if not part else values[left] * (1 - part) + values[left + 1] * part


def write_picture(path: Path, epochs: Sequence[Epoch], title: str) -> None:
    """Loss and test accuracy by epoch, as a PNG or what else the name's ending says. Raises ImportError without
    matplotlib, and OSError or ValueError where it cannot write such a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title, fontsize=10)
    numbers = [epoch.number for epoch in epochs]
    curves = {
        "training loss": ([epoch.loss for epoch in epochs], "tab:blue"),
        "test accuracy": ([epoch.accuracy for epoch in epochs], "tab:orange"),
    }
    loss, accuracy = figure.subplots(1, 2)
    for axes, (name, (values, colour)) in zip((loss, accuracy), curves.items(), strict=True):
        axes.plot(numbers, values, marker="o", markersize=3 if len(numbers) > 1 else 8, color=colour)
        axes.set_xlabel("epoch")
        axes.set_title(name, fontsize=10)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        if len(numbers) == 1:  # a point and no line: matplotlib would show it between 0.96 and 1.04
            axes.set_xlim(0, 2)
            axes.annotate(f"{values[0]:.3f}", (numbers[0], values[0]), (10, -4), textcoords="offset points")
    loss.set_ylim(bottom=0)
    accuracy.set_ylim(0, 1)
    figure.savefig(path, dpi=120)
