"""What the workers of a model have in common, kept in the store: so that nobody has to be there at the same time.

A model has a *charter*, keys that are never pushed to. Its *terms* are written by the lowest rank: the options and
parameters that every worker compares its own with, and who was here. Its *values* are those that the parameters begin
with, until there are keys for them. Whoever makes the first step of leased work writes what it has *begun*: which
parameters take part. Of two who try the servers take one, and that one alone makes the keys; when it has, it says so.
Whoever comes later finds all of this, and begins where the others are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from windlass.errors import TimeoutError, UsageError
from windlass.torch.buckets import Parameter
from windlass.types import RESERVED, Array, Incarnation, Sequential
from windlass.worker.store import Store

MODEL = f"{RESERVED}model-"
SHORTEST_NAP_SECONDS, LONGEST_NAP_SECONDS = 0.001, 0.05


class Begun(msgspec.Struct, frozen=True):
    """What the first step has found: the parameters that take part, and whether their keys sum what is pushed."""

    takes_part: list[bool]
    is_summed: bool
    rank: int
    maker: int

    @property
    def numbers(self) -> list[int]:
        return [number for number, takes in enumerate(self.takes_part) if takes]


class Terms(msgspec.Struct, frozen=True):
    """What every worker must have alike, as the worker of this rank has it, and who was here at the time."""

    agreed: dict[str, Any]
    parameters: list[Parameter]
    name: str = ""
    gone: list[str] = []  # keys of models that are no more: everybody lets go of them before they are deleted
    rank: int = 0
    maker: int = 0
    crew: list[int] = []
    resumed: Begun | None = None  # what the store has of an earlier one, to go on with


# Made here, by one thread: where two are the first to decode a type at the same time, msgspec crashes.
_terms_decoder = msgspec.msgpack.Decoder(Terms)
_begun_decoder = msgspec.msgpack.Decoder(Begun)


@dataclass(slots=True)
class Draft:
    """What the lowest rank writes: its terms, keys that an earlier run has left, and its values if they are shared."""

    terms: Terms
    leftovers: list[str]
    values: torch.Tensor | None


class Charter:
    """That of the `number`-th model which this worker makes in its run. Not thread-safe."""

    def __init__(self, store: Store, number: int) -> None:
        self._store = store
        self._run = store._leased.run
        self._terms = f"{MODEL}{self._run}.{number}"
        self._values, self._begun, self._ready = (f"{self._terms}/{part}" for part in ("values", "begun", "ready"))

    @property
    def me(self) -> Incarnation:
        return self._store._client.state.me

    # --- the terms --------------------------------------------------------------------------------------------------

    def agree(self, what: str, draft: Callable[[], Draft]) -> Terms:
        """The terms. Whoever is the lowest rank writes them, if there are none, and the others wait for them."""
        state = self._store._client.state
        for _ in self._polls(f"{what}: the lowest rank has not made it"):
            finished = self._store.finished_ranks  # before the look: who has finished by now has written what it will
            found = self._read(self._terms)
            if found is not None:
                terms = _terms_decoder.decode(found.tobytes())
                # One that somebody made who left before we came is of another job, unless we are to go on with that.
                if state.is_late or terms.maker in state.nodes or terms.maker in state.departed:
                    return terms
                self._store._put_down(self._terms)
            if self._store.is_lowest:
                self._write(draft())
            elif state.lowest_rank in finished:
                raise UsageError(
                    f"worker-{state.lowest_rank} has finished its function and makes no further step; "
                    f"worker-{state.rank} waits to hear from it, in making {what}. Let every worker make it"
                )
        raise AssertionError

    def _write(self, draft: Draft) -> None:
        store, state = self._store, self._store._client.state
        for key in [*draft.leftovers, *self._of_other_runs(), self._begun, self._ready, self._values, self._terms]:
            store.delete(key)
        if draft.values is not None:
            store._create(self._values, draft.values, consistency=Sequential(), gives=True)
        crew = [int(who) for who in state.workers]
        terms = msgspec.structs.replace(draft.terms, rank=state.rank, maker=int(self.me), crew=crew)
        self._create(self._terms, msgspec.msgpack.encode(terms))

    def _of_other_runs(self) -> list[str]:
        mine = f"{MODEL}{self._run}."
        return [name for name in self._store._every_name() if name.startswith(MODEL) and not name.startswith(mine)]

    def values(self) -> torch.Tensor | None:
        """The values to begin with, all in one; None once there are keys for them. Look for these first, then for what
        is begun: what is neither here nor there is over."""
        found = self._read(self._values)
        self._store._put_down(self._values)
        return None if found is None else torch.from_numpy(found)

    def forget_values(self) -> None:
        """The parameters have keys. Safe to repeat."""
        self._store.delete(self._values)

    # --- what is begun ------------------------------------------------------------------------------------------------

    def begun(self) -> Begun | None:
        """What was begun, once all keys are there; None if nothing was. Blocks while somebody makes them."""
        for _ in self._polls("the keys of a model are not made"):
            found = self._read(self._begun)
            if found is None:
                return None
            begun = _decoded(found)
            if self._is_ready(begun):
                return begun
        raise AssertionError

    def begin(self, mine: Begun, make: Callable[[], None]) -> Begun:
        """Begin with this, and `make` the keys; or, if another was first, what that one has begun. Blocks until all
        keys are there. Should who makes them die, another does."""
        for _ in self._polls("the keys of a model are not made"):
            self._create(self._begun, _encoded(mine))
            found = self._read(self._begun)
            if found is None:
                continue  # whoever made it died, and somebody has cleared up
            begun = _decoded(found)
            if begun.maker == self.me:
                make()
                self.tell_begun(begun)
                return begun
            if self._is_ready(begun):
                return begun
        raise AssertionError

    def tell_begun(self, begun: Begun) -> None:
        """All keys are there. Safe to repeat."""
        self._create(self._begun, _encoded(begun))
        self._create(self._ready, b"1")

    def _is_ready(self, begun: Begun) -> bool:
        """Wait until the keys are there; False if who made them has died: then nothing is begun."""
        is_gone = False
        for _ in self._polls(f"worker-{begun.rank} does not make the keys of a model"):
            if self._read(self._ready) is not None:
                return True
            if is_gone:
                self._store.delete(self._begun)
                return False
            # By the manager's word: to us it may be nobody's number, because it came a moment ago.
            nodes = self._store._manager_says()["nodes"]
            is_gone = all(node["incarnation"] != begun.maker or node["state"] == "gone" for node in nodes)
        raise AssertionError

    # --- keys ---------------------------------------------------------------------------------------------------------

    def _create(self, key: str, data: bytes) -> None:
        value = np.frombuffer(data, np.uint8)
        self._store._create(key, value, consistency=Sequential(), gives=True, chunk_bytes=max(64, len(data)))

    def _read(self, key: str) -> Array | None:
        try:
            found: Array = np.asarray(self._store.pull(key))
            return found
        except UsageError:
            self._store._put_down(key)
            return None  # it is not there, or not any more

    def _polls(self, what: str) -> Iterator[None]:
        """Once at once, then again and again; TimeoutError when the time is over."""
        seconds = self._store.options.timeout
        deadline, nap = time.monotonic() + seconds, SHORTEST_NAP_SECONDS
        while True:
            yield
            if time.monotonic() >= deadline:
                raise TimeoutError(f"worker-{self._store.rank} has waited for {seconds:.0f} s: {what}")
            time.sleep(nap)
            nap = min(LONGEST_NAP_SECONDS, 1.5 * nap)


def _encoded(begun: Begun) -> bytes:
    """Always equally long, whoever says it, so that the key is declared alike."""
    said = msgspec.msgpack.encode(begun)
    return (len(said).to_bytes(4, "little") + said).ljust(128 + len(begun.takes_part), b"\0")


def _decoded(found: Array) -> Begun:
    said = found.tobytes()
    return _begun_decoder.decode(said[4 : 4 + int.from_bytes(said[:4], "little")])
