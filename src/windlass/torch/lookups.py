"""The rows of a batch: each different id of it is pulled once, and all tables of a store in one message per server.

A *lookup* is a module and what it is given, ids first: `(module, ids)`, or `(module, (ids, offsets))`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from windlass.errors import UsageError
from windlass.store.batch import route
from windlass.torch.row_gradients import RowGradient, RowGradients
from windlass.worker.store import Store
from windlass.worker.task import Task

if TYPE_CHECKING:
    from windlass.torch.embedding import Remote

_AHEAD = "_windlass_rows_ahead"


@dataclass(slots=True, eq=False)
class TableRows:
    """Rows of one table for several inputs, asked for in one pull. `ids` are different; if the table's modules have a
    padding id, row 0 is its row: zeros, which are not pulled."""

    module: Remote
    inputs: list[torch.Tensor]  # flat, on the CPU
    depth: int = 0  # how many more pushes it was asked for ahead of
    pushes: int = field(init=False)  # that this worker had made to the table when it asked
    ids: torch.Tensor = field(init=False)
    indices: list[torch.Tensor] = field(init=False)  # for each input, which of the rows each id is
    has_padding: bool = field(init=False)
    _task: Task | None = None
    _place: int = 0
    _rows: torch.Tensor | None = None
    _leaf: torch.Tensor | None = None

    def __post_init__(self) -> None:
        padding = self.module.padding_idx
        self.has_padding = padding is not None
        first = [] if padding is None else [torch.tensor([padding])]
        parts = [*first, *self.inputs]
        way = route((parts[0] if len(parts) == 1 else torch.cat(parts)).numpy(), 1)
        self.pushes = RowGradients.of(self.module.store).pushes(self.module.table.name)
        skipped = len(first)
        self.ids = torch.from_numpy(way.ids[skipped:])
        indices, sizes = torch.from_numpy(way.inverse[skipped:]), [len(each) for each in self.inputs]
        self.indices = list(torch.split(indices, sizes))

    def await_(self, task: Task, place: int) -> None:
        """What it asked for comes with this task, in this place."""
        self._task, self._place = task, place

    @property
    def is_fresh(self) -> bool:
        """Whether it misses no more of the own pushes than it was to."""
        made = RowGradients.of(self.module.store).pushes(self.module.table.name)
        return made - self.pushes <= self.depth

    def find(self, ids: torch.Tensor) -> int | None:
        """Which of the inputs these ids are."""
        return next((number for number, each in enumerate(self.inputs) if torch.equal(each, ids)), None)

    def rows(self) -> torch.Tensor:
        """Blocks until they are here."""
        if self._rows is None:
            assert self._task is not None
            rows = self._task.wait()[self._place]
            if self.has_padding:
                rows = torch.cat([rows.new_zeros(1, rows.shape[1]), rows])
            self._rows, self._task = rows, None
        return self._rows

    def leaf(self, module: Remote, device: torch.device) -> torch.Tensor:
        """The rows on this device; what torch differentiates by, where it does."""
        if not torch.is_grad_enabled() or module.freeze:
            return self.rows().detach().to(device)
        if self._leaf is None or self._leaf.device != device:
            self._leaf = self.rows().detach().to(device)
            table, ids, skipped = module.table.name, self.ids, int(self.has_padding)
            RowGradients.of(module.store).listen(
                self._leaf, lambda grad: RowGradient(table, ids, grad[skipped:].cpu(), module.hyper)
            )
        return self._leaf


class Ahead:
    """Kept with a store: the rows of the batch under way that were asked for before it began."""

    def __init__(self) -> None:
        self.ready: list[TableRows] = []

    @staticmethod
    def of(store: Store) -> Ahead:
        found = getattr(store, _AHEAD, None)
        if not isinstance(found, Ahead):
            found = Ahead()
            setattr(store, _AHEAD, found)
        return found

    def find(self, module: Remote, ids: torch.Tensor) -> tuple[TableRows, torch.Tensor] | None:
        for asked in self.ready:
            is_same = asked.module.table.name == module.table.name and asked.module.padding_idx == module.padding_idx
            if is_same and asked.is_fresh:
                number = asked.find(ids)
                if number is not None:
                    return asked, asked.indices[number]
        return None


Lookup = tuple[Any, Any]
"""A module, and its input: ids, or a tuple of all that its forward takes."""


def flat_ids(module: Remote, given: Any) -> torch.Tensor:
    """The ids of an input, in one row, as int64 on the CPU. Raises UsageError for what are none."""
    ids = given[0] if isinstance(given, tuple) else given
    if isinstance(ids, np.ndarray):
        ids = torch.from_numpy(ids)
    if not isinstance(ids, torch.Tensor):
        raise UsageError(f"{module.who}: expected a tensor of ids, got {type(ids).__name__}")
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise UsageError(f"{module.who}: ids must be whole numbers, int64 at best, got {ids.dtype}")
    return ids.detach().reshape(-1).to("cpu", torch.int64).contiguous()


def ask(pairs: Sequence[tuple[Remote, torch.Tensor]], depth: int = 0) -> list[tuple[TableRows, torch.Tensor]]:
    """Ask for the rows of all of these flat ids, one pull for each store; of each, where its rows will be. With a
    `depth`, for use after up to so many more pushes. Does not wait for the answers."""
    groups: dict[tuple[int, str, int | None], list[int]] = {}
    for number, (module, _) in enumerate(pairs):
        groups.setdefault((id(module.store), module.table.name, module.padding_idx), []).append(number)
    found: dict[int, tuple[TableRows, torch.Tensor]] = {}
    pulls: dict[int, list[TableRows]] = {}
    for (store, _, _), numbers in groups.items():
        module = pairs[numbers[0]][0]
        asked = TableRows(module, [pairs[number][1] for number in numbers], depth)
        pulls.setdefault(store, []).append(asked)
        found |= {number: (asked, indices) for number, indices in zip(numbers, asked.indices, strict=True)}
    for together in pulls.values():
        _pull(together)
    return [found[number] for number in range(len(pairs))]


def _pull(together: list[TableRows]) -> None:
    """One pull of several tables. Where a table is asked for twice, with padding and without, a second pull follows."""
    now: dict[str, TableRows] = {}
    later: list[TableRows] = []
    for asked in together:
        if now.setdefault(asked.module.table.name, asked) is not asked:
            later.append(asked)
    task = next(iter(now.values())).module.store.pull(
        list(now), ids={name: asked.ids for name, asked in now.items()}, ahead=together[0].depth, wait=False
    )
    for place, asked in enumerate(now.values()):
        asked.await_(task, place)
    if later:
        _pull(later)


def look_up(lookups: Iterable[Lookup]) -> list[torch.Tensor]:
    """What each of the modules gives for its input, with one pull for all that was not asked for ahead. Blocks."""
    pairs = [(module, given) for module, given in lookups]
    wanted = [(module, flat_ids(module, given)) for module, given in pairs]
    known = [Ahead.of(module.store).find(module, ids) for module, ids in wanted]
    missing = iter(ask([each for each, rows in zip(wanted, known, strict=True) if rows is None]))
    found: list[torch.Tensor] = []
    for (module, given), rows in zip(pairs, known, strict=True):
        asked, indices = rows or next(missing)
        found.append(module.combine(asked, indices, given if isinstance(given, tuple) else (given,)))
    return found
