"""`wl.torch.prefetch`: the rows of the next batch are on their way while this one is worked on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from windlass.errors import UsageError
from windlass.torch.embedding import Remote, checked
from windlass.torch.lookups import Ahead, Lookup, TableRows, ask, flat_ids
from windlass.types import Bounded, Sequential
from windlass.worker.batches import Batches
from windlass.worker.store import Store

BatchT = TypeVar("BatchT")


def prefetch(
    loader: Iterable[BatchT], lookups: Callable[[BatchT], Iterable[Lookup]], *, depth: int = 1
) -> Prefetch[BatchT]:
    """The loader's batches, each with its rows asked for while `depth` batches before it are worked on.

    `lookups(batch)` gives what forward will look up, as for `wl.torch.lookup`: pairs of a module and its ids. Forward
    finds the rows by these ids; what it looks up beside them it pulls as always. Tables come in one message per server.

    A row that is asked for early misses the pushes that are made meanwhile. It never misses more than the table's
    consistency allows: `Bounded(delay)` needs a delay of `depth` at least, and nobody's first n - delay pushes are
    missing after n own ones. Rows that would miss more of the own pushes, because there were several to a batch, are
    pulled again. A sequential table allows nothing to be missing: UsageError.
    """
    if type(depth) is not int or depth < 1:
        raise UsageError(f"prefetch: depth expects a whole number of at least 1, got {depth!r}")
    if isinstance(loader, Batches):
        raise UsageError(_LEASED)
    return Prefetch(loader, lookups, depth)


_LEASED = (
    "prefetch: batches of store.batches() are leased one at a time, and to take the next one before this one is pushed "
    "would count both as done: pull in forward, without prefetch, or give each worker its own part of the data"
)


class _Ready(NamedTuple):
    """A batch whose rows were asked for, by store."""

    batch: Any
    rows: list[tuple[Store, list[TableRows]]]


class Prefetch(Generic[BatchT]):
    """What `prefetch` returns: iterate over it, once for every epoch."""

    def __init__(self, loader: Iterable[BatchT], lookups: Callable[[BatchT], Iterable[Lookup]], depth: int) -> None:
        self._loader, self._lookups, self._depth = loader, lookups, depth

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[BatchT]:
        batches = iter(self._loader)
        queue: deque[_Ready] = deque()
        is_over = False
        stores: dict[int, Store] = {}
        try:
            while True:
                while not is_over and len(queue) <= self._depth:
                    before = [len(store.begun_batches) for store in stores.values()]
                    try:
                        batch = next(batches)
                    except StopIteration:
                        is_over = True
                        break
                    if queue and before != [len(store.begun_batches) for store in stores.values()]:
                        raise UsageError(_LEASED)
                    queue.append(_Ready(batch, self._ask(batch)))
                    stores |= {id(store): store for store, _ in queue[-1].rows}
                if not queue:
                    return
                ready = queue.popleft()
                for store in stores.values():
                    Ahead.of(store).ready = []
                for store, rows in ready.rows:
                    Ahead.of(store).ready = rows
                yield ready.batch
        finally:
            for store in stores.values():
                Ahead.of(store).ready = []

    def _ask(self, batch: BatchT) -> list[tuple[Store, list[TableRows]]]:
        pairs = [checked(pair) for pair in self._lookups(batch)]
        for module, _ in pairs:
            _check_consistency(module, self._depth)
        # Copied: forward finds rows by the ids they were asked for with, whatever the script does to its batch.
        asked = ask([(module, flat_ids(module, given).clone()) for module, given in pairs], depth=self._depth)
        found: dict[int, tuple[Store, dict[int, TableRows]]] = {}
        for rows, _ in asked:
            store = rows.module.store
            found.setdefault(id(store), (store, {}))[1][id(rows)] = rows
        return [(store, list(rows.values())) for store, rows in found.values()]


def _check_consistency(module: Remote, depth: int) -> None:
    """Raise UsageError where rows asked for so early could miss more than the table allows."""
    consistency = module.table.consistency
    if isinstance(consistency, Sequential):
        raise UsageError(
            f"prefetch: '{module.table.name}' is sequential, and rows that are asked for before this step's push would "
            f"miss it: declare the table with consistency=wl.Bounded({depth}), or leave it to forward"
        )
    if isinstance(consistency, Bounded) and consistency.delay < depth:
        raise UsageError(
            f"prefetch: '{module.table.name}' allows {consistency.delay} pushes to be missing, and rows asked for "
            f"{depth} batches ahead may miss {depth}: declare it with consistency=wl.Bounded({depth}), or lower depth"
        )
