"""`wl.torch.Embedding` and `wl.torch.EmbeddingBag`: torch's modules, over rows that lie on the servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from windlass.errors import UsageError, options_checked
from windlass.torch.expanding import expand
from windlass.torch.lookups import Lookup, TableRows, look_up
from windlass.torch.row_gradients import RowGradients
from windlass.worker.store import Store
from windlass.worker.tables import Table

MODES = ("sum", "mean", "max")


class Remote(nn.Module):
    """What the two have in common. It has no parameter: its rows are the table's, which the servers update.

    Forward pulls the rows of its ids, each different id once. The end of backward pushes the gradient, one row for each
    different id, together with that of all other modules of the store; the table's updater applies it. Without grad
    mode, and with `freeze=True`, nothing is pushed. `hyper={"lr": x}` overrides the updater's numbers; set it anew for
    a schedule. Not thread-safe.
    """

    def __new__(cls, *args: Any, **named: Any) -> Self:
        """Tells whoever makes it as torch's is made, by numbers of rows and columns, how it is made."""
        given = [*args, *(named[each] for each in ("table", "num_embeddings", "embedding_dim") if each in named)]
        if len(given) != 1 or named.keys() & {"num_embeddings", "embedding_dim"}:
            raise cls._no_table(*given)
        return super().__new__(cls)

    @options_checked
    def __init__(
        self,
        table: Table,
        *,
        padding_idx: int | None = None,
        freeze: bool = False,
        hyper: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(table, Table):
            raise self._no_table(table)
        if padding_idx is not None and type(padding_idx) is not int:
            raise UsageError(f"padding_idx expects an id or None, got {padding_idx!r}")
        self.table = table
        self.padding_idx, self.freeze, self.hyper = padding_idx, freeze, hyper

    @classmethod
    def _no_table(cls, *given: object) -> UsageError:
        got = ", ".join(f"{each!r:.40}" for each in given) or "nothing"
        return UsageError(
            f"wl.torch.{cls.__name__} expects a table, got {got}: its rows are on the servers. "
            f"store.create_table('emb', dim=16) makes one, for wl.torch.{cls.__name__}(store.table('emb'))"
        )

    @property
    def store(self) -> Store:
        return self.table.store

    @property
    def embedding_dim(self) -> int:
        return self.table.dim

    @property
    def who(self) -> str:
        """What it is called in errors."""
        return f"{type(self).__name__} of '{self.table.name}'"

    def no_sync(self) -> Any:
        """Inside it, backward keeps the gradients of all tables of this store; nothing leaves. The next backward
        outside pushes their sum. `wl.torch.Optimizer.no_sync()` does the same, and for its parameters."""
        return RowGradients.of(self.store).hold()

    def wait(self) -> None:
        """Return when every gradient that was pushed from here, to all tables of this store, is applied. Before a
        `store.barrier()`, after which others are to see them. Blocks."""
        RowGradients.of(self.store).wait()

    def combine(self, asked: TableRows, indices: torch.Tensor, given: tuple[Any, ...]) -> torch.Tensor:
        """What forward gives for an input whose rows are these."""
        raise NotImplementedError

    @property
    def _padding(self) -> int | None:
        """The padding id, as an index into the rows."""
        return None if self.padding_idx is None else 0

    def __deepcopy__(self, memo: Any) -> Any:
        raise UsageError(f"{self.who}: a copy would train the same rows; make another module, of another table")

    def __reduce__(self) -> Any:
        raise UsageError(
            f"{self.who} belongs to its store and cannot be pickled: save state_dict()s, and the rows by store.save()"
        )

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"'{self.table.name}', {self.embedding_dim}{padding}{', frozen' if self.freeze else ''}"


class Embedding(Remote):
    """`nn.Embedding`, over a table: `wl.torch.Embedding(store.table("emb"))`. An input of any shape gives a row for
    each of its ids, which may be any int64; what nobody has pushed to is as the table's `init` says.

    The row of `padding_idx` is zeros and takes no gradient. `scale_grad_by_freq` divides a row's gradient by how often
    its id is in the input.
    """

    @options_checked
    def __init__(
        self,
        table: Table,
        *,
        padding_idx: int | None = None,
        scale_grad_by_freq: bool = False,
        freeze: bool = False,
        hyper: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(table, padding_idx=padding_idx, freeze=freeze, hyper=hyper)
        self.scale_grad_by_freq = scale_grad_by_freq

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return look_up([(self, input)])[0]

    def combine(self, asked: TableRows, indices: torch.Tensor, given: tuple[Any, ...]) -> torch.Tensor:
        ids, *others = given
        if others:
            raise UsageError(
                f"{self.who}: expected ids alone, got a tuple of {len(given)}; offsets are for EmbeddingBag"
            )
        device = ids.device if isinstance(ids, torch.Tensor) else torch.device("cpu")
        rows = asked.leaf(self, device)
        found = expand(rows, indices.to(device), scale_grad_by_freq=self.scale_grad_by_freq)
        return found.view(*ids.shape, self.embedding_dim)


class EmbeddingBag(Remote):
    """`nn.EmbeddingBag`, over a table: the sum, mean or largest of the rows of each bag. An input of two dimensions has
    a bag in each of its rows; one of one dimension needs `offsets`, where each bag begins. `per_sample_weights`, for
    mode "sum" only, may take gradients themselves. Ids that are `padding_idx` are in no bag.
    """

    @options_checked
    def __init__(
        self,
        table: Table,
        *,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        freeze: bool = False,
        hyper: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(table, padding_idx=padding_idx, freeze=freeze, hyper=hyper)
        if mode not in MODES:
            raise UsageError(f"{self.who}: mode expects {', '.join(map(repr, MODES))}, got {mode!r}")
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return look_up([(self, (input, offsets, per_sample_weights))])[0]

    def combine(self, asked: TableRows, indices: torch.Tensor, given: tuple[Any, ...]) -> torch.Tensor:
        ids, offsets, weights = (*given, None, None)[:3]
        device = ids.device if isinstance(ids, torch.Tensor) else torch.device("cpu")
        self._check(ids, offsets, weights)
        rows = asked.leaf(self, device)
        found = indices.to(device).view(ids.shape)
        return F.embedding_bag(
            found,
            rows,
            None if offsets is None else offsets.to(found.dtype),
            mode=self.mode,
            per_sample_weights=weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self._padding,
        )

    def _check(self, ids: Any, offsets: Any, weights: Any) -> None:
        if ids.ndim not in (1, 2):
            raise UsageError(f"{self.who}: expected ids of one dimension, or two, got shape {tuple(ids.shape)}")
        if ids.ndim == 1 and offsets is None:
            raise UsageError(f"{self.who}: ids of one dimension need offsets, which say where each bag begins")
        if ids.ndim == 2 and offsets is not None:
            raise UsageError(f"{self.who}: ids of two dimensions are a bag in each row, and take no offsets")
        if weights is not None and self.mode != "sum":
            raise UsageError(f"{self.who}: per_sample_weights are for mode 'sum', this one has '{self.mode}'")
        if weights is not None and tuple(weights.shape) != tuple(ids.shape):
            shapes = f"{tuple(ids.shape)}, got {tuple(weights.shape)}"
            raise UsageError(f"{self.who}: expected per_sample_weights of the ids' shape, {shapes}")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


def lookup(lookups: Iterable[Lookup]) -> list[torch.Tensor]:
    """What several modules give for their inputs, with one pull for all of them: one message per server, where calling
    one after the other would send one each.

    `lookup(zip(model.tables, ids.unbind(1)))`: pairs of a module and its ids; for a bag with offsets, of a module and a
    tuple, `(ids, offsets)` or `(ids, offsets, per_sample_weights)`. Blocks. A table may come several times.
    """
    pairs = [checked(pair) for pair in lookups]
    return look_up(pairs)


def checked(pair: Any) -> Lookup:
    """One of the pairs that `lookup` takes; UsageError if it is none."""
    module = pair[0] if isinstance(pair, tuple) and len(pair) == 2 else pair
    if not isinstance(module, Remote) or module is pair:
        raise UsageError(
            "lookup expects pairs (module, ids), each with a wl.torch.Embedding or wl.torch.EmbeddingBag, got "
            f"{type(module).__name__}"
        )
    return module, pair[1]
