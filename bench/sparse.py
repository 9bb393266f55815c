"""`python -m bench.sparse`: push and pull of a table's rows beside Redis, torch.rpc and nn.Embedding, in one run."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import sparse_ours, table_core
from bench.growth import measure_growth
from bench.measure import Cell, Contender, Effort, Measured, measure
from bench.peers import MissingPeer
from bench.quiet import NOISY_CORES, busy_cores
from bench.sketches import measure_sketches
from bench.sparse_load import DIM, LR, RAW_IDS, load
from bench.sparse_peers import SETTINGS, Peer, check_peers, version
from bench.table import Extra, grid, machine, style, versions, write_section
from bench.targets import Verdict

SECTION = "bench.sparse"
NAMES = {
    "sgd": "Windlass, SGD on the server",
    "adagrad": "Windlass, Adagrad on the server",
    "redis": "Redis",
    "rpc": "torch.rpc, `nn.Embedding`",
    "torch": "`nn.Embedding` in the worker's process",
}
TARGETS = {1: 4.5, 2: 5.5}
"""Millions of ids a second that Windlass with SGD must reach, by number of workers."""

COLUMNS = ("workers", "who", "M ids/s", "ms a step", "÷ Redis", "÷ torch.rpc", "target", "verdict")
EXTRA_COLUMNS = ("what", "found", "target", "verdict")


class PeerName(StrEnum):
    REDIS = "redis"
    RPC = "rpc"
    TORCH = "torch"


class Part(StrEnum):
    PAIRS = "pairs"
    BATCHES = "batches"
    SLOTS = "slots"
    SIZE = "size"
    GROWTH = "growth"
    SKETCHES = "sketches"


@dataclass(slots=True)
class Report:
    """Everything that one run has measured."""

    command: str
    num_ids: int
    peers: Sequence[str]
    mean_ids: float = 0.0
    """Of a batch, each counted once."""

    cells: list[Measured] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    others_cores: list[float] = field(default_factory=list)

    def speed(self, measured: Measured, name: str) -> float | None:
        """Millions of ids a second, of all workers."""
        seconds = measured.median(name)
        return None if seconds is None else measured.cell.workers * self.mean_ids / seconds / 1e6

    def verdict(self, measured: Measured, name: str) -> Verdict:
        target, speed = TARGETS.get(measured.cell.workers), self.speed(measured, name)
        if name != "sgd" or target is None or speed is None:
            return Verdict("", None)
        return Verdict(f"≥ {target:g}", speed >= target)

    @property
    def is_kept(self) -> bool:
        judged = [self.verdict(cell, name) for cell in self.cells for name in cell.samples]
        return all(verdict.is_kept is not False for verdict in judged + [extra.verdict for extra in self.extras])


def main(
    without: Annotated[list[PeerName], typer.Option(help="Leave this peer out; else a missing one is an error.")] = [],  # noqa: B006
    only: Annotated[list[Part], typer.Option(help="Only these parts.")] = [],  # noqa: B006
    workers: Annotated[list[int], typer.Option(help="Numbers of workers.")] = [1, 2],  # noqa: B006
    num_ids: Annotated[int, typer.Option(help="Rows of the table that is pushed to and pulled from.")] = 1_000_000,
    rows: Annotated[int, typer.Option(help="Rows of the large table.")] = 10_000_000,
    alternations: Annotated[int, typer.Option(help="Samples of each contender.")] = 7,
    sample_seconds: Annotated[float, typer.Option(help="About how long a sample takes.")] = 0.5,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure Windlass beside its peers and print tables. Exits with 1 when a target is missed."""
    console = Console(stderr=True)
    parts = only or list(Part)
    peers = [peer.value for peer in PeerName if peer not in without and Part.PAIRS in parts]
    try:
        check_peers(peers)
    except MissingPeer as missing:
        console.print(f"[red]{missing}", soft_wrap=True)
        raise typer.Exit(2) from None
    report = Report(f"python -m bench.sparse {shlex.join(sys.argv[1:])}".strip(), num_ids, peers)
    for count in workers if Part.PAIRS in parts else ():
        measure_pairs(report, count, Effort(alternations=alternations, sample_seconds=sample_seconds), console)
    extras: dict[Part, Callable[[], list[Extra]]] = {
        Part.BATCHES: lambda: table_core.measure_batches(num_ids, sample_seconds),
        Part.SLOTS: lambda: table_core.measure_slots(num_ids, sample_seconds),
        Part.SIZE: lambda: table_core.measure_size(rows),
        Part.GROWTH: lambda: measure_growth(rows),
        Part.SKETCHES: lambda: measure_sketches(num_ids, alternations),
    }
    for part in (part for part in extras if part in parts):
        report.others_cores.append(busy_cores())
        with console.status(part):
            report.extras += extras[part]()
        console.print(f"{part}: {report.extras[-1].found}")
    if max(report.others_cores) > NOISY_CORES:
        console.print(f"[yellow]{_others(report)} Measure again on a quiet machine.", soft_wrap=True)
    show(report, Console(width=None if sys.stdout.isatty() else 160))
    if markdown_file is not None:
        write_section(markdown_file, SECTION, markdown(report))
    if not report.is_kept:
        raise typer.Exit(1)


def measure_pairs(report: Report, num_workers: int, effort: Effort, console: Console) -> None:
    """Start all contenders, measure them by turns, and close them."""
    with ExitStack() as stack, console.status("") as status:
        status.update(f"{num_workers} workers: starting")
        report.mean_ids = load(report.num_ids, 0).mean_ids
        contenders: list[Contender] = list(sparse_ours.contenders(["sgd", "adagrad"], num_workers, report.num_ids))
        stack.callback(contenders[0].close)
        for name in report.peers:
            if name == "torch" and num_workers > 1:
                continue
            contenders.append(Peer(name, num_workers, report.num_ids))
            stack.callback(contenders[-1].close)
        report.others_cores.append(busy_cores())
        title = f"{num_workers} workers"
        cell = Cell(num_workers, report.num_ids)
        report.cells.append(measure(cell, contenders, effort, lambda text: status.update(f"{title}: {text}")))
        told = ", ".join(f"{name} {report.speed(report.cells[-1], name):.2f}" for name in report.cells[-1].samples)
        console.print(f"{title}: {told} M ids/s")


# --- as tables --------------------------------------------------------------------------------------------------------


def pair_rows(report: Report) -> list[tuple[str, ...]]:
    made = []
    for measured in report.cells:
        for name in measured.samples:
            speed, seconds = report.speed(measured, name), measured.median(name)
            assert speed is not None
            assert seconds is not None
            beside = [report.speed(measured, peer) for peer in ("redis", "rpc")]
            ratios = ["" if other is None or name in SETTINGS else f"{speed / other:.2f}" for other in beside]
            verdict = report.verdict(measured, name)
            made.append((
                str(measured.cell.workers), NAMES[name], f"{speed:.2f}", f"{seconds * 1e3:.1f}", *ratios,
                verdict.target, verdict.word,
            ))
    return made


def extra_rows(report: Report) -> list[tuple[str, ...]]:
    return [(one.what, one.found, one.verdict.target, one.verdict.word) for one in report.extras]


def show(report: Report, console: Console) -> None:
    for title, columns, rows in (
        (f"push + pull of about {report.mean_ids:,.0f} rows of {DIM}, medians", COLUMNS, pair_rows(report)),
        ("and", EXTRA_COLUMNS, extra_rows(report)),
    ):
        if rows:
            table = Table(*columns, title=title)
            for row in rows:
                table.add_row(*row, style=style(row[-1]))
            console.print(table)
    for note in notes(report):
        console.print(f"[dim]{note}", soft_wrap=True)


def notes(report: Report) -> list[str]:
    """What one must know to read the numbers."""
    said = []
    if report.cells:
        said = [
            f"A table of {report.num_ids:,} rows of {DIM} float32, all made before, in one server process. A step "
            f"pushes the gradients of one batch and pulls the rows of the next: {RAW_IDS:,} zipf(1.05) ids each, of "
            f"which about {report.mean_ids:,.0f} are different; those travel and are counted, of all workers together. "
            "The time is the slowest worker's; the median over alternations, in each of which every contender was "
            "measured once, in rotating order, the others asleep or stopped.",
            f"Windlass: shared memory, `Bounded({sparse_ours.DELAY})`, learning rate {LR}; `store.push(key, grads, "
            "ids=ids)`, then `store.pull(key, ids=ids, out=rows)`.",
            *(f"{NAMES[peer]}: {SETTINGS[peer]}." for peer in report.peers),
        ]
    return [*said, _others(report)]


def _others(report: Report) -> str:
    median, most = statistics.median(report.others_cores), max(report.others_cores)
    return f"Others kept {median:.2f} cores busy before each measurement, {most:.2f} at most."


def markdown(report: Report) -> str:
    known = ", ".join([versions([]), *dict.fromkeys(version(peer) for peer in report.peers)])
    lines = [f"- Machine: {machine()}", f"- Versions: {known}", f"- Command: `{report.command}`", ""]
    for columns, rows in ((COLUMNS, pair_rows(report)), (EXTRA_COLUMNS, extra_rows(report))):
        lines += [*grid(columns, rows), ""] if rows else []
    return "\n".join([*lines, *(f"- {note}" for note in notes(report)), ""])


if __name__ == "__main__":
    typer.run(main)
