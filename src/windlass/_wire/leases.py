"""The messages of leased work, between workers, the scheduler and servers."""

from __future__ import annotations

from enum import Enum

import msgspec

from windlass._wire.message import Message
from windlass.types import KeyId


class Workload(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Work to be leased: `epochs` passes over `size` samples, in batches of `batch_size`. Batches are numbered through
    all epochs. With `step_batches` not 0 all workers together take so many for a step."""

    name: str
    size: int
    batch_size: int
    epochs: int
    step_batches: int = 0

    @property
    def epoch_batches(self) -> int:
        """How many there are in an epoch."""
        return -(-self.size // self.batch_size)


class Waits(Enum):
    """Whom the pushes and pulls of a workload wait for."""

    NOBODY = "nobody"  # eventual keys
    SLOWER = "slower"  # bounded keys: whoever has pushed less
    ROUNDS = "rounds"  # sequential keys: everybody


class Take(Message, frozen=True):
    """Worker to scheduler: I have completed `done`; `held` is what I still have; give me more. `keys` are those that my
    pushes went to. With `is_outside` nobody waits for me on them: the answer may take its time."""

    request: int
    workload: Workload
    done: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    keys: tuple[KeyId, ...] = ()
    is_outside: bool = False
    is_leaving: bool = False  # it takes no more
    waits: Waits = Waits.ROUNDS


class Holding(Message, frozen=True):
    """Worker to scheduler, on every new link: these batches are mine; the scheduler that gave them may be no more."""

    workload: Workload
    held: tuple[int, ...]
    is_outside: bool = False
    waits: Waits = Waits.ROUNDS
    is_entering: bool = False  # it was told that it may, and has not asked since


class Granted(Message, frozen=True):
    """Scheduler to worker: these batches are yours. None, and neither `is_over` nor `may_enter`: there is nothing to do
    now; rest on `keys`, and ask again from outside. With `may_enter`, nobody pushes at the moment: begin on `keys`
    again, and ask. This is so in the generation `term`.`number`: in an earlier one, somebody may push who is gone."""

    request: int
    batches: tuple[int, ...] = ()
    keys: tuple[KeyId, ...] = ()
    is_over: bool = False
    may_enter: bool = False
    term: int = 0
    number: int = 0


class Tally(Message, frozen=True):
    """Scheduler to servers: what is counted of this workload on the shards of these keys that you are the head of?"""

    ask: int
    workload: str
    keys: tuple[KeyId, ...]


class Tallied(Message, frozen=True):
    """Head to scheduler: on this shard, one of `num_shards`, batches below `floor` are counted, and those `above`."""

    ask: int
    key: KeyId
    shard: int
    num_shards: int
    floor: int
    above: tuple[int, ...]


class Loaded(Message, frozen=True):
    """Whoever has loaded a checkpoint to the manager, which publishes a generation, and the scheduler: what is counted
    of this namespace's work the servers know, and what you knew before is no longer so. Answered with Done."""

    request: int
    namespace: str = ""
