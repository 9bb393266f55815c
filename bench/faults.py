"""`python -m bench.faults`: how long the loss of a server or worker is felt, and what replicas and snapshots cost."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench import recovery
from bench.quiet import NOISY_CORES, busy_cores
from bench.table import Extra, grid, machine, style, versions, write_section

SECTION = "bench.faults"
COLUMNS = ("what", "found", "target", "verdict")
MEASURES: dict[str, Callable[[int], list[Extra]]] = {
    "kill": recovery.measure_killed_servers,
    "stop": lambda repeats: recovery.measure_stopped_servers(max(1, repeats // 4)),
    "worker": lambda repeats: recovery.measure_killed_workers(max(1, repeats // 4)),
    "add": lambda repeats: recovery.measure_added_servers(max(1, repeats // 4)),
    "replication": lambda repeats: recovery.measure_replication(max(1, repeats // 4)),
    "snapshots": recovery.measure_snapshots,
    "simulation": lambda repeats: recovery.measure_simulation(0.5 * repeats),
}
NOTES = (
    "3 servers, 1 replica, 4 workers that push one float32 model of 20 MB in rounds (`Sequential()`), shared memory, "
    "all on one machine.",
    "A time after a failure ends with the first acknowledged push that was begun after it: such a push touches every "
    "range, those of the lost server among them.",
)


def main(
    only: Annotated[list[str], typer.Option(help=f"{', '.join(MEASURES)}: only these.")] = [],  # noqa: B006
    repeats: Annotated[int, typer.Option(help="Servers killed; of the slower measurements a quarter of it.")] = 20,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure and print a table. Exits with 1 when a target is missed."""
    console = Console(stderr=True)
    unknown = set(only) - set(MEASURES)
    if unknown:
        console.print(f"[red]--only expects {', '.join(MEASURES)}, got {', '.join(unknown)}")
        raise typer.Exit(2)
    extras: list[Extra] = []
    others: list[float] = []
    for name, measure in MEASURES.items():
        if only and name not in only:
            continue
        others.append(busy_cores())
        with console.status(name):
            extras += measure(repeats)
        console.print(f"{name}: {extras[-1].found}")
    if max(others) > NOISY_CORES:
        console.print(f"[yellow]{_said(others)}: measure again on a quiet machine", soft_wrap=True)
    show(extras, Console(width=None if sys.stdout.isatty() else 160))
    if markdown_file is not None:
        write_section(markdown_file, SECTION, markdown(extras, others))
    if any(extra.verdict.is_kept is False for extra in extras):
        raise typer.Exit(1)


def _said(others: Sequence[float]) -> str:
    return f"Others kept {statistics.median(others):.2f} cores busy before each measurement, {max(others):.2f} at most"


def _rows(extras: Sequence[Extra]) -> list[tuple[str, str, str, str]]:
    return [(one.what, one.found, one.verdict.target, one.verdict.word) for one in extras]


def show(extras: Sequence[Extra], console: Console) -> None:
    table = Table(*COLUMNS, title="faults")
    for row in _rows(extras):
        table.add_row(*row, style=style(row[-1]))
    console.print(table)


def markdown(extras: Sequence[Extra], others: Sequence[float]) -> str:
    command = f"python -m bench.faults {shlex.join(sys.argv[1:])}".strip()
    lines = [f"- Machine: {machine()}", f"- Versions: {versions([])}", f"- Command: `{command}`", ""]
    lines += grid(COLUMNS, _rows(extras))
    return "\n".join([*lines, "", *(f"- {note}" for note in (*NOTES, f"{_said(others)}.")), ""])


if __name__ == "__main__":
    typer.run(main)
