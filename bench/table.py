"""Measurements as a table: for the terminal, and as the section of docs/benchmarks.md between its markers."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Measured
from bench.peers import SETTINGS, version
from bench.targets import TARGETS, Targets, Verdict, judge

NAMES = {
    "shm": "Windlass, plain arrays",
    "buffer": "Windlass, `store.buffer`",
    "tcp": "Windlass, TCP only",
    "gloo": "gloo",
    "mpi": "OpenMPI",
}
COLUMNS = ("workers", "size", "who", "ms", "gloo ÷", "OpenMPI ÷", "÷ floor", "target", "verdict")


@dataclass(frozen=True, slots=True)
class Extra:
    """One measurement that has no peer."""

    what: str
    found: str
    verdict: Verdict


@dataclass(slots=True)
class Report:
    """Everything that one run has measured, what it is called and what it is held to."""

    command: str
    peers: Sequence[str] = ()
    title: str = "push + pull of one float32 tensor by all workers, medians"
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    targets: Targets = field(default_factory=lambda: TARGETS)
    copy_bytes_per_second: list[float] = field(default_factory=list)
    cells: list[Measured] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)

    @property
    def bandwidth(self) -> float:
        found = sorted(self.copy_bytes_per_second)
        return found[len(found) // 2]

    @property
    def verdicts(self) -> list[Verdict]:
        judged = [verdict for cell in self.cells for name in cell.samples for verdict in self.judge(cell, name)]
        return judged + [extra.verdict for extra in self.extras]

    def judge(self, measured: Measured, name: str) -> list[Verdict]:
        return judge(measured, name, self.targets)


def rows(report: Report) -> list[tuple[str, ...]]:
    made = []
    for measured in report.cells:
        cell = measured.cell
        floor = cell.workers * cell.nbytes / report.bandwidth
        for name in measured.samples:
            time = measured.median(name)
            assert time is not None
            verdicts = report.judge(measured, name)
            ratios = ["" if name in SETTINGS else _ratio(measured.median(peer), time) for peer in ("gloo", "mpi")]
            made.append((
                str(cell.workers), cell.size, report.names[name], _ms(time), *ratios, f"{time / floor:.1f}",
                ", ".join(verdict.target for verdict in verdicts), ", ".join(verdict.word for verdict in verdicts),
            ))
    return made


def _ratio(peer: float | None, time: float) -> str:
    return "" if peer is None else f"{peer / time:.2f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.1f}"


def show(report: Report, console: Console) -> None:
    """Print the tables, colours and all."""
    table = Table(*COLUMNS, title=report.title)
    last = None
    for row in rows(report):
        if last is not None and row[:2] != last[:2]:
            table.add_section()
        table.add_row(*(row if last is None or row[:2] != last[:2] else ("", "", *row[2:])), style=style(row[-1]))
        last = row
    if report.cells:
        console.print(table)
    if report.extras:
        more = Table("what", "found", "target", "verdict", title="and")
        for extra in report.extras:
            verdict = extra.verdict
            more.add_row(extra.what, extra.found, verdict.target, verdict.word, style=style(verdict.word))
        console.print(more)
    for note in notes(report):
        console.print(f"[dim]{note}", soft_wrap=True)


def style(verdict: str) -> str | None:
    return "red" if "MISS" in verdict else "green" if "PASS" in verdict else None


def notes(report: Report) -> list[str]:
    """What one must know to read the numbers."""
    if not report.cells:
        return []
    said = [
        "A time is the slowest worker's wall time per iteration of a loop between barriers; the median over "
        "alternations, in each of which every contender was measured once, in rotating order, the others asleep.",
        "`gloo ÷` and `OpenMPI ÷` are the peer's time over ours (above 1: we are faster); `÷ floor` is the time over "
        "workers × bytes / copy bandwidth, where all cores together copied "
        f"{report.bandwidth / 1e9:.1f} GB/s in this run.",
    ]
    return said + [f"{report.names[peer]}: {SETTINGS[peer]}." for peer in report.peers]


def machine() -> str:
    """CPU, cores, memory and system, in a line."""
    info = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    model, system = models[0] if models else platform.machine(), f"{platform.system()} {platform.release()}"
    return f"{model}, {cores} cores, {memory:.0f} GiB of memory, {system}"


def versions(peers: Sequence[str]) -> str:
    said = [f"Windlass {importlib.metadata.version('windlass')}", f"Python {platform.python_version()}"]
    said += [f"{module} {importlib.metadata.version(module)}" for module in ("numpy", "numba")]
    return ", ".join(said + [version(peer) for peer in peers])


def markdown(report: Report) -> str:
    """The section for the documentation."""
    lines = [f"- Machine: {machine()}", f"- Versions: {versions(report.peers)}", f"- Command: `{report.command}`", ""]
    lines += grid(COLUMNS, rows(report)) if report.cells else []
    if report.extras:
        found = [(one.what, one.found, one.verdict.target, one.verdict.word) for one in report.extras]
        lines += ["", *grid(("what", "found", "target", "verdict"), found)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(report)), ""])


def grid(titles: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *body)]


def write_section(path: Path, name: str, text: str) -> None:
    """Replace what stands between the file's `name` markers, or append them; the rest of the file stays."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    old = path.read_text() if path.exists() else ""
    section = f"{begin}\n{text}{end}"
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        new = before + section + rest.split(end, 1)[1]
    else:
        new = (old.rstrip() + "\n\n" if old.strip() else "") + section + "\n"
    path.write_text(new)
