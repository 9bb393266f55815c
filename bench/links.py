"""One server that many workers are linked to at once. `python -m bench.links`.

Every link is a store of its own; a few processes hold them, a thread each, because joining blocks until everyone is
there. All of them push and pull the same key, in rounds that have every one of them as a member.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from multiprocessing.connection import Client

import numpy as np
from rich.console import Console

import windlass as wl
from bench.children import Children
from bench.peers import ROOT
from bench.ranks import check_sum
from bench.table import Extra, Report, show
from bench.targets import Verdict

ELEMENTS = 1024
ROUNDS = 10
PROCESSES = 4
LIMIT_SECONDS = 120.0


def measure_links(*, links: int = 1000, processes: int = PROCESSES, limit_seconds: float = LIMIT_SECONDS) -> Extra:
    """Ends within the limit, whatever happens; a link that has not finished by then counts as failed."""
    shares = [len(range(first, links, processes)) for first in range(processes)]
    begin = time.perf_counter()
    with (
        wl.Cluster(servers=1, workers=links, _has_workers=False) as cluster,
        Children("the links' holders") as children,
    ):
        engine = cluster._engine
        environment = {"PYTHONPATH": ROOT, "WINDLASS_MANAGER": ",".join(engine.manager), "WINDLASS_TOKEN": engine.token}
        first = 0
        for index, count in enumerate(shares):
            command = [sys.executable, "-m", "bench.links", children.address, str(index), str(first), str(count)]
            children.start([*command, str(links)], environment)
            first += count
        children.gather(processes)
        problems = Counter(error for said in children.ask("go", limit_seconds) for error in said)
    seconds = time.perf_counter() - begin
    failed = sum(problems.values())
    found = f"{links - failed} of {links} links done in {seconds:.1f} s"
    if problems:
        found += f"; {problems.most_common(1)[0][0]}"
    what = f"one server, {links} links from {processes} processes, each 4 KiB push + pull {ROUNDS} times"
    return Extra(what, found, Verdict("no error", failed == 0))


# --- in a process that holds links ------------------------------------------------------------------------------------


def _hold(first: int, count: int, links: int, limit_seconds: float) -> list[str]:
    """The errors of this process's links: one for each that failed."""
    errors: dict[int, str] = dict.fromkeys(range(first, first + count), f"not done within {limit_seconds:.0f} s")
    threads = [threading.Thread(target=_use, args=(rank, links, errors), daemon=True) for rank in list(errors)]
    until = time.monotonic() + limit_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(errors.copy().values())


def _use(rank: int, links: int, errors: dict[int, str]) -> None:
    try:
        store = wl.connect(rank=rank)
        given, out = np.full(ELEMENTS, store.rank + 1, np.float32), np.empty(ELEMENTS, np.float32)
        store.create("w", np.zeros(ELEMENTS, np.float32))
        for _ in range(ROUNDS):
            store.pushpull("w", given, out=out)
            check_sum(out, links)
    except Exception as error:
        errors[rank] = f"{type(error).__name__}: {error}"
    else:
        del errors[rank]  # the store stays open: links are held until the process ends


def _serve(address: str, index: int, first: int, count: int, links: int) -> None:
    with Client(address, authkey=bytes.fromhex(os.environ["BENCH_KEY"])) as driver:
        driver.send(index)
        _, limit_seconds = driver.recv()
        driver.send(_hold(first, count, links, limit_seconds))
        try:
            driver.recv()  # until the driver closes
        except EOFError:
            os._exit(0)  # without a farewell from each of hundreds of stores


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _serve(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        show(Report("python -m bench.links", extras=[measure_links()]), Console())
