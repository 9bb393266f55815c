"""One chaos run, from the first look at a cluster to the report."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from windlass.chaos.accounting import Findings, Samples, count_samples, judge, read_books
from windlass.chaos.firing import TURN_SECONDS, Firing
from windlass.chaos.plan import Plan, Shot, schedule
from windlass.chaos.report import Report
from windlass.chaos.scene import Scene, There
from windlass.errors import ClusterError

IDLE_SECONDS = 0.1
ASK_SECONDS = 2.0
LINK_COUNTS = ("frames_lost", "frames_late", "times_refused")
SETTLE_LEASES, SETTLE_SECONDS = 2.0, 4.0
"""How long shards that change hands at the end are waited for before the books are read: so many leases, and more."""


class Session:
    """Not thread-safe but for `is_spent`: one thread calls `run`, then `judge`, then `close`. Raises UsageError, at
    once, for a plan that does not fit the cluster."""

    def __init__(self, plan: Plan, there: There, say: Callable[[str], None]) -> None:
        options = there.config.options
        plan.check(num_servers=there.config.num_servers, num_workers=there.config.num_workers)
        self.plan = plan
        self.warnings = plan.warnings(replicas=options.replicas, lease_seconds=options.lease_seconds)
        self._lease_seconds = options.lease_seconds
        self._shots: list[Shot] = schedule(plan, options.lease_seconds)
        self._scene = Scene(there)
        self._ended_at: float | None = None
        self.is_spent = threading.Event()  # nothing is to be done any more, and what was done is recovered from
        self.firing = Firing(plan, self._scene, say)
        self._say = say
        self._before = {name: self._sum(name) for name in LINK_COUNTS}  # of an earlier session on this cluster
        for text in self.warnings:
            say(f"warning: {text}")

    def run(self, is_over: Callable[[], bool]) -> None:
        """Fire, for as long as the plan says, and watch until `is_over()`. Begins when the cluster is complete and a
        first push of the job's own was acknowledged. Blocks. However it ends, nobody is left stopped, no link cut."""
        try:
            if not self._await_work(is_over):
                return
            self.firing.begin()
            for shot in self._shots:
                if not self._until(self.firing.began_at + shot.at, is_over):
                    break
                self._fire(shot, is_over)
            self._until(max(self.firing.began_at + self.plan.seconds, self.firing.lifted_at), is_over)
            self._ended_at = time.monotonic()
            self.firing.lift()
            if not is_over():
                self._say("from here on the job goes on undisturbed")
            while not is_over():
                self.firing.turn()
                if not self.firing.is_recovering:
                    self.is_spent.set()
                    time.sleep(IDLE_SECONDS)
        finally:
            self.is_spent.set()
            self._ended_at = self._ended_at or time.monotonic()
            self.firing.lift()
            self.firing.settle()

    def _await_work(self, is_over: Callable[[], bool]) -> bool:
        while not is_over():
            if not self._scene.is_complete and not self._scene.look():
                time.sleep(TURN_SECONDS)
            if self._scene.is_complete and self._is_at_work():
                return True
            time.sleep(TURN_SECONDS)
        return False

    def _is_at_work(self) -> bool:
        """Whether a push of the job's own was acknowledged: not one at a barrier, or where workers meet."""
        rows = self._scene.rows()
        pushed = {int(key) for key in rows["key"][rows["acked_pushes"] > 0]}
        if pushed and not pushed & self._scene.user_keys() and self._scene.is_look_due:
            self._scene.look()
        return bool(pushed & self._scene.user_keys())

    def _until(self, moment: float, is_over: Callable[[], bool]) -> bool:
        while time.monotonic() < moment and not is_over():
            self.firing.turn()
        return not is_over()

    def _fire(self, shot: Shot, is_over: Callable[[], bool]) -> None:
        """Fire when it may be; if that is not before the next one's time, it is given up."""
        deadline = self.firing.began_at + shot.at + self.plan.every_seconds
        while reason := self.firing.try_fire(shot):
            if is_over() or time.monotonic() >= deadline:
                self.firing.give_up(shot, reason)
                return
            self._until(min(deadline, time.monotonic() + 0.1), is_over)

    def judge(self, job: str, *, is_there: bool = True, latest: Callable[[], float] = lambda: math.inf) -> Report:
        """Read the books and report. Blocks for a few leases at most, while shards change hands; not if the cluster is
        known not to be there any more. `latest` is asked again and again by when it is to end."""
        rows = self._scene.rows()
        links = {name: self._sum(name) - before for name, before in self._before.items()}
        findings = Findings(unjudged="no node was ever seen")
        samples: Samples | None = None
        if self._scene.nodes:
            patience = (SETTLE_LEASES * self._lease_seconds + SETTLE_SECONDS) if is_there else 0.0
            looker = self._scene.looker

            def ask() -> dict[str, Any]:
                left = latest() - time.monotonic()
                if left <= 0:
                    raise ClusterError("there was no time to read them")
                return looker.everything(min(ASK_SECONDS, left), with_counts=True)

            books, said = read_books(self._scene.rows, ask, patience, latest)
            findings, samples = judge(books), count_samples(said)
        began, ended = self.firing.began_at, self._ended_at
        return Report(
            seed=self.plan.seed,
            seconds=round(ended - began, 3) if began and ended else 0.0,
            faults=tuple(self.firing.faults),
            unfired=tuple(self.firing.unfired),
            departed=tuple(self.firing.departures.found),
            frames_lost=links["frames_lost"],
            frames_late=links["frames_late"],
            links_refused=links["times_refused"],
            drop=self.plan.drop,
            delay_seconds=self.plan.delay_seconds,
            longest_push_seconds=round(float(rows["longest_seconds"].max(initial=0.0)), 4),
            findings=findings,
            samples=samples,
            job=job,
            warnings=tuple(self.warnings),
        )

    def _sum(self, name: str) -> int:
        return int(self._scene.there.ledger.rows()[name].sum())

    def close(self) -> None:
        self._scene.close()
