"""`wl.Chaos`: disturb a cluster for as long as a `with` block lasts."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Sequence
from types import TracebackType

from windlass._words import count
from windlass.chaos.plan import Plan, parse_sides, parse_target
from windlass.chaos.report import Report
from windlass.chaos.scene import There
from windlass.chaos.session import Session
from windlass.engines.cluster import Cluster
from windlass.engines.processes import ProcessEngine
from windlass.errors import UsageError, in_words, options_checked
from windlass.types import Role

log = logging.getLogger("windlass.chaos")


class Chaos:
    """Kills and stops nodes of a running cluster, and spoils its links, while the block goes on; `report` says what
    came of it.

        with wl.Cluster(servers=3, workers=2, replicas=1, chaos=True) as cluster:
            with wl.Chaos(cluster, kill=["server:1"], every=5.0, seconds=60.0) as chaos:
                cluster.run(train)
        assert chaos.report.ok, chaos.report.reason

    Targets are "server:1", "worker:2", "server:any", "worker:any" and "manager"; a partition is
    "server:0,worker:1|server:1". One of `kill`, `stop` and `partition` is fired every `every` seconds, in an order
    drawn from `seed`; `drop` (a share of the frames) and `delay` (in seconds, of each frame) hold all the time. It
    begins with the first acknowledged push and ends after `seconds`, or with the block. A server that is killed is
    replaced, unless `replace=False`. The block's own exceptions pass.
    """

    @options_checked
    def __init__(
        self,
        cluster: Cluster,
        *,
        kill: Sequence[str] = (),
        stop: Sequence[str] = (),
        partition: Sequence[str] = (),
        drop: float = 0.0,
        delay: float = 0.0,
        every: float = 5.0,
        seconds: float = 60.0,
        seed: int | None = None,
        replace: bool = True,
    ) -> None:
        engine = cluster._engine
        if not isinstance(engine, ProcessEngine) or engine.ledger is None:
            raise UsageError("Chaos expects a cluster that was opened with wl.Cluster(chaos=True)")
        for name, given in (("kill", kill), ("stop", stop), ("partition", partition)):
            if isinstance(given, str):
                raise UsageError(f"{name} expects a list of nodes, got {given!r}; [{given!r}]")
        plan = Plan(
            kill=tuple(map(parse_target, kill)),
            stop=tuple(map(parse_target, stop)),
            partitions=tuple(map(parse_sides, partition)),
            drop=drop,
            delay_seconds=delay,
            every_seconds=every,
            seconds=seconds,
            seed=random.randrange(1 << 32) if seed is None else seed,
            replaces=replace,
        )
        there = There(
            engine.config(Role.DRIVER, -1),
            engine.ledger,
            frozenset({os.getpid()}),
            lambda rank: _recruit(engine, rank),
        )
        self._session = Session(plan, there, log.info)
        for text in self._session.warnings:
            log.warning("%s", text)
        self._report: Report | None = None
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="windlass-chaos", daemon=True)

    @property
    def report(self) -> Report:
        """What came of it; there is none before the block has ended."""
        if self._report is None:
            raise UsageError("there is no report before the end of the block")
        return self._report

    def wait(self, timeout: float | None = None) -> bool:
        """Block until all of it has been done, and the cluster has recovered; or until the block ends, or `timeout`
        seconds have passed: then False. For a thread beside the job that tells it to end."""
        return self._session.is_spent.wait(timeout)

    def _run(self) -> None:
        try:
            self._session.run(self._is_over.is_set)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        try:
            how = "the block ended" if error is None else f"the block was left by {in_words(error)}"
            self._report = self._session.judge(how.split("\nraised in")[0])
        finally:
            self._session.close()
        if self._error is not None and kind is None:
            raise self._error

    def __repr__(self) -> str:
        state = "over" if self._report is not None else "under way" if self._thread.is_alive() else "not begun"
        return f"<Chaos seed={self._session.plan.seed} | {state}, {count(len(self._session.firing.faults), 'fault')}>"


def _recruit(engine: ProcessEngine, rank: int) -> None:
    engine._spawn(f"server-{rank}", "run_server", Role.SERVER, rank)
