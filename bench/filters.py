"""`python -m bench.filters`: how fast each filter encodes and decodes on one core, and how many bytes it leaves."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.table import write_section
from windlass import filters as wf
from windlass.engines._settling import settle

SECTION = "bench.filters"
SIZES = (1 << 20, 4 << 20, 16 << 20)
DENSE: tuple[tuple[wf.Filter, ...], ...] = (
    (wf.Cast("bfloat16"),),
    (wf.Cast("float16"),),
    (wf.Int8(),),
    (wf.Int8(stochastic=False),),
    (wf.Int8(feedback=False),),
    (wf.OneBit(),),
    (wf.TopK(0.01),),
    (wf.RandomK(0.01),),
    (wf.SmallGradient(2.0),),
    (wf.RandomSkip(0.9),),
    (wf.KKT(),),
    (wf.Zstd(),),
    (wf.TopK(0.01), wf.Int8()),
    (wf.Int8(), wf.Zstd()),
)
TABLE: tuple[tuple[wf.Filter, ...], ...] = (
    (wf.IdCache(),),
    (wf.Int8(),),
    (wf.IdCache(), wf.Int8()),
    (wf.IdCache(), wf.TopK(0.1), wf.Int8()),
)
WIDTH = 16
COLUMNS = ("chain", "gradient", "encode GB/s", "decode GB/s", "of the bytes")


@dataclass(frozen=True)
class Row:
    chain: str
    size: str
    encode: float
    decode: float
    share: float

    @property
    def cells(self) -> tuple[str, ...]:
        return self.chain, self.size, f"{self.encode:.1f}", f"{self.decode:.1f}", f"{self.share:.1%}"


def best_seconds(work: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that fit into so many seconds, at least five; in seconds of this thread, so that what
    else the machine does counts as little as can be."""
    best, end, runs = float("inf"), time.thread_time() + seconds, 0
    while runs < 5 or time.thread_time() < end:
        start = time.thread_time()
        work()
        best, runs = min(best, time.thread_time() - start), runs + 1
    return best


def measure_dense(filters: tuple[wf.Filter, ...], nbytes: int, seconds: float) -> Row:
    """A gradient of normal numbers, a sender with a residual, into memory that the server has."""
    values = np.random.default_rng(0).standard_normal(nbytes // 4, np.float32)
    chain = wf.Chain(filters, wf.Target("w"))
    sender, receiver = wf.Sender(chain), wf.Receiver(chain)
    sender.note_pulled(np.zeros_like(values), 3.0)
    payload = sender.encode(values)
    out = np.empty_like(values)
    decode = best_seconds(lambda: receiver.decode(payload, size=values.size, out=out), seconds)
    encode = best_seconds(lambda: sender.encode(values), seconds)
    name = f"{nbytes >> 20} MB"
    return Row(_name(filters), name, nbytes / encode / 1e9, nbytes / decode / 1e9, payload.nbytes / nbytes)


def measure_table(filters: tuple[wf.Filter, ...], nbytes: int, seconds: float) -> Row:
    """Rows of 16 for as many ids; the bytes are those of rows and ids."""
    rows = nbytes // (4 * WIDTH + 8)
    rng = np.random.default_rng(0)
    ids, values = rng.permutation(10 * rows)[:rows].astype(np.int64), rng.standard_normal((rows, WIDTH), np.float32)
    chain = wf.Chain(filters, wf.Target("t", width=WIDTH))
    sender, receiver = wf.Sender(chain), wf.Receiver(chain)
    receiver.decode(sender.encode(values, ids=ids))
    payload = sender.encode(values, ids=ids)
    decode = best_seconds(lambda: receiver.decode(payload), seconds)
    encode = best_seconds(lambda: sender.encode(values, ids=ids), seconds)
    name = f"{nbytes >> 20} MB, {rows} ids"
    return Row(_name(filters), name, nbytes / encode / 1e9, nbytes / decode / 1e9, payload.nbytes / nbytes)


def _name(filters: tuple[wf.Filter, ...]) -> str:
    return ", ".join(map(str, filters))


def section(rows: list[Row], command: str) -> str:
    lines = [
        f"- Command: `{command}`",
        "- One thread; GB of the float32 gradient per second of processor time; the shortest of many runs; malloc "
        "keeps what is freed, as in a worker.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|--:|--:|--:|",
        *("| " + " | ".join((f"`{row.chain}`", *row.cells[1:])) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def main(
    quick: Annotated[bool, typer.Option("--quick", help="4 MB only, a tenth of a second each.")] = False,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the section into this file, between its markers.")
    ] = None,
) -> None:
    """Measure every filter alone, and some chains, and print a table."""
    settle(1)
    seconds = 0.1 if quick else 0.25
    rows = [measure_dense(each, size, seconds) for each in DENSE for size in ((4 << 20,) if quick else SIZES)]
    rows += [measure_table(each, 4 << 20, seconds) for each in TABLE]
    table = Table(*COLUMNS, title="filters on one core")
    for row in rows:
        table.add_row(*row.cells)
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    if markdown_file is not None:
        command = f"python -m bench.filters {shlex.join(sys.argv[1:])}".strip()
        write_section(markdown_file, SECTION, section(rows, command))


if __name__ == "__main__":
    typer.run(main)
