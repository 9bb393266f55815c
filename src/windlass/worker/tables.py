"""Tables as a worker declares, reads and looks at them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from windlass._wire import messages as m
from windlass.errors import UsageError, options_checked
from windlass.filters import Filter, filter_rules
from windlass.filters.rules import check_filters
from windlass.store.initial import Initial, initial_rule
from windlass.store.reduce import Reducer, reducer_rule
from windlass.store.table_options import table_options
from windlass.store.update import Updater, updater_rule
from windlass.types import RESERVED, STORAGE, Array, Block, Consistency, KeySpec, TableSpec, fitting_chunk_bytes
from windlass.worker.arguments import check_declaration, declaring, is_id
from windlass.worker.declaring import Declaring
from windlass.worker.ops import Op, deleted
from windlass.worker.rows import TableEntry
from windlass.worker.split import Pieces
from windlass.worker.task import Task

if TYPE_CHECKING:
    from windlass.worker.store import Store

MAX_TABLE_SLOTS = 4096
PAGE_ROWS = 65536


class Table:
    """One table of a store, by its name: `store.table("emb")`. Its rows are on the servers. Thread-safe, as the store
    is."""

    def __init__(self, store: Store, entry: TableEntry) -> None:
        self.store = store
        self._entry = entry
        self.name, self.dim, self.dtype = entry.name, entry.dim, entry.dtype

    @property
    def consistency(self) -> Consistency:
        return self._entry.key.spec.consistency

    def push(self, grads: Any, *, ids: Any, **options: Any) -> Task:
        """As `store.push(name, grads, ids=ids)`."""
        return self.store.push(self.name, grads, ids=ids, **options)

    def pull(self, *, ids: Any = None, **options: Any) -> Any:
        """As `store.pull(name, ids=ids)`, or with `range=`."""
        return self.store.pull(self.name, ids=ids, **options)

    def pages(self, rows: int = PAGE_ROWS) -> Iterator[tuple[Array, Array]]:
        """All rows, some at a time: (ids, rows). Others may push meanwhile: a row that is there from the first page to
        the last comes exactly once, as it is when its page is read."""
        if type(rows) is not int or rows < 1:
            raise UsageError(f"pages of '{self.name}': rows expects a whole number of at least 1, got {rows!r:.40}")
        return self.store.scan_table(self._entry, None, rows)

    def __iter__(self) -> Iterator[int]:
        """The ids that have a row, in no particular order."""
        for ids, _ in self.pages():
            yield from ids.tolist()

    def __contains__(self, id: object) -> bool:
        """Whether this id has a row. Asks the server that would have it, and waits as a pull does."""
        try:
            number = operator.index(id)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(f"an id of '{self.name}' is a whole number, got {id!r:.40}") from None
        return is_id(number) and self.store.has_row(self._entry, number)

    def __len__(self) -> int:
        """How many ids have a row. Asks every server."""
        return self._describe()["rows"]

    @property
    def nbytes(self) -> int:
        """What the servers have for it, replicas not counted: rows, optimizer state, index, room for more."""
        return self._describe()["table_bytes"]

    @property
    def num_candidates(self) -> int:
        """Ids that have been pushed to less than `admit_after` times, and have no row yet."""
        return self._describe()["candidates"]

    def _describe(self) -> dict[str, int]:
        totals, found = {"rows": 0, "table_bytes": 0, "candidates": 0}, self.store.status()
        if self._entry.key.spec.full_name not in found["keys"]:
            raise deleted(self.name)
        for said in found["servers"].values():
            told = said["keys"].get(self._entry.key.spec.full_name, {})
            for name in totals:
                totals[name] += told.get(name, 0)
        return totals

    def __repr__(self) -> str:
        return f"<Table '{self.name}' of {self.dim} x {self.dtype}, {self.consistency}>"


class Tables(Declaring):
    """The part of a store that knows tables."""

    @options_checked
    def create_table(
        self,
        key: str,
        *,
        dim: int,
        dtype: str = "float32",
        init: Initial | float | None = None,
        reduce: str | Reducer = "sum",
        update: str | Updater = "add",
        consistency: Consistency | None = None,
        filters: Sequence[str | Filter] = (),
        admit_after: int = 1,
        max_rows: int | None = None,
        ttl_updates: int | None = None,
        ttl_seconds: float | None = None,
        max_bytes: int | None = None,
        slots: int = 24,
        priority: int = 0,
    ) -> Table:
        """Declare a table: any int64 is the id of a row of `dim` numbers, which is made when it is first pushed to.

        Every worker calls it, with the same declaration (else UsageError); repeating it is harmless. A row starts as
        `init` says: a number, wl.Constant, wl.Normal or wl.Uniform, the latter by seed and id; without, as zeros.

        `admit_after=n`: an id gets its row with its n-th push; what was pushed before is dropped. Of more than
        `max_rows` the least recently pushed to go; after `ttl_updates` updates, or `ttl_seconds`, without a push a row
        goes. A push that would make the table outgrow `max_bytes` is refused.
        """
        if isinstance(key, str) and key.startswith(RESERVED):
            raise UsageError(f"'{key}': names that begin with '{RESERVED}' are the store's own")
        policy = consistency or self.options.consistency
        check_declaration(key, update, policy, self.options.deterministic)
        if type(slots) is not int or not 1 <= slots <= MAX_TABLE_SLOTS:
            raise UsageError(f"'{key}': slots expects a whole number from 1 to {MAX_TABLE_SLOTS}, got {slots!r:.40}")
        with declaring(key):
            reduce_by, update_by = reducer_rule(reduce, self._local), updater_rule(update, self._local)
            start_as, go_through = initial_rule(init), filter_rules(filters, self._local)
        table = TableSpec(
            dim=dim,
            init=start_as,
            slots=slots,
            admit_after=admit_after,
            max_rows=max_rows,
            ttl_updates=ttl_updates,
            ttl_seconds=ttl_seconds,
            max_bytes=max_bytes,
        )
        spec = KeySpec(
            name=key,
            shape=(0, dim),
            dtype=str(dtype).removeprefix("torch."),
            reduce=reduce_by,
            update=update_by,
            consistency=policy,
            chunk_bytes=self.options.chunk_bytes or fitting_chunk_bytes(0),
            priority=priority,
            namespace=self.namespace,
            table=table,
            filters=go_through,
        )
        check_filters(spec, self._local or {})
        with declaring(key):
            table_options(spec, table)  # raises for what no table can be
        self._declare(spec, f"create_table('{key}')", "numpy", None)
        return self.table(key)

    def table(self, key: str) -> Table:
        """The table of this name. UsageError if there is none, or the key is dense."""
        return Table(self, self.table_entry(key))  # type: ignore[arg-type]

    def table_entry(self, key: str) -> TableEntry:
        entry = self._entry(key)
        if not isinstance(entry, TableEntry):
            raise UsageError(f"'{key}' is a dense key, not a table")
        return entry

    # --- reading many rows --------------------------------------------------------------------------------------------

    def scan_table(self, entry: TableEntry, span: tuple[int, int] | None, limit: int) -> Iterator[tuple[Array, Array]]:
        """Rows page by page, of a span of ids or all, as the key's consistency allows when it begins. Each page
        blocks."""
        if not self.is_driver:
            self._reach(entry)
        for slot in range(entry.key.num_slots):
            after: int | None = None
            while True:
                ids, rows, after = self._page(entry, slot, after, span, limit)
                if ids.size:
                    yield ids, rows
                if after is None:
                    break

    def has_row(self, entry: TableEntry, id: int) -> bool:
        """Whether this id has a row, as the key's consistency allows. Asks one server. Blocks."""
        way = entry.route(np.array([id], np.int64))
        [slot] = np.flatnonzero(np.diff(way.bounds)).tolist()
        if not self.is_driver:
            self._reach(entry, (entry.key.shard_of(slot),))
        ids, _, _ = self._page(entry, slot, None, (id, id + 1), 1)
        return ids.size > 0

    def _page(
        self, entry: TableEntry, slot: int, after: int | None, span: tuple[int, int] | None, limit: int
    ) -> tuple[Array, Array, int | None]:
        key, shard = entry.key, entry.key.shard_of(slot)
        scanned, [data] = self._client.request(
            (key, shard),
            lambda n: m.Scan(request=n, key=key.id, shard=shard, slot=slot, limit=limit, after=after, span=span),
            f"rows of '{entry.name}'",
        )
        cut = data.nbytes // (8 + key.itemsize) * 8
        rows = data[cut:].view(STORAGE[entry.dtype]).reshape(-1, entry.dim)
        return data[:cut].view(np.int64), rows, scanned.after

    def _reach(self, entry: TableEntry, shards: Iterable[int] = ()) -> None:
        """Wait until these shards, or all, may show this worker what they have: a pull of nothing."""
        task = Task(self._client, "pull", (entry.name,))
        pieces: Pieces = {shard: (entry.key.whole[shard][0],) for shard in shards or entry.key.whole}
        op = Op(entry.key, None, pieces, None, task.finish, owner=task)
        op.ids = {shard: (Block(np.empty(0, np.uint8)),) for shard in pieces}
        self._client.submit(op, until=task)
        task.wait()

    def _pull_span(self, entry: TableEntry, span: Any) -> tuple[Array, Array]:
        """The rows that there are of ids lo to hi: (ids, rows), ids rising."""
        try:
            lo, hi = (operator.index(end) for end in span)
        except (TypeError, ValueError):
            text = f"range expected (lo, hi), two whole numbers, got {span!r:.60}"
            raise UsageError(f"pull('{entry.name}'): {text}") from None
        if hi < lo:
            raise UsageError(f"pull('{entry.name}'): range expected lo <= hi, got ({lo}, {hi})")
        smallest, largest = np.iinfo(np.int64).min, np.iinfo(np.int64).max + 1
        pages = list(self.scan_table(entry, (max(lo, smallest), min(hi, largest)), PAGE_ROWS))
        ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in pages)])
        rows = np.concatenate([np.empty((0, entry.dim), entry.storage), *(rows for _, rows in pages)])
        order = np.argsort(ids)
        return ids[order], rows[order]
