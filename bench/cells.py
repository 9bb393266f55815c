"""The cells of one number of workers, with one group of processes for each contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from rich.console import Console

from bench.measure import Cell, Contender, Effort, copy_bytes_per_second, measure
from bench.peers import Peer
from bench.table import Report


def measure_cells(
    report: Report, cells: list[Cell], ours: Callable[[], Sequence[Contender]], effort: Effort, console: Console
) -> None:
    """Start what `ours` makes and the report's peers, measure them in each cell, and close them."""
    num_workers = cells[0].workers
    with ExitStack() as stack, console.status("") as status:
        status.update(f"{num_workers} workers: starting")
        report.copy_bytes_per_second.append(copy_bytes_per_second())
        contenders: list[Contender] = []
        for one in ours():
            stack.callback(one.close)
            contenders.append(one)
        for name in report.peers:
            peer = Peer(name, num_workers)
            stack.callback(peer.close)
            contenders.append(peer)
        for cell in cells:
            title = f"{num_workers} workers, {cell.size}"
            measured = measure(cell, contenders, effort, lambda text, title=title: status.update(f"{title}: {text}"))
            report.cells.append(measured)
            report.copy_bytes_per_second.append(copy_bytes_per_second(repeats=3))
            told = ", ".join(f"{name} {(measured.median(name) or 0) * 1e3:.3g}" for name in measured.samples)
            console.print(f"{title}: {told} ms")
