"""A saver in an explored run: it takes snapshots of all keys now and then, while the others push, by the steps that
`store.save` takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from windlass._wire import messages as m
from windlass._wire.effects import Send
from windlass.errors import WindlassError
from windlass.server.deposits import by_rank
from windlass.testing.calls import kept_back, lay_out
from windlass.testing.history import Pulled
from windlass.testing.program import Condition, Gone, Reader
from windlass.types import Array, Bytes, Role
from windlass.worker.filtering import state_of
from windlass.worker.ops import KeyInfo, Request
from windlass.worker.snapshot import Announcer, Melted, Snapshot
from windlass.worker.state import WorkerState

if TYPE_CHECKING:
    from windlass.testing.world import World

MAX_POLLS = 3
MAX_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Residual:
    """What was saved of what workers had kept back of a key after a round (-1: at any moment), by rank."""

    key: str
    round: int
    by_rank: dict[int, Array]


def residual_problems(world: World) -> list[str]:
    """Whether what was saved is what the workers had kept back then. Those who departed may be missing, and so may
    those who came after that."""
    saver = world.saver.program if world.saver is not None else None
    wrong: list[str] = []
    for saved in saver.residuals if isinstance(saver, Saver) else ():
        for rank, kept in saved.by_rank.items():
            seated = [worker.program for worker in world.workers.values() if worker.state.rank == rank]
            books = [
                next(((calls.book.kept, calls.key.since) for calls in program.keys
                      if calls.shape.name == saved.key and calls.book is not None), None)
                for program in seated
            ]  # fmt: skip
            if not any(had_kept(kept, saved.round, book) for book in books):
                when = f"after round {saved.round}" if saved.round >= 0 else "at any moment"
                wrong.append(f"saved residual: '{saved.key}', rank {rank}: not what it had kept back {when}")
        world.net.shots.saved_residuals += len(saved.by_rank)
    return wrong


def had_kept(kept: Array, round: int, book: tuple[Sequence[Array], int] | None) -> bool:
    """Whether a worker had kept back just this after a round (-1: at any moment). `book` is what it had kept back when
    it began on the key and after each of its pushes, and the round after which it began; None: it never did. Before
    that it had kept back nothing."""
    if book is None or 0 <= round < book[1]:
        return not kept.any()
    had, since = book
    return any(np.array_equal(kept, one) for one in (had if round < 0 else had[round - since :][:1]))


@dataclass(slots=True)
class Saver(Reader):
    """As a driver that calls `store.save` again and again."""

    state: WorkerState | None = None
    snapshots: list[Pulled] = field(default_factory=list)
    num_melted: int = 0
    residuals: list[Residual] = field(default_factory=list)

    def run(self) -> Iterator[Condition]:
        try:
            keys = []
            for shape in self.plan.keys:
                keys.append((yield from self._find(shape)))
            wanted = self.rng.randint(1, max(1, self.plan.clock))
            invoked, announcer, num_saved = self.now(), Announcer(), 0
            for number in count(1):
                try:
                    taken, kept = yield from self._take(Snapshot(number, announcer, MAX_POLLS), keys, invoked)
                    self.snapshots += taken
                    self.residuals += kept
                    num_saved += 1
                    invoked, announcer = self.now(), Announcer()
                except Melted:
                    self.num_melted += 1
                finally:
                    self._thaw(number)
                if num_saved == wanted or number == MAX_ATTEMPTS:
                    return
        except Gone:
            return

    def _thaw(self, snapshot: int) -> None:
        assert self.state is not None
        for who, node in self.state.nodes.items():
            if node.role is Role.SERVER:
                self.post(Send(who, m.Thaw(snapshot=snapshot)))

    def _take(self, snapshot: Snapshot, keys: list[KeyInfo], invoked: float) -> Any:
        rounds = yield from self._drive(snapshot.freeze([key for key in keys if key.is_sequential]))
        taken: list[Pulled] = []
        kept: list[Residual] = []
        for key, shape in zip(keys, self.plan.keys, strict=True):
            if key.is_sequential and key not in rounds:
                continue  # it has no first value
            value = np.zeros(shape.size, shape.dtype)
            for shard, pieces in key.whole.items():
                if not key.is_sequential:
                    yield from self._drive(snapshot.freeze_shard(key, shard))
                read = yield from self._drive(snapshot.read(key, [slot for slot, _, _ in pieces]))
                for (slot, _, _), saved in zip(pieces, read, strict=True):
                    lay_out(shape, value, slot, saved.arrays)
            taken.append(Pulled(shape.name, rounds.get(key, 0), 0, shape.size, value, invoked, self.now()))
            if any(one.keeps_loss for one in shape.filters):
                [saved] = yield from self._drive(snapshot.read(key, [key.num_slots]))
                saved.arrays.pop("", None)
                by_seat = by_rank(saved.arrays, saved.meta)
                width = None if shape.table is None else shape.slot_size
                states = {rank: state_of(arrays, meta, width) for rank, (arrays, meta) in by_seat.items()}
                found = {rank: kept_back(shape, state.residual) for rank, state in states.items()}
                kept.append(Residual(shape.name, rounds.get(key, -1), found))
        return taken, kept

    def _drive(self, steps: Any) -> Any:
        """As `worker.checkpoint.Saver.drive`."""
        answers: list[Any] | None = None
        while True:
            try:
                asks = steps.send(answers)
            except StopIteration as end:
                return end.value
            got: dict[int, Any] = {}
            for number, ask in enumerate(asks):
                self.submit(Request(ask.to, ask.make, self._into(got, number)))
            yield lambda got=got, asks=asks: len(got) == len(asks)
            self._check()
            answers = [got[number] for number in range(len(asks))]

    def _into(self, got: dict[int, Any], number: int) -> Any:
        def finish(answer: Any, data: tuple[Bytes, ...], error: WindlassError | None) -> None:
            self.error = self.error or error
            got[number] = (answer, tuple(part.copy() for part in data))

        return finish
