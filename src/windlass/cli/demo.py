"""`windlass demo`: LeNet on Fashion-MNIST, trained by servers and workers, watched while it learns."""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from windlass._words import count, say
from windlass.apps import fashion, report
from windlass.apps.plan import Plan
from windlass.cli.board import Board, Course
from windlass.cli.demo_words import COMPILING, conclude, introduce, is_first_use, starting
from windlass.engines._compiling import SILENCE
from windlass.engines.cluster import Cluster
from windlass.errors import UsageError, WindlassError
from windlass.trace.collector import check_path
from windlass.types import Consistency, Sequential
from windlass.worker.store import Store

EPOCHS = 10
SAMPLE_EPOCHS = 25
"""An epoch of the sample has a sixth of the steps, and the network needs some 300 before it begins to learn."""

WATCH_SECONDS = 0.1
MODES = ("store", "allreduce")
PICTURES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What the user asked for."""

    servers: int
    workers: int
    devices: str
    consistency: Consistency
    mode: str
    data: str
    epochs: int | None
    batch_size: int
    lr: float
    seed: int
    plot: Path
    trace: str
    is_plain: bool

    @property
    def num_seats(self) -> int:
        """How many share a batch."""
        return 1 if self.is_plain else self.workers

    def check(self) -> None:
        """Raise UsageError for what could only fail later."""
        if self.mode not in MODES:
            raise UsageError(f"--mode expects {' or '.join(MODES)}, got {self.mode!r}")
        if self.mode == "allreduce" and not isinstance(self.consistency, Sequential):
            raise UsageError(f"--mode allreduce expects --consistency sequential, got {self.consistency}")
        if self.trace and self.is_plain:
            raise UsageError("--trace shows servers and workers, and --plain has none: leave one of them out")
        check_path(self.trace)
        if not self.lr > 0:
            raise UsageError(f"--lr expects a number above 0, got {self.lr:g}")
        if self.devices.isdecimal() and int(self.devices) < 1:
            raise UsageError(f"--devices expects a number of at least 1, or names, got {self.devices}")
        if self.plot.suffix not in PICTURES:
            raise UsageError(f"--plot expects a name that ends in {', '.join(PICTURES)}, got '{self.plot}'")
        if not self.plot.absolute().parent.is_dir():
            raise UsageError(f"--plot: there is no directory {self.plot.absolute().parent}")
        if importlib.util.find_spec("torch") is None:
            raise UsageError("the demo trains with PyTorch, which is not here: pip install 'windlass[demo]'")


def demo(asked: Demo) -> None:
    """Blocks until it has trained. Raises UsageError, or what else went wrong in the cluster. After Ctrl-C it says how
    far it came and raises KeyboardInterrupt; nothing is left running then."""
    asked.check()
    console = Console(highlight=False)
    epochs: list[report.Epoch] = []
    began = time.monotonic()
    try:
        _train(asked, console, epochs)
    except KeyboardInterrupt:
        say(console, f"Stopped by Ctrl-C after {count(len(epochs), 'epoch')}.")
        raise
    conclude(console, asked, epochs, time.monotonic() - began)


def _train(asked: Demo, console: Console, epochs: list[report.Epoch]) -> None:
    """Train, and show it; the epochs are added to the list as they end."""
    devices = _devices(asked)
    source = fashion.find(asked.data, fashion.default_places(os.environ), lambda text: say(console, text))
    data = source.load()
    num_epochs = asked.epochs or (SAMPLE_EPOCHS if source.is_sample else EPOCHS)
    introduce(console, asked, source, data, num_epochs)
    plan = Plan(
        source=source,
        epochs=num_epochs,
        batch_size=asked.batch_size,
        lr=asked.lr,
        seed=asked.seed,
        mode=asked.mode,
        devices=devices,
    )
    plan.check(data, asked.num_seats)
    names = ("plain loop",) if asked.is_plain else tuple(f"worker-{rank}" for rank in range(asked.workers))
    is_first = not asked.is_plain and is_first_use()
    opening = "loading torch, compiling" if is_first else "loading torch"
    board = Board(console, Course(names, num_epochs, plan.steps_per_epoch(data), opening), epochs)
    if asked.is_plain:
        with board:
            _train_alone(plan, board)
        return
    is_sequential = isinstance(asked.consistency, Sequential)
    if is_first:
        os.environ[SILENCE] = "1"  # it is said here, or by the bars
        if not console.is_terminal:
            say(console, f"{COMPILING.capitalize()}: half a minute or so.")
    with console.status(starting(asked, is_first_use=is_first)):
        cluster = Cluster(
            servers=asked.servers,
            workers=asked.workers,
            consistency=asked.consistency,
            deterministic=is_sequential,
            trace=asked.trace,
        )
    with cluster, board, _watched(cluster, plan.epochs, len(data.test.labels), board):
        cluster.run(_work, plan)


def _work(store: Store, plan: Plan) -> None:
    """In a worker. The driver does without torch, which takes two seconds to load: the workers load it all at once."""
    from windlass.apps.lenet import train

    train(store, plan)


def _train_alone(plan: Plan, board: Board) -> None:
    from windlass.apps.lenet import train_alone

    train_alone(plan, _Direct(board))


class _Direct:
    """Shows what the plain loop reports."""

    def __init__(self, board: Board) -> None:
        self._board, self._done = board, report.Steps(0, 0.0, 0)

    def step(self, done: report.Steps) -> None:
        self._done = report.Steps(*(before + more for before, more in zip(self._done, done, strict=True)))
        self._board.show([self._done], [])

    def epoch(self, number: int, share: report.Share) -> None:
        self._board.show([self._done], [report.epoch_of(number, report.row_of(share, 0, 1))])


@contextmanager
def _watched(cluster: Cluster, epochs: int, tests: int, board: Board) -> Iterator[None]:
    """Inside, a thread shows what is in the store. The driver is no worker: nobody waits for its reads."""
    store, is_over = cluster.store(), threading.Event()
    report.declare(store, workers=cluster.num_workers, epochs=epochs)

    def watch() -> None:
        try:
            while not is_over.wait(WATCH_SECONDS):
                board.show(*report.read(store, tests=tests))
        except WindlassError:
            pass  # the run will say what happened to the cluster

    thread = threading.Thread(target=watch, name="windlass-demo-watch", daemon=True)
    thread.start()
    try:
        yield
        is_over.set()
        thread.join()
        board.show(*report.read(store, tests=tests))
    finally:
        is_over.set()
        thread.join(1.0)


# --- what was asked ---------------------------------------------------------------------------------------------------


def _devices(asked: Demo) -> tuple[str, ...]:
    """A number is so many replicas on the CPU for each worker; names are dealt out. Raises UsageError for a name that
    is not a device's, and for names that cannot be dealt out evenly."""
    if asked.devices.isdecimal():
        return ("cpu",) * (int(asked.devices) * asked.num_seats)
    names = tuple(name.strip() for name in asked.devices.split(","))
    if set(names) != {"cpu"}:
        from windlass.torch.devices import resolve

        resolve(names)
    if len(names) % asked.num_seats:
        seats = asked.num_seats
        raise UsageError(
            f"--devices expects as many for each of {seats} workers, got {len(names)} ({', '.join(names)}): "
            f"name {seats} or a multiple of it, or change --workers"
        )
    return names
