"""`python -m bench.dense`: push + pull beside gloo's and OpenMPI's all-reduce, interleaved in one run."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import ours
from bench.cells import measure_cells
from bench.links import measure_links
from bench.measure import Cell, Effort
from bench.memory import measure_memory
from bench.peers import MissingPeer, check_peers
from bench.round_trip import measure_round_trip
from bench.table import Report, markdown, show, write_section

ELEMENTS = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 40_000_000)
QUICK_ELEMENTS = (1 << 10, 1 << 18, 40_000_000)
SECTION = "bench.dense"


class PeerName(StrEnum):
    GLOO = "gloo"
    MPI = "mpi"


class OursName(StrEnum):
    SHM = "shm"
    BUFFER = "buffer"
    TCP = "tcp"


def main(
    without: Annotated[list[PeerName], typer.Option(help="Leave this peer out; else a missing one is an error.")] = [],  # noqa: B006
    only: Annotated[list[OursName], typer.Option(help="Measure only these of Windlass's ways.")] = [],  # noqa: B006
    workers: Annotated[list[int], typer.Option(help="Numbers of workers.")] = [2, 4],  # noqa: B006
    elements: Annotated[list[int], typer.Option(help="Sizes, in float32 elements, instead of the usual five.")] = [],  # noqa: B006
    alternations: Annotated[int, typer.Option(help="Samples of each contender in each cell.")] = 7,
    sample_seconds: Annotated[float, typer.Option(help="About how long a sample of a short operation takes.")] = 0.3,
    quick: Annotated[
        bool, typer.Option("--quick", help="4 workers, three sizes, three short alternations, no extras.")
    ] = False,
    extras: Annotated[bool, typer.Option(help="Also the round trip, the links and the servers' memory.")] = True,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure Windlass beside its peers and print a table. Exits with 1 when a target is missed."""
    console = Console(stderr=True)
    if quick:
        workers, elements = [4], elements or list(QUICK_ELEMENTS)
        alternations, sample_seconds, extras = 3, min(sample_seconds, 0.15), False
    peers = [peer.value for peer in PeerName if peer not in without]
    try:
        check_peers(peers)
    except MissingPeer as missing:
        console.print(f"[red]{missing}", soft_wrap=True)
        raise typer.Exit(2) from None
    report = Report(f"python -m bench.dense {shlex.join(sys.argv[1:])}".strip(), peers)
    effort = Effort(alternations=alternations, sample_seconds=sample_seconds)
    names = [name.value for name in OursName if not only or name in only]
    for count in workers:
        cells = [Cell(count, size) for size in elements or ELEMENTS]
        measure_cells(report, cells, lambda count=count: ours.contenders(names, count), effort, console)
    if extras:
        measure_extras(report, console)
    show(report, Console(width=None if sys.stdout.isatty() else 160))
    if markdown_file is not None:
        write_section(markdown_file, SECTION, markdown(report))
    if any(verdict.is_kept is False for verdict in report.verdicts):
        raise typer.Exit(1)


def measure_extras(report: Report, console: Console) -> None:
    for title, run in (
        ("the round trip", measure_round_trip),
        ("the servers' memory", measure_memory),
        ("many links", lambda: [measure_links()]),
    ):
        with console.status(title):
            report.extras += run()
        console.print(f"{title}: {'; '.join(extra.found for extra in report.extras if extra.found)}")


if __name__ == "__main__":
    typer.run(main)
