"""Saving a store that is being pushed to, and loading it into any number of servers: what travels. `snapshot.py` says
what is asked of the servers, and `windlass.checkpoint` knows what lies on the disk and how it gets there safely.

A key goes slot by slot, so that no more than a few shards of it are in memory here.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from os import PathLike
from typing import TypeVar

import numpy as np
from msgspec import structs

from windlass._wire import messages as m
from windlass._wire.effects import Send
from windlass.checkpoint import AfterRound, Moment, Reader, SavedSlot, WhenAsked, Writer
from windlass.errors import ClusterError, TimeoutError, UsageError
from windlass.store.parts import cut_arrays
from windlass.types import MANAGER, RESERVED, Block, Bytes, Generation, KeyId, Role
from windlass.worker.batches import OF_RUN
from windlass.worker.client import Answer, Client
from windlass.worker.ops import KeyInfo, Request
from windlass.worker.snapshot import POLL_SECONDS, Announcer, Answers, Ask, Melted, Result, Snapshot, Steps

__all__ = ["SavedSlot", "Saver", "load", "read_slots", "write_slots"]

log = logging.getLogger("windlass")

KEPT_BYTES = 64 << 20
REST_FACTOR = 16.0
MAX_REST_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""If somebody has pushed within that time, a saver rests for so many times as long as it has read and handed on, up to
MAX_REST_SECONDS. Lower the factor if there are more cores than the cluster can use, and saves should take less time."""
READ_BYTES = 16 << 20
"""How much of a value is asked for at a time."""
Done = TypeVar("Done")


@contextmanager
def _using(client: Client, declared: m.Declared) -> Iterator[KeyInfo]:
    """The key, its shards' heads kept up to date."""
    key = KeyInfo(declared.key, declared.spec, list(declared.chains))
    client.use(key, Generation(declared.term, declared.number))
    try:
        yield key
    finally:
        client.disuse(key)


def _look_up(client: Client, name: str) -> m.Declared:
    look_up = partial(m.Lookup, name=name, namespace=client.state.namespace)
    declared, _ = client.request(MANAGER, lambda n: look_up(request=n), f"save '{name}'")
    found: m.Declared = declared
    return found


# --- saving -----------------------------------------------------------------------------------------------------------


class Buffers:
    """Memory for what is on its way to the disk: what nobody references any more is used again, because fresh pages
    cost more than the copy that fills them. One owner."""

    def __init__(self) -> None:
        self._kept: list[Bytes] = []
        self._kept_bytes = 0

    def copy(self, data: Bytes) -> Bytes:
        """A copy that is the caller's for as long as it is referenced."""
        for kept in self._kept:
            if kept.nbytes == data.nbytes and sys.getrefcount(kept) <= _UNUSED:
                np.copyto(kept, data)
                return kept
        made: Bytes = np.array(data)
        if self._kept_bytes + made.nbytes <= KEPT_BYTES:
            self._kept.append(made)
            self._kept_bytes += made.nbytes
        return made


def _references_when_unused() -> int:
    """What sys.getrefcount says, in a loop over a list, of an array that only the list holds: it depends on Python."""
    for array in [np.empty(0)]:
        return sys.getrefcount(array)
    return 0


_UNUSED = _references_when_unused()


class Saver:
    """Takes snapshots for one store. Thread-safe: one at a time, others wait."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._buffers = Buffers()
        self._seen: dict[KeyId, int] = {}  # how far keys were when they were last looked at
        self._pushed_at = -math.inf  # when a key was last seen to have moved
        self._one = threading.Lock()
        self.between = threading.Lock()
        """Held while sequential keys are being frozen: what is put between two rounds by the same store must be in the
        snapshot on all shards, or on none."""

    def save(
        self,
        names: Callable[[], Iterable[str]],
        path: str | PathLike[str],
        *,
        name: str | None = None,
        keep: int | None = None,
        needs_updates: bool = False,
    ) -> str:
        """Write the keys of these names, and give the path of what was written. Blocks; everybody may push meanwhile.
        What is lost with a server or a link on the way makes it begin anew. If it `needs_updates` and no key has taken
        any, nothing is written, and the path is empty."""
        with self._one:
            saved = self._until_done(
                f"save('{path}')", lambda announcer: self._try(announcer, names(), path, name, keep, needs_updates)
            )
        if saved:
            _tell(self._client, saved)
        return saved

    def _until_done(self, what: str, attempt: Callable[[Announcer], Done]) -> Done:
        """Attempt it until nothing melts away under it."""
        announcer = Announcer()
        began = time.monotonic()
        while True:
            try:
                return attempt(announcer)
            except Melted as melted:
                seconds = time.monotonic() - began
                if seconds > self._client.timeout:
                    text = f"{what} was not done within {seconds:.0f} s; the last attempt ended because"
                    raise TimeoutError(f"{text} {melted}") from None
                log.debug("%s begins anew: %s", what, melted)

    def _try(
        self,
        announcer: Announcer,
        names: Iterable[str],
        path: str | PathLike[str],
        name: str | None,
        keep: int | None,
        needs_updates: bool,
    ) -> str:
        with self._snapshot(announcer, [one for one in names if not one.startswith(RESERVED)]) as (snapshot, keys):
            arrivals = [key for key in keys if not key.is_sequential]
            with self.between:
                rounds = self.drive(snapshot.freeze([key for key in keys if key.is_sequential]))
            looks = self.drive(snapshot.look([(key, shard) for key in arrivals for shard in key.whole]))
            updates = {
                key: min(looks[key, shard] for shard in key.whole)
                for key in arrivals if all((key, shard) in looks for shard in key.whole)
            }  # fmt: skip
            moments: dict[KeyInfo, Moment] = {key: AfterRound(taken) for key, taken in rounds.items()}
            moments |= {key: WhenAsked(taken) for key, taken in updates.items()}
            self._seen = {key.id: taken for key, taken in (*rounds.items(), *updates.items())}
            if needs_updates and not any((*rounds.values(), *updates.values())):
                return ""
            step = max((rounds or updates).values(), default=0)
            with Writer(path, name=name, step=step, keep=keep) as writer:
                for key in (key for key in keys if key in moments):
                    for slot, saved in chain(self._slots(snapshot, key), self._residuals(snapshot, key)):
                        writer.add(key.spec, slot, saved.arrays, saved.meta, moments[key])
        return writer.path

    def _slots(self, snapshot: Snapshot, key: KeyInfo) -> Iterator[tuple[int, SavedSlot]]:
        for shard, pieces in key.whole.items():
            if not key.is_sequential:
                self.drive(snapshot.freeze_shard(key, shard))
            slots = [slot for slot, _, _ in pieces]
            width = max(1, READ_BYTES // key.spec.chunk_bytes)
            for begin in range(0, len(slots), width):
                some, began = slots[begin : begin + width], time.monotonic()
                yield from zip(some, self.drive(snapshot.read(key, some)), strict=True)
                self._rest(snapshot, key, time.monotonic() - began)

    def _residuals(self, snapshot: Snapshot, key: KeyInfo) -> Iterator[tuple[int, SavedSlot]]:
        """What workers have kept back: the slot after the last."""
        if key.spec.filters:
            number = key.spec.num_slots
            [saved] = self.drive(snapshot.read(key, [number]))
            saved.arrays.pop("", None)
            if saved.meta:
                yield number, saved

    def _rest(self, snapshot: Snapshot, key: KeyInfo, seconds: float) -> None:
        """Leave the machine to those who push, if somebody does."""
        [count] = self.drive(snapshot.look([(key, 0)])).values() or [0]
        now = time.monotonic()
        if self._seen.setdefault(key.id, count) != count:
            self._seen[key.id], self._pushed_at = count, now
        if now - self._pushed_at < BUSY_SECONDS:
            time.sleep(min(MAX_REST_SECONDS, REST_FACTOR * seconds))

    def read(self, name: str) -> tuple[m.Declared, list[SavedSlot]]:
        """Everything that a key is made of, slot by slot. Blocks."""


        def attempt(announcer: Announcer) -> tuple[m.Declared, list[SavedSlot]]:
            declared = _look_up(self._client, name)
            with self._snapshot(announcer, [name]) as (snapshot, keys):
                if keys[0].is_sequential:
                    self.drive(snapshot.freeze(keys))
                return declared, [saved for _, saved in self._slots(snapshot, keys[0])]

        return self._until_done(f"reading '{name}'", attempt)

    @contextmanager
    def _snapshot(self, announcer: Announcer, names: Iterable[str]) -> Iterator[tuple[Snapshot, list[KeyInfo]]]:
        """A new snapshot of these keys; at the end of the block nothing is kept of it. A key that is deleted meanwhile
        is left out."""
        client = self._client
        snapshot = Snapshot(next(client.snapshot_numbers), announcer)
        with ExitStack() as stack:
            keys = []
            for name in names:
                try:
                    keys.append(stack.enter_context(_using(client, _look_up(client, name))))
                except UsageError:
                    continue
            try:
                yield snapshot, keys
            finally:
                servers = [who for who, node in client.state.nodes.items() if node.role is Role.SERVER]
                for server in servers:
                    client.post(Send(server, m.Thaw(snapshot=snapshot.number)))

    def drive(self, steps: Steps[Result]) -> Result:
        """Ask what is to be asked, until the end. A key that was deleted meanwhile melts the snapshot."""
        answers: Answers | None = None
        while True:
            try:
                asks = steps.send(answers)  # type: ignore[arg-type]
            except StopIteration as end:
                result: Result = end.value
                return result
            if not asks:
                time.sleep(POLL_SECONDS)
            answers = self._ask(asks)

    def _ask(self, asks: Sequence[Ask]) -> Answers:
        waits = [Answer(ask.what, ask.to, self._buffers.copy) for ask in asks]
        requests = [Request(ask.to, ask.make, wait.finish) for ask, wait in zip(asks, waits, strict=True)]
        self._client.submit(*requests)
        for wait in waits:
            self._client.wait(wait)
            if isinstance(wait.error, UsageError):
                raise Melted(str(wait.error))
            if wait.error is not None:
                raise wait.error
        return [(wait.message, wait.data) for wait in waits]


def read_slots(client: Client, name: str) -> tuple[m.Declared, list[SavedSlot]]:
    """Everything that a key is made of, slot by slot. Blocks."""
    return Saver(client).read(name)


# --- loading ----------------------------------------------------------------------------------------------------------


def write_slots(client: Client, declared: m.Declared, slots: Sequence[SavedSlot]) -> None:
    """Make a key of what `read_slots` gave. Blocks; nobody may push meanwhile."""
    with _using(client, declared) as key:
        for number in _keeper_last(key):
            _write_slot(client, key, number, slots[number])


def _keeper_last(key: KeyInfo) -> Iterator[int]:
    """When the keeper has its part, everybody has, and it lets those in who wait for a first value."""
    return reversed(range(key.spec.num_slots))


def _write_slot(client: Client, key: KeyInfo, number: int, slot: SavedSlot, taken: int = -1) -> None:
    parts = list(cut_arrays(slot.arrays))
    for position, (name, array) in enumerate(parts):
        restore = partial(
            m.Restore,
            key=key.id,
            slot=number,
            name=name,
            dtype=str(array.dtype),
            meta=slot.meta,
            is_last=position == len(parts) - 1,
            count=taken,
            part=position,
        )
        client.request(
            (key, key.shard_of(number)),
            lambda n, restore=restore: restore(request=n),  # type: ignore[misc]
            f"slot {number} of '{key.spec.name}', to be loaded,",
            data=(Block(array.view(np.uint8)),),
        )


def load(client: Client, path: str | PathLike[str], *, is_same_run: bool = False) -> None:
    """Declare what is not declared, and give every slot back what it was made of. Blocks; nobody may push meanwhile.
    Leased work that has a name goes on from there; what has none, only where the run that began it does."""
    reader = Reader(path)
    for saved in reader.manifest.keys:
        make = partial(m.Declare, spec=structs.replace(saved.spec, namespace=client.state.namespace))
        declared, _ = client.request(
            MANAGER, lambda n, make=make: make(request=n), f"load '{saved.spec.name}'"  # type: ignore[misc]
        )
        taken = saved.moment.round if isinstance(saved.moment, AfterRound) else saved.moment.version
        with _using(client, declared) as key:
            for number in _keeper_last(key):
                slot = reader.slot(saved.spec.name, number)
                _write_slot(client, key, number, slot if is_same_run else _without_runs(slot), taken)
            if saved.residuals is not None:
                number = key.spec.num_slots
                _write_slot(client, key, number, reader.slot(saved.spec.name, number), taken)
    loaded = partial(m.Loaded, namespace=client.state.namespace)
    client.request(MANAGER, lambda n: loaded(request=n), "the scheduler's note of what is counted now")
    _tell(client, reader.path)


def _without_runs(slot: SavedSlot) -> SavedSlot:
    leases = {name: told for name, told in slot.meta.get("leases", {}).items() if not OF_RUN.match(name)}
    return SavedSlot(slot.arrays, slot.meta | {"leases": leases})


def _tell(client: Client, path: str) -> None:
    """Let the cluster know where it can go back to. A job that shares its servers has checkpoints of its own."""
    if client.state.namespace:
        return
    try:
        client.request(MANAGER, lambda n: m.Saved(request=n, path=path), f"the manager's note of '{path}'")
    except ClusterError as error:
        log.warning("the cluster does not know of the checkpoint '%s', which is complete: %s", path, error)
