"""Gradients of rows on their way from backward to the servers.

A *leaf* is the rows of some ids as a forward pulled them: what torch differentiates by. When backward has made the
gradient of a leaf it is put aside, and at the end of backward all that was put aside leaves in one push, so that
however many tables and lookups a model has, a server gets one message. A backward that fails has pushed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from windlass.errors import UsageError
from windlass.worker.store import Store
from windlass.worker.task import Task

_ATTRIBUTE = "_windlass_row_gradients"
Hyper = Mapping[str, float] | None


@dataclass(frozen=True, slots=True, eq=False)
class RowGradient:
    """The gradient of some rows of a table: different ids, and a row for each."""

    table: str
    ids: torch.Tensor
    rows: torch.Tensor
    hyper: Hyper


class RowGradients:
    """Kept with a store: what backward has made and has not been pushed. One thread trains with a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[int, list[RowGradient]] = {}  # by the backward that made them
        self._held: list[RowGradient] = []
        self._quiet = 0
        self._pushes: dict[str, int] = {}
        self._last: dict[str, Task] = {}  # the last push to each table

    @staticmethod
    def of(store: Store) -> RowGradients:
        found = getattr(store, _ATTRIBUTE, None)
        if not isinstance(found, RowGradients):
            found = RowGradients(store)
            setattr(store, _ATTRIBUTE, found)
        return found

    def pushes(self, table: str) -> int:
        """How many pushes were made from here to this table."""
        return self._pushes.get(table, 0)

    def listen(self, rows: torch.Tensor, give: Callable[[torch.Tensor], RowGradient]) -> None:
        """Make a leaf of rows: `give` says what its gradient is a gradient of."""
        if torch._C._current_graph_task_id() < 0:
            self._made.clear()  # no backward runs: what is still here is of one that failed

        def accumulated(leaf: torch.Tensor) -> None:
            if leaf.grad is not None:
                self._take(give(leaf.grad.detach()))
                leaf.grad = None  # a second backward through the same forward gives its own

        rows.requires_grad_().register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]

    def _take(self, made: RowGradient) -> None:
        backward = torch._C._current_graph_task_id()
        if backward not in self._made:
            self._made[backward] = []
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._end(backward))
        self._made[backward].append(made)

    def _end(self, backward: int) -> None:
        self._held += self._made.pop(backward, [])
        if not self._quiet:
            held, self._held = self._held, []
            self._push(held)

    def wait(self) -> None:
        """Return when all that was pushed is applied; raises what went wrong. Blocks."""
        for task in set(self._last.values()):
            task.wait()
        self._last.clear()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Inside it nothing leaves; the end of the next backward outside pushes the sum. What is held when an exception
        leaves it is dropped."""
        self._quiet += 1
        try:
            yield
        except BaseException:
            self._held.clear()
            raise
        finally:
            self._quiet -= 1

    def _push(self, gradients: list[RowGradient]) -> None:
        """All in one push; one for each kind of `hyper`, where there are several. A table is in one of them only: two
        pushes that complete the same batch would be taken for one."""
        by_table: dict[str, list[RowGradient]] = {}
        for each in gradients:
            by_table.setdefault(each.table, []).append(each)
        kinds: dict[Any, list[str]] = {}
        for name, some in by_table.items():
            hyper = some[0].hyper
            if any(each.hyper != hyper for each in some):
                told = " and ".join(str(each) for each in {id(one.hyper): one.hyper for one in some}.values())
                raise UsageError(f"'{name}' is pushed to with different hyper, {told}: give all its modules the same")
            kinds.setdefault(tuple(sorted(hyper.items())) if hyper else None, []).append(name)
        for kind, names in kinds.items():
            task = self._store.push(
                {name: _joined([each.rows for each in by_table[name]]) for name in names},
                ids={name: _joined([each.ids for each in by_table[name]]) for name in names},
                hyper=dict(kind) if kind else None,
                completes=list(self._store.begun_batches) or None,
            )
            for name in names:
                self._pushes[name] = self._pushes.get(name, 0) + 1
                self._last[name] = task


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
