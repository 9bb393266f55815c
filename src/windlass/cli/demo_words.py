"""What the demo says before and after it trains."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import windlass.store
from windlass._words import count, say
from windlass.apps import fashion, report
from windlass.cli.board import show_curves
from windlass.cli.chart import write_picture
from windlass.types import Consistency

if TYPE_CHECKING:
    from windlass.cli.demo import Demo

PLATEAU = 60.0
"""For so many steps, or so, at a learning rate of 1, weights as small as LeNet's first ones let hardly any signal
through: for twice as many at half the rate. With seeds 0 to 3 it was 52 to 58 until the loss was below 2.295."""

COMPILING = "compiling kernels, for the first time"
SERVERS = WORKERS = 2


def introduce(console: Console, asked: Demo, source: fashion.Source, data: fashion.Data, epochs: int) -> None:
    counts = f"{len(data.train.labels):,} images to train on and {len(data.test.labels):,} to test"
    if source.is_sample:
        say(console, f"LeNet on the sample of Fashion-MNIST that ships with Windlass, a sixth of it: {counts}.")
    else:
        say(console, f"LeNet on Fashion-MNIST: {counts}, from {source.directory}.")
    who = f"{count(asked.servers, 'server')} and {count(asked.workers, 'worker')}, each a process of its own"
    if asked.devices != "1":
        who += f", devices {asked.devices}"
    how = f"batches of {asked.batch_size}, learning rate {asked.lr:g}, seed {asked.seed}, {count(epochs, 'epoch')}"
    if asked.is_plain:
        say(console, f"A plain torch loop, without Windlass; {how}.")
        _say_what_is_idle(console, asked)
    else:
        say(console, f"{who}; {_policy(asked.consistency)}, mode {asked.mode}; {how}.")
    say(console, foresee(asked.lr, -(-len(data.train.labels) // asked.batch_size), epochs))
    console.print()


def foresee(lr: float, steps_per_epoch: int, epochs: int) -> str:
    """How long nothing will seem to happen."""
    steps = max(10, round(PLATEAU / lr, -1))
    silent = steps / steps_per_epoch
    told = f"{silent:.1f}".removesuffix(".0") if silent < 10 else f"{silent:,.0f}"
    text = (
        f"The loss stays at 2.303, a blind guess, for {steps:,.0f} steps or so at this learning rate: "
        f"{told} epoch{'' if told == '1' else 's'} here"
    )
    return f"{text}, more than this run has." if silent > epochs else f"{text}."


def _say_what_is_idle(console: Console, asked: Demo) -> None:
    given = {"--servers": (asked.servers, SERVERS), "--workers": (asked.workers, WORKERS)}
    idle = [f"{name} {number}" for name, (number, default) in given.items() if number != default]
    if idle:
        say(console, f"The plain loop is one process: {' and '.join(idle)} change{'s' * (len(idle) == 1)} nothing.")


def starting(asked: Demo, *, is_first_use: bool) -> str:
    who = f"Starting {count(asked.servers, 'server')} and {count(asked.workers, 'worker')}"
    return f"{who}: {COMPILING}" if is_first_use else who


def is_first_use(*sources: str) -> bool:
    """Whether numba has yet to compile kernels, those of the store or of these files of the package: it keeps them in
    one of a few places, newer than their source."""
    package = Path(windlass.store.__path__[0]).parent
    return any(_is_new(package / each) for each in sources or ("store/kernels.py",))


def _is_new(source: Path) -> bool:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    shared = Path(chosen) if chosen else cache / "numba"
    made = [*shared.glob(f"{source.parent.name}_*/{source.stem}.*.nbi")]
    if not chosen:
        made += (source.parent / "__pycache__").glob(f"{source.stem}.*.nbi")
    return not any(each.stat().st_mtime >= source.stat().st_mtime for each in made)


def conclude(console: Console, asked: Demo, epochs: Sequence[report.Epoch], seconds: float) -> None:
    mean = sum(epoch.seconds for epoch in epochs) / len(epochs)
    console.print()
    say(
        console,
        f"Test accuracy {epochs[-1].accuracy:.4f} after {count(len(epochs), 'epoch')} of {mean:.1f} s; "
        f"{seconds:.0f} s in all.",
    )
    if len(epochs) > 1:
        console.print()
        show_curves(console, epochs)
    console.print()
    say(console, _picture(asked, epochs))
    if asked.trace:
        say(console, f"The trace is in {asked.trace}: open it at https://ui.perfetto.dev, or see docs/tracing.md.")


def _picture(asked: Demo, epochs: Sequence[report.Epoch]) -> str:
    who = "plain loop" if asked.is_plain else f"{count(asked.servers, 'server')}, {count(asked.workers, 'worker')}"
    title = f"LeNet on Fashion-MNIST ({who}, batch {asked.batch_size}, learning rate {asked.lr:g})"
    try:
        write_picture(asked.plot, epochs, title)
    except ImportError:
        return "The curves are not in a picture, which needs matplotlib: pip install 'windlass[demo]'"
    except (OSError, ValueError) as error:
        return f"The curves could not be written to {asked.plot}: {error}"
    return f"The curves are in {asked.plot}."


def _policy(consistency: Consistency) -> str:
    return str(consistency).lower().removesuffix("()").replace("delay=", "")
