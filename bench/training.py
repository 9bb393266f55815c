"""`python -m bench.training`: training through the store beside the plain loop and torch DDP, in one run."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import windlass as wl
from bench.overlap import measure_overlap
from bench.quiet import NOISY_CORES, busy_cores
from bench.table import Extra, grid, machine, style, versions, write_section
from bench.targets import Verdict
from bench.trainers import Ours, Theirs, Trainer

SECTION = "bench.training"
WHO = {
    "plain": "plain loop, one process, 2 threads",
    "compute": "forward and backward only, 2 processes",
    "compute+kept": "the same, freed memory kept",
    "ddp": "DDP (gloo), 2 processes",
    "ddp+kept": "DDP (gloo), freed memory kept",
    "store": "Windlass, mode=\"store\"",
    "allreduce": "Windlass, mode=\"allreduce\"",
}
CELLS = {
    "lenet": ("LeNet, batch 2 × 128", ("plain", "ddp", "ddp+kept", "store", "allreduce")),
    "mlp": (
        "MLP of 20 M parameters, batch 2 × 32",
        ("compute", "compute+kept", "ddp", "ddp+kept", "store", "allreduce"),
    ),
}
COLUMNS = ("what", "who", "ms a step", "DDP ÷", "target", "verdict")


@dataclass(slots=True)
class Timed:
    """Seconds per step of each contender in one cell, a sample per alternation."""

    network: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    others_cores: list[float] = field(default_factory=list)
    """Before each alternation: how many cores others kept busy while every contender slept."""

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def verdict(self, name: str) -> list[Verdict]:
        if name != "store":
            return []
        rate = self.median("ddp") / self.median(name)
        if self.network == "mlp":
            return [Verdict("≥ 1.6× DDP's rate", rate >= 1.6)]
        slower = self.median(name) / self.median("plain")
        return [Verdict("≥ 0.97× DDP's rate", rate >= 0.97), Verdict("≤ 1.05× the plain loop's time", slower <= 1.05)]


def main(
    only: Annotated[list[str], typer.Option(help="lenet, mlp, overlap, stragglers: only these.")] = [],  # noqa: B006
    alternations: Annotated[int, typer.Option(help="Samples of each contender.")] = 5,
    steps: Annotated[int, typer.Option(help="Steps in a sample.")] = 20,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure and print a table. Exits with 1 when a target is missed."""
    console = Console(stderr=True)
    unknown = set(only) - {*CELLS, "overlap", "stragglers"}
    if unknown:
        console.print(f"[red]--only expects {', '.join(CELLS)}, overlap or stragglers, got {', '.join(unknown)}")
        raise typer.Exit(2)
    timed = [measure_cell(network, alternations, steps, console) for network in CELLS if not only or network in only]
    extras: list[Extra] = []
    for name, run in (("overlap", measure_hidden), ("stragglers", measure_stragglers)):
        if not only or name in only:
            with console.status(name):
                extras += run()
    rows = _rows(timed)
    show(rows, extras, Console(width=None if sys.stdout.isatty() else 160))
    if markdown_file is not None:
        write_section(markdown_file, SECTION, markdown(rows, extras, timed))
    verdicts = [verdict for one in timed for name in one.samples for verdict in one.verdict(name)]
    if any(verdict.is_kept is False for verdict in [*verdicts, *(extra.verdict for extra in extras)]):
        raise typer.Exit(1)


def measure_cell(network: str, alternations: int, steps: int, console: Console) -> Timed:
    """Each contender in turn, the others asleep; whatever else the machine does hits them alike."""
    title, names = CELLS[network]
    timed = Timed(network, {name: [] for name in names})
    with ExitStack() as stack, console.status(f"{title}: starting") as status:
        cluster = stack.enter_context(wl.Cluster(servers=2, workers=2))
        contenders: list[Trainer] = []
        for name in names:
            if name in ("store", "allreduce"):
                contenders.append(Ours(cluster, name))
            else:
                theirs = Theirs(name, 1 if name == "plain" else 2)
                stack.callback(theirs.close)
                contenders.append(theirs)
        for one in contenders:
            one.prepare(network)
        for turn in range(alternations):
            timed.others_cores.append(busy_cores())
            first = turn % len(contenders)
            for one in (*contenders[first:], *contenders[:first]):
                status.update(f"{title}: {one.name}, {turn + 1} of {alternations}")
                timed.samples[one.name].append(one.seconds(steps))
    told = ", ".join(f"{name} {timed.median(name) * 1e3:.1f}" for name in names)
    console.print(f"{title}: {told} ms")
    if max(timed.others_cores) > NOISY_CORES:
        console.print(f"[yellow]{_others([timed])}: measure again on a quiet machine", soft_wrap=True)
    return timed


def _others(timed: Sequence[Timed]) -> str:
    found = [cores for one in timed for cores in one.others_cores]
    return f"Others kept {statistics.median(found):.2f} cores busy while all contenders slept, {max(found):.2f} at most"


def measure_hidden() -> list[Extra]:
    found = measure_overlap()
    text = (
        f"{found.share_hidden:.0%} of {found.communication_seconds:.2f} s a step, under {found.compute_seconds:.2f} s "
        f"of compute; pushes leave before backward ends: {'yes' if found.is_early else 'no'}"
    )
    what = "communication hidden behind backward: 20 layers of 4 MB, link of 200 MB/s"
    return [Extra(what, text, Verdict("≥ 60 %", found.share_hidden >= 0.6 and found.is_early))]


def measure_stragglers() -> list[Extra]:
    from bench.straggling import measure

    return measure()


def _rows(timed: Sequence[Timed]) -> list[tuple[str, ...]]:
    rows = []
    for one in timed:
        for name in one.samples:
            verdicts = one.verdict(name)
            ratio = one.median("ddp") / one.median(name)
            rows.append((
                CELLS[one.network][0], WHO[name], f"{one.median(name) * 1e3:.1f}", f"{ratio:.2f}",
                ", ".join(verdict.target for verdict in verdicts), ", ".join(verdict.word for verdict in verdicts),
            ))
    return rows


NOTES = (
    "A time is the slowest process's wall time per step of a loop that all begin together; the median over "
    "alternations, in each of which every contender was measured once, the others asleep. One torch thread a process, "
    "the plain loop two, which sleep where they wait for each other (`OMP_WAIT_POLICY=passive`). `DDP ÷` is DDP's time "
    "over the contender's.",
    "Windlass's workers have malloc keep freed memory; nothing keeps others from doing the same "
    "(`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`), so DDP is measured in both ways. The target is against DDP "
    "as it comes.",
)


def show(rows: Sequence[Sequence[str]], extras: Sequence[Extra], console: Console) -> None:
    if rows:
        table = Table(*COLUMNS, title="training, medians")
        for row in rows:
            table.add_row(*row, style=style(row[-1]))
        console.print(table)
    if extras:
        more = Table("what", "found", "target", "verdict", title="and")
        for extra in extras:
            verdict = extra.verdict
            more.add_row(extra.what, extra.found, verdict.target, verdict.word, style=style(verdict.word))
        console.print(more)


def markdown(rows: Sequence[Sequence[str]], extras: Sequence[Extra], timed: Sequence[Timed]) -> str:
    command = f"python -m bench.training {shlex.join(sys.argv[1:])}".strip()
    lines = [f"- Machine: {machine()}", f"- Versions: {versions(['gloo'])}", f"- Command: `{command}`", ""]
    lines += grid(COLUMNS, rows) if rows else []
    if extras:
        found = [(one.what, one.found, one.verdict.target, one.verdict.word) for one in extras]
        lines += ["", *grid(("what", "found", "target", "verdict"), found)]
    notes = [*NOTES, f"{_others(timed)}."] if timed else []
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


if __name__ == "__main__":
    typer.run(main)
