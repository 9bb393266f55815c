"""The same judgement on real clusters: workers play a script, cut their own links on the way, and hand in their logs.

    with wl.Cluster(servers=2, workers=4, transport="tcp", chunk_bytes=CHUNK_BYTES) as cluster:
        report = perform(cluster, Script(keys=(bits("w", wl.Sequential()),), clock=20, seed=1))
    assert report.verdict.ok, report.verdict.reason

Stamps are `time.monotonic()`, which all processes of one Linux machine share.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from windlass.checkpoint import AfterRound, Reader
from windlass.engines.cluster import Cluster
from windlass.errors import WindlassError
from windlass.filters import Filter
from windlass.store.initial import initial_rule
from windlass.testing.calls import Where, kept_back, lay_out, marks_of
from windlass.testing.checker import Verdict, judge
from windlass.testing.havoc import PATIENCE_SECONDS, Havoc, Plan, Save, Shot
from windlass.testing.history import History, KeyShape, Pulled, Pushed, WorkerLog
from windlass.types import Array, Consistency, Role, TableSpec
from windlass.worker.store import Store
from windlass.worker.task import Task

CHUNK_BYTES = 4096
"""The smallest a store allows: replies are copied into their frames."""
LARGE_CHUNK_BYTES = 64 << 10
"""Large enough that pushes and replies go by reference where memory is shared."""
HOLD_SECONDS = 0.02
"""Between two pulls of a worker that holds its last push back."""


def bits(name: str, consistency: Consistency, *, num_slots: int = 4, chunk_bytes: int = CHUNK_BYTES) -> KeyShape:
    """A key for a store of these chunks, with room for as many pushes as one slot holds elements."""
    return KeyShape(name, consistency, chunk_bytes // 8, num_slots)


def rows(
    name: str, consistency: Consistency, *, num_bits: int, num_rows: int = 12, filters: tuple[Filter, ...] = ()
) -> KeyShape:
    """A table with room for so many pushes, in so many rows; its ids are far from one another."""
    table = TableSpec(dim=num_bits, init=initial_rule(None), slots=8)
    ids = tuple(int(one) for one in np.arange(num_rows) ** 3 - 100)
    return KeyShape(name, consistency, num_bits, num_rows, table, ids, filters)


@dataclass(frozen=True, slots=True)
class Script:
    """What every worker does: `clock` pushes on each key, in the same order of keys, with pulls between them. Each
    cuts about `cuts` of its own links. Rank 0 is the slow one: it sleeps up to `lag_seconds` before a push. The last
    push is held back, and pulls go on, until there is a file `until`: so the faults of a plan happen in its midst,
    however slow the plan is."""

    keys: tuple[KeyShape, ...]
    clock: int
    seed: int
    cuts: int = 4
    lag_seconds: float = 0.004
    until: str = ""


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
    with tempfile.TemporaryDirectory(prefix="windlass-rig-") as place:
        held = replace(script, until=os.path.join(place, "over"))
        with Havoc(cluster, plan, script.seed, held.until) as hand:
            played: list[Played] = cluster.run(play, held)
    driver = cluster.store()
    final = {shape.name: np.array(driver.pull(shape.name, **_place(shape, None))).reshape(-1) for shape in script.keys}
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
            value = np.zeros(shapes[name].size, shapes[name].dtype)
            for slot in range(len(reader.keys[name].slots)):
                lay_out(shapes[name], value, slot, reader.slot(name, slot).arrays)
            found.append(Pulled(name, round, 0, value.size, value, save.began, save.ended))
    return found


def _place(shape: KeyShape, where: Where | None) -> dict[str, Any]:
    """What a call on this part of a key is given; None: on all of it."""
    if shape.table is None:
        return {"range": where}
    return {"ids": np.array([shape.ids[row] for row in (range(shape.num_slots) if where is None else where)], np.int64)}


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
            self._create(shape)
        self.store.barrier()
        order = [shape for shape in script.keys for _ in range(script.clock)]
        random.Random(script.seed).shuffle(order)
        made = dict.fromkeys((shape.name for shape in script.keys), 0)
        cut_rate = script.cuts / len(order)
        for left, shape in zip(reversed(range(len(order))), order, strict=True):
            if not left:
                self._hold(made)
            time.sleep(rng.random() * script.lag_seconds / (1 if self.store.rank == 0 else 8))
            made[shape.name] += 1
            self._push(shape, made[shape.name])
            if rng.random() < cut_rate:
                cuts, resends = cut_link(self.store, rng)
                self.played.cuts += cuts
                self.played.resends += resends
            if rng.random() < 0.5:
                other = rng.choice(script.keys)
                self._pull(other, made[other.name], self._where(other), wait=rng.random() < 0.5)
            self.settle()
        for shape in script.keys:
            self._pull(shape, made[shape.name], None, wait=True)
        for task, _, _ in self.under_way:
            task.wait()
        self.settle()

    def _hold(self, made: dict[str, int]) -> None:
        """Until the plan is over, or for so long that it is to blame."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.script.until and not os.path.exists(self.script.until) and time.monotonic() < deadline:
            shape = self.rng.choice(self.script.keys)
            self._pull(shape, made[shape.name], self._where(shape), wait=True)
            self.settle()
            time.sleep(HOLD_SECONDS)

    def _create(self, shape: KeyShape) -> None:
        kept, filters = shape.consistency, list(shape.filters)
        if shape.table is None:
            first = np.zeros(shape.size, shape.dtype)
            self.store.create(shape.name, first, update="add", consistency=kept, filters=filters)
        else:
            dim, slots = shape.table.dim, shape.table.slots
            self.store.create_table(
                shape.name, dim=dim, slots=slots, update="add", consistency=kept, filters=filters
            )

    def _where(self, shape: KeyShape, *, is_push: bool = False) -> Where | None:
        """A range, or rows, some of them twice. Every worker has rows that it does not push to, and nobody pushes to
        the last one."""
        if self.rng.random() < 0.5 and not (is_push and shape.table is not None):
            return None
        if shape.table is None:
            lo, hi = sorted(self.rng.sample(range(shape.size + 1), 2))
            return lo, hi
        last = shape.num_slots - 1
        mine = [row for row in range(last) if (row + self.store.rank) % 3] if is_push else list(range(last + 1))
        return tuple(self.rng.choices(mine, k=self.rng.randint(0, 2 * last)) if self.rng.random() < 0.5 else mine)

    def _push(self, shape: KeyShape, clock: int) -> None:
        bit = self.store.rank * self.script.clock + clock - 1
        where = self._where(shape, is_push=True)
        value, marks = self._value(shape, bit, where)
        lo, hi = where if where is not None and shape.table is None else (0, shape.size)
        pushed = Pushed(shape.name, clock, bit, lo, hi, time.monotonic())
        self.played.log.events.append(pushed)
        filtering: Any = self.store._entries[shape.name].key.filtering
        before = kept_back(shape, filtering.sender.dump().residual) if filtering is not None else None
        pulls = self.rng.random() >= 0.6
        if not pulls:
            task = self.store.push(shape.name, value, **_place(shape, where))
        else:
            task = self.store.pushpull(shape.name, value, wait=False, **_place(shape, where))
        if before is not None:  # what it carries in the end
            marks += before - kept_back(shape, filtering.sender.dump().residual)
            pushed.lo, pushed.hi = 0, shape.size
        if before is not None or shape.table is not None:
            pushed.marks = marks_of(shape, marks)
        if not pulls:
            self.under_way.append((task, pushed, None))
            return
        pulled = self._pulled(shape, clock, where, pushed.invoked)
        self.under_way.append((task, pushed, pulled))
        if self.rng.random() < 0.5:
            task.wait()

    def _value(self, shape: KeyShape, bit: int, where: Where | None) -> tuple[Array, Array]:
        """What is pushed, and what it is of the whole key."""
        whole, marks = shape.mark(bit), np.zeros(shape.size)
        if shape.table is None:
            lo, hi = where or (0, shape.size)
            marks[lo:hi] = whole[lo:hi]
            return whole[lo:hi], marks
        asked = where or ()
        value = np.zeros((len(asked), shape.slot_size), np.float32)
        for position, row in enumerate(asked):
            value[position, bit] = -2 if row in asked[position + 1 :] else 1 + 2 * asked[:position].count(row)
            marks[row * shape.slot_size + bit] = 1
        return value, marks

    def _pulled(self, shape: KeyShape, clock: int, where: Where | None, invoked: float) -> Pulled:
        """The log of a pull that begins."""
        is_table = shape.table is not None
        lo, hi = (0, 0) if is_table else where or (0, shape.size)
        asked = (tuple(range(shape.num_slots)) if where is None else where) if is_table else None
        pulled = Pulled(shape.name, clock, lo, hi, np.empty(0), invoked, 0.0, asked)
        self.played.log.events.append(pulled)
        return pulled

    def _pull(self, shape: KeyShape, clock: int, where: Where | None, *, wait: bool) -> None:
        pulled = self._pulled(shape, clock, where, time.monotonic())
        task: Any = self.store.pull(shape.name, wait=False, **_place(shape, where))
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
