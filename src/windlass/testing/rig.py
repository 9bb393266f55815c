"""The same judgement on real clusters: workers play a script, cut their own links on the way, and hand in their logs.

    with wl.Cluster(servers=2, workers=4, transport="tcp", chunk_bytes=CHUNK_BYTES) as cluster:
        report = perform(cluster, Script(keys=(bits("w", wl.Sequential()),), clock=20, seed=1))
    assert report.verdict.ok, report.verdict.reason

Stamps are `time.monotonic()`, which all processes of one Linux machine share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windlass.checkpoint import AfterRound, Reader
from windlass.engines.cluster import Cluster
from windlass.errors import WindlassError
from windlass.testing.checker import Verdict, judge
from windlass.testing.havoc import Havoc, Plan, Save, Shot
from windlass.testing.history import History, KeyShape, Pulled, Pushed, WorkerLog
from windlass.types import Consistency, Role
from windlass.worker.store import Store
from windlass.worker.task import Task

CHUNK_BYTES = 4096
"""The smallest a store allows: replies are copied into their frames."""
LARGE_CHUNK_BYTES = 64 << 10
"""Large enough that pushes and replies go by reference where memory is shared."""


def bits(name: str, consistency: Consistency, *, num_slots: int = 4, chunk_bytes: int = CHUNK_BYTES) -> KeyShape:
    """A key for a store of these chunks, with room for as many pushes as one slot holds elements."""
    return KeyShape(name, consistency, chunk_bytes // 8, num_slots)


@dataclass(frozen=True, slots=True)
class Script:
    """What every worker does: `clock` pushes on each key, in the same order of keys, with pulls between them. Each
    cuts about `cuts` of its own links. Rank 0 is the slow one: it sleeps up to `lag_seconds` before a push."""

    keys: tuple[KeyShape, ...]
    clock: int
    seed: int
    cuts: int = 4
    lag_seconds: float = 0.004


@dataclass(slots=True)
class Played:
    """What one worker hands in. `cuts` are links cut; `resends` operations that were under way on them."""

    log: WorkerLog
    cuts: int = 0
    resends: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`began` and `ended` are of the first and the last call of any worker, `longest_seconds` of the call that took
    longest until its answer was seen; `shots` are the faults of the plan."""

    verdict: Verdict
    cuts: int
    resends: int
    errors: tuple[str, ...]
    began: float
    ended: float
    longest_seconds: float
    shots: tuple[Shot, ...] = ()
    saves: tuple[Save, ...] = ()

    def num_during(self, what: str) -> int:
        """How many faults of this kind happened while the script was under way."""
        return sum(shot.what == what and self.began < shot.at < self.ended for shot in self.shots)


def perform(cluster: Cluster, script: Script, plan: Plan = lambda hand: None) -> Report:
    """Let every worker of the cluster play the script while the plan is carried out, read the final values when both
    are over, and judge. Blocks."""
    assert all(cluster.num_workers * script.clock <= shape.slot_size for shape in script.keys), "more pushes than bits"
    with Havoc(cluster, plan, script.seed) as hand:
        played: list[Played] = cluster.run(play, script)
    driver = cluster.store()
    final = {shape.name: np.array(driver.pull(shape.name)).reshape(-1) for shape in script.keys}
    shapes = {shape.name: shape for shape in script.keys}
    history = History(shapes, [one.log for one in played], final, snapshots(hand.saves, shapes))
    return Report(
        judge(history),
        sum(one.cuts for one in played),
        sum(one.resends for one in played),
        tuple(one.error for one in played if one.error),
        min((event.invoked for one in played for event in one.log.events), default=0.0),
        max((_end(event) for one in played for event in one.log.events), default=0.0),
        max((_end(event) - event.invoked for one in played for event in one.log.events), default=0.0),
        tuple(hand.shots),
        tuple(hand.saves),
    )


def snapshots(saves: Iterable[Save], shapes: Mapping[str, KeyShape]) -> list[Pulled]:
    """What is in these checkpoints, as the judge wants it."""
    found = []
    for save in saves:
        reader = Reader(save.path)
        for name in reader.keys.keys() & shapes.keys():
            moment = reader.keys[name].moment
            round = moment.round if isinstance(moment, AfterRound) else 0
            value = reader.array(name).reshape(-1)
            found.append(Pulled(name, round, 0, value.size, value, save.began, save.ended))
    return found


def _end(event: Pushed | Pulled) -> float:
    return event.responded if isinstance(event, Pulled) else event.acked or event.invoked


def cut_link(store: Store, rng: random.Random) -> tuple[int, int]:
    """Cut one of this worker's links to a server, as a network would: without asking, whatever is under way. Gives how
    many links were cut (0 when none is up) and how many operations must be sent again because of it."""
    client = store._client
    state = client.state
    client._turn.take()
    try:
        servers = [who for who, node in state.nodes.items() if node.role is Role.SERVER and state.is_linked(who)]
        if not servers:
            return 0, 0
        peer = rng.choice(servers)
        resends = sum(peer in op.waits_for_servers() for op in state.ops.values())
        client.hub.hangup(peer, "cut by a test")
        return 1, resends
    finally:
        client._leave()


def play(store: Store, script: Script) -> Played:
    """One worker's part. An error of the cluster ends it early and is handed in: what was seen until then counts."""
    player = _Player(store, script, Played(WorkerLog(f"worker-{store.rank}")))
    try:
        player.run()
    except WindlassError as error:
        player.played.error = f"{player.played.log.name}: {type(error).__name__}: {error}"
        player.settle()
    log = player.played.log
    log.events = [event for event in log.events if not isinstance(event, Pulled) or event.responded]
    return player.played


@dataclass(slots=True)
class _Player:
    store: Store
    script: Script
    played: Played
    rng: random.Random = field(init=False)
    under_way: list[tuple[Task, Pushed | None, Pulled | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.script.seed}/{self.store.rank}")

    def run(self) -> None:
        script, rng = self.script, self.rng
        for shape in script.keys:
            self.store.create(shape.name, np.zeros(shape.size, np.int64), update="add", consistency=shape.consistency)
        self.store.barrier()
        order = [shape for shape in script.keys for _ in range(script.clock)]
        random.Random(script.seed).shuffle(order)
        made = dict.fromkeys((shape.name for shape in script.keys), 0)
        cut_rate = script.cuts / len(order)
        for shape in order:
            time.sleep(rng.random() * script.lag_seconds / (1 if self.store.rank == 0 else 8))
            made[shape.name] += 1
            self._push(shape, made[shape.name])
            if rng.random() < cut_rate:
                cuts, resends = cut_link(self.store, rng)
                self.played.cuts += cuts
                self.played.resends += resends
            if rng.random() < 0.5:
                other = rng.choice(script.keys)
                self._pull(other, made[other.name], self._range(other), wait=rng.random() < 0.5)
            self.settle()
        for shape in script.keys:
            self._pull(shape, made[shape.name], None, wait=True)
        for task, _, _ in self.under_way:
            task.wait()
        self.settle()

    def _range(self, shape: KeyShape) -> tuple[int, int] | None:
        if self.rng.random() < 0.5:
            return None
        lo, hi = sorted(self.rng.sample(range(shape.size + 1), 2))
        return lo, hi

    def _push(self, shape: KeyShape, clock: int) -> None:
        bit = self.store.rank * self.script.clock + clock - 1
        where = self._range(shape)
        lo, hi = where or (0, shape.size)
        pushed = Pushed(shape.name, clock, bit, lo, hi, time.monotonic())
        self.played.log.events.append(pushed)
        value = shape.mark(bit)[lo:hi]
        if self.rng.random() < 0.6:
            self.under_way.append((self.store.push(shape.name, value, range=where), pushed, None))
            return
        pulled = Pulled(shape.name, clock, lo, hi, value, pushed.invoked, 0.0)
        self.played.log.events.append(pulled)
        task = self.store.pushpull(shape.name, value, range=where, wait=False)
        self.under_way.append((task, pushed, pulled))
        if self.rng.random() < 0.5:
            task.wait()

    def _pull(self, shape: KeyShape, clock: int, where: tuple[int, int] | None, *, wait: bool) -> None:
        lo, hi = where or (0, shape.size)
        pulled = Pulled(shape.name, clock, lo, hi, np.empty(0, np.int64), time.monotonic(), 0.0)
        self.played.log.events.append(pulled)
        task: Any = self.store.pull(shape.name, range=where, wait=False)
        self.under_way.append((task, None, pulled))
        if wait:
            task.wait()

    def settle(self) -> None:
        """Write down what has been answered since."""
        still = []
        for task, pushed, pulled in self.under_way:
            if not task.is_done:
                still.append((task, pushed, pulled))
            elif task.error is None:
                value, now = task.wait(), time.monotonic()
                if pushed is not None:
                    pushed.acked = now
                if pulled is not None:
                    pulled.value, pulled.responded = np.array(value).reshape(-1), now
        self.under_way = still
