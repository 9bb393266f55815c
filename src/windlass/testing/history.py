"""What happened in a run: who pushed and pulled what, and when. Plain data, made by the explorer and by real workers.

Every push is a *bit* of its own: one number per slot, the same in each, that no other push touches. A key is an array
of int64 with `update="add"`, so an element of a pulled value says how often that push is in that slot.

    slot 0                slot 1                ...
    | bit 0 | bit 1 | ... | bit 0 | bit 1 | ... |       element = slot * slot_size + bit

A push of a range leaves a mark only on the elements inside it; it is a push all the same, and counts as one.

A table looks the same to the judge: its rows are float32, a number for each bit, and a "slot" is the row of one id. A
push is to some ids, so it leaves marks on some rows. Filters may keep marks back, and send them with a later push: what
a push *carries* is written down mark by mark.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from windlass.filters import Filter
from windlass.types import Array, Consistency, TableSpec

NEWEST = -1
"""In place of a pull's clock: a driver's read, which is of no worker's clock."""


Marks = dict[int, list[int]]
"""Elements, by slot."""


@dataclass(frozen=True, slots=True)
class KeyShape:
    """A key made for judging. `slot_size` is the number of bits, that is of pushes, there is room for. Of a table
    `table` says more, and each of its slots is the row of one of `ids`; to the last of them nobody pushes."""

    name: str
    consistency: Consistency
    slot_size: int
    num_slots: int
    table: TableSpec | None = None
    ids: tuple[int, ...] = ()
    filters: tuple[Filter, ...] = ()
    size: int = field(init=False)
    dtype: str = field(init=False)
    """Filters that keep something back want floating-point numbers."""

    def __post_init__(self) -> None:
        is_float = self.table is not None or any(one.is_lossy for one in self.filters)
        object.__setattr__(self, "size", self.slot_size * self.num_slots)
        object.__setattr__(self, "dtype", "float32" if is_float else "int64")

    @property
    def forgets(self) -> bool:
        """Whether rows may go: then a push may be in no more, but still not twice."""
        limits = self.table
        return limits is not None and (limits.max_rows, limits.ttl_updates, limits.ttl_seconds) != (None, None, None)

    def mark(self, bit: int) -> Array:
        """The value that a push of this bit contributes."""
        value = np.zeros(self.size, self.dtype)
        value[bit :: self.slot_size] = 1
        return value


@dataclass(slots=True)
class Pushed:
    """One push. `clock` is its number on the key, counted from where its worker started. Stamps are of one clock that
    all workers share; `acked` is None while nobody was told that it is applied. `marks` are the elements that it
    carries, where these are not just its bit, from lo to hi."""

    key: str
    clock: int
    bit: int
    lo: int
    hi: int
    invoked: float
    acked: float | None = None
    marks: Marks | None = None


@dataclass(slots=True)
class Pulled:
    """One pull that was answered: elements lo to hi, asked for after `clock` own pushes (deemed ones included),
    or by a driver (NEWEST). Of a table: these `rows`, one after the other. A scan waits for nobody: it follows a pull
    that did, which was `awaited_from` then."""

    key: str
    clock: int
    lo: int
    hi: int
    value: Array
    invoked: float
    responded: float
    rows: tuple[int, ...] | None = None
    awaited_from: float | None = None


@dataclass(slots=True)
class WorkerLog:
    """One worker's calls, in program order. `since` is the clock it started at on each key and `entered` when it was
    told so, for one that joined later; both are 0 for those who were there from the start. `departed` is the earliest
    moment at which anybody could take it for dead."""

    name: str
    events: list[Pushed | Pulled] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    entered: dict[str, float] = field(default_factory=dict)
    departed: float | None = None

    def pushes(self, key: str) -> list[Pushed]:
        return [event for event in self.events if type(event) is Pushed and event.key == key]


@dataclass(slots=True)
class History:
    """A whole run. `final` is each key's value when everything had come to rest. `snapshots` are what was saved of keys
    meanwhile, each as a pull of all of it; its clock is the round that the saver was told, 0 where there are none."""

    keys: dict[str, KeyShape]
    workers: list[WorkerLog]
    final: dict[str, Array] = field(default_factory=dict)
    snapshots: list[Pulled] = field(default_factory=list)
