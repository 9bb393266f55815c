"""Many seeds at once, on all cores. Each run is of one process and of its seed alone, so a seed that fails here fails
the same way in `explore(seed, limits)`."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from windlass.server.state import ServerState
from windlass.testing.explorer import Limits, Outcome, explore
from windlass.testing.network import Shots

SEEDS_PER_TASK = 25
COLLECT_EVERY = 10
"""After how many seeds memory is searched for what nobody holds any more: never in the middle of a run, where the
search would cost more than the run does."""


@dataclass(slots=True)
class Tally:
    """What some seeds have shown. `problems` has the first few that failed, lowest seed first, each in words."""

    num_seeds: int = 0
    shots: Shots = field(default_factory=Shots)
    problems: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0  # of processor time

    def add(self, other: Tally) -> None:
        self.num_seeds += other.num_seeds
        self.shots.add(other.shots)
        self.problems |= other.problems
        self.seconds += other.seconds


def explore_all(seeds: Sequence[int], limits: Limits, server: type[ServerState] = ServerState) -> Tally:
    """Explore these seeds in this process, one after the other."""
    tally = Tally()
    began = time.process_time()
    for outcome in _outcomes(seeds, limits, server):
        tally.num_seeds += 1
        tally.shots.add(outcome.shots)
        if outcome.problem:
            tally.problems[outcome.seed] = outcome.problem
    tally.seconds = time.process_time() - began
    return tally


def find(seeds: Sequence[int], limits: Limits, server: type[ServerState], rules: frozenset[str]) -> int | None:
    """The first of these seeds that breaks one of these rules, or none."""
    return next((one.seed for one in _outcomes(seeds, limits, server) if one.broken & rules), None)


def _outcomes(seeds: Sequence[int], limits: Limits, server: type[ServerState]) -> Iterator[Outcome]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        for number, seed in enumerate(seeds, 1):
            yield explore(seed, limits, server=server)
            if number % COLLECT_EVERY == 0:
                gc.collect(1)  # of what was made since; what was there before is nobody's to search here
    finally:
        if was_on:
            gc.enable()


def _start() -> None:
    """In a process of a crew: what was imported stays, and is not searched again and again."""
    explore(0)
    gc.collect()
    gc.freeze()


class Crew:
    """Processes that explore, one for each core. A context manager; `close` ends them. They are started afresh, not
    forked, so nothing of the caller's (locks, threads, memory) is in them. Where there is one core, or one is asked
    for, the caller's process does the work."""

    def __init__(self, num_processes: int | None = None) -> None:
        self.num_processes = num_processes or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _submit(self, what: Callable[..., object], *arguments: object) -> Future[object]:
        if self._pool is None:
            fresh = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num_processes, mp_context=fresh, initializer=_start)
        return self._pool.submit(what, *arguments)

    def explore(self, seeds: range, limits: Limits, server: type[ServerState] = ServerState) -> Tally:
        """Explore these seeds. Blocks until all are done."""
        if self.num_processes == 1:
            return explore_all(seeds, limits, server)
        tally = Tally()
        tasks = [self._submit(explore_all, part, limits, server) for part in self._parts(seeds)]
        for task in tasks:
            done = task.result()
            assert isinstance(done, Tally)
            tally.add(done)
        return tally

    def find(self, seeds: range, limits: Limits, server: type[ServerState], rules: frozenset[str]) -> int | None:
        """The lowest of these seeds that breaks one of these rules, or none; those after it may not be tried."""
        if self.num_processes == 1:
            return find(seeds, limits, server, rules)
        tasks = [self._submit(find, part, limits, server, rules) for part in self._parts(seeds)]
        try:
            for task in tasks:
                seed = task.result()
                if seed is not None:
                    assert isinstance(seed, int)
                    return seed
        finally:
            for task in tasks:
                task.cancel()
        return None

    def _parts(self, seeds: range) -> list[range]:
        """In small pieces, so that nobody is left waiting at the end."""
        size = max(1, min(SEEDS_PER_TASK, len(seeds) // (4 * self.num_processes)))
        return [seeds[start : start + size] for start in range(0, len(seeds), size)]
