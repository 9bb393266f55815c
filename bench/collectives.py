"""`python -m bench.collectives`: all-reduce in shared memory beside gloo's and OpenMPI's, interleaved in one run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import groups
from bench.cells import measure_cells
from bench.dense import PeerName
from bench.measure import Cell, Effort
from bench.peers import MissingPeer, check_peers
from bench.table import NAMES, Report, markdown, show, write_section
from bench.targets import Targets, at_most, faster

ELEMENTS = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 40_000_000)
QUICK_ELEMENTS = (1 << 10, 40_000_000)
SECTION = "bench.collectives"
LARGE, SMALL = Cell(4, 40_000_000), Cell(2, 1 << 10)
TARGETS: Targets = {
    (LARGE, "group"): [faster("gloo", 1.7), faster("mpi", 1.4)],
    (LARGE, "group-buffer"): [faster("gloo", 4), faster("mpi", 3)],
    (SMALL, "group"): [at_most(0.06)],
}


def main(
    without: Annotated[list[PeerName], typer.Option(help="Leave this peer out; else a missing one is an error.")] = [],  # noqa: B006
    workers: Annotated[list[int], typer.Option(help="Numbers of workers.")] = [2, 4],  # noqa: B006
    elements: Annotated[list[int], typer.Option(help="Sizes, in float32 elements, instead of the usual five.")] = [],  # noqa: B006
    alternations: Annotated[int, typer.Option(help="Samples of each contender in each cell.")] = 7,
    sample_seconds: Annotated[float, typer.Option(help="About how long a sample of a short operation takes.")] = 0.3,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes, three short alternations.")] = False,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure the group's all-reduce beside its peers and print a table. Exits with 1 when a target is missed."""
    console = Console(stderr=True)
    if quick:
        elements, alternations, sample_seconds = elements or list(QUICK_ELEMENTS), 3, min(sample_seconds, 0.15)
    peers = [peer.value for peer in PeerName if peer not in without]
    try:
        check_peers(peers)
    except MissingPeer as missing:
        console.print(f"[red]{missing}", soft_wrap=True)
        raise typer.Exit(2) from None
    command = f"python -m bench.collectives {shlex.join(sys.argv[1:])}".strip()
    title = "all-reduce of one float32 tensor by all workers, medians"
    report = Report(command, peers, title=title, names=NAMES | groups.NAMES, targets=TARGETS)
    effort = Effort(alternations=alternations, sample_seconds=sample_seconds)
    for count in workers:
        cells = [Cell(count, size) for size in elements or ELEMENTS]
        measure_cells(report, cells, lambda count=count: groups.contenders(count), effort, console)
    show(report, Console(width=None if sys.stdout.isatty() else 160))
    if markdown_file is not None:
        write_section(markdown_file, SECTION, markdown(report))
    if any(verdict.is_kept is False for verdict in report.verdicts):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
