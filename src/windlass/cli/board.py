"""What a training run shows while it goes on: a line for each epoch, and on a terminal a bar for each worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from windlass.apps.report import Epoch, Steps
from windlass.cli.chart import chart

TEXT_COLUMNS = 43
"""What stands beside a bar, and room at its end: a Ctrl-C is echoed there, and must not begin a line."""

HEADING = "epoch      loss   test accuracy   seconds   images/s"


class Course(NamedTuple):
    """Who runs, and how far."""

    workers: tuple[str, ...]
    epochs: int
    steps_per_epoch: int
    opening: str = "loading torch"
    """What a worker does before its first step."""


class Board:
    """Shows a run in a `with` block, and adds the epochs that it has shown to a list. Elsewhere than on a terminal it
    prints whole lines and nothing else. One thread at a time."""

    def __init__(self, console: Console, course: Course, epochs: list[Epoch]) -> None:
        self._console, self._course, self._epochs = console, course, epochs
        self._before = [Steps(0, 0.0, 0)] * len(course.workers)
        self._progress = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(bar_width=max(8, min(40, console.width - TEXT_COLUMNS))),
            TextColumn("{task.fields[where]}"),
            TextColumn("{task.fields[loss]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bars: list[TaskID] = []

    def __enter__(self) -> Board:
        self._say(HEADING, style="bold")
        for name in self._course.workers:
            bar = self._progress.add_task(name, total=self._course.steps_per_epoch, where=self._course.opening, loss="")
            self._bars.append(bar)
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, done: Sequence[Steps], epochs: Sequence[Epoch]) -> None:
        """What each worker has done so far, and epochs that are over; those shown before are not shown again."""
        for epoch in epochs:
            if self._epochs and epoch.number <= self._epochs[-1].number:
                continue
            self._epochs.append(epoch)
            self._say(
                f"{epoch.number:>5}  {epoch.loss:>8.4f}   {epoch.accuracy:>13.4f}   {epoch.seconds:>7.1f}   "
                f"{epoch.images_per_second:>8,.0f}"
            )
        for index, (bar, now) in enumerate(zip(self._bars, done, strict=True)):
            self._move(bar, self._before[index], now)
            self._before[index] = now

    def _move(self, bar: TaskID, before: Steps, now: Steps) -> None:
        if not now.steps:
            return
        epoch, step = divmod(int(now.steps), self._course.steps_per_epoch)
        if not step:
            epoch, step = epoch - 1, self._course.steps_per_epoch  # the end of one epoch, not the beginning of the next
        self._progress.update(bar, completed=step, where=f"epoch {epoch + 1:>2} of {self._course.epochs}")
        if now.images > before.images:
            loss = (now.loss - before.loss) / (now.images - before.images)
            self._progress.update(bar, loss=f"loss {loss:.3f}")

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)


def show_curves(console: Console, epochs: Sequence[Epoch]) -> None:
    """Both curves, beside each other if there is room."""
    if not console.encoding.startswith("utf"):
        return  # braille cannot be written there
    width = min(console.width, 80) // 2 - 2
    losses, accuracies = [epoch.loss for epoch in epochs], [epoch.accuracy for epoch in epochs]
    worst = max((loss for loss in losses if math.isfinite(loss)), default=1.0)
    curves = (chart("training loss", losses, worst, width), chart("test accuracy", accuracies, 1.0, width))
    console.print(Columns([Text("\n".join(lines), no_wrap=True) for lines in curves], padding=(0, 2)))
