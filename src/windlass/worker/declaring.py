"""Keys as a worker declares them, begins to use them, rests on them and comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from windlass._wire import messages as m
from windlass.errors import UsageError, options_checked
from windlass.filters import Filter, filter_rules
from windlass.filters.rules import chain_of, check_filters
from windlass.store.reduce import Reducer, reducer_rule, resolve_reducer
from windlass.store.update import Updater, updater_rule
from windlass.types import (
    MANAGER,
    NO_GENERATION,
    RESERVED,
    Array,
    Consistency,
    Generation,
    KeyId,
    KeySpec,
    Role,
    fitting_chunk_bytes,
)
from windlass.worker.arguments import check_declaration, declaring
from windlass.worker.arrays import check_size, look
from windlass.worker.client import Client
from windlass.worker.entry import Entry
from windlass.worker.filtering import KeyFilter
from windlass.worker.ops import KeyInfo
from windlass.worker.options import StoreOptions
from windlass.worker.rows import TableEntry
from windlass.worker.split import split

LEVEL = -2
"""In place of the clock of an Attach: where is whoever has made most pushes?"""


class Declaring:
    """The part of a store that knows its keys."""

    def __init__(self, client: Client, options: StoreOptions, local: dict[str, object] | None) -> None:
        self.options = options
        self._client = client
        self._local = local  # where reducers and updaters without an import path go; None where they cannot
        self._entries: dict[str, Entry] = {}
        self._locks: dict[str, threading.Lock] = {}

    @property
    def namespace(self) -> str:
        """Whose keys this store's are: jobs of different namespaces on the same servers do not meet."""
        return self._client.state.namespace

    @property
    def is_driver(self) -> bool:
        return self._client.state.role is Role.DRIVER

    @options_checked
    def create(
        self,
        key: str,
        value: Any,
        *,
        reduce: str | Reducer = "sum",
        update: str | Updater = "assign",
        consistency: Consistency | None = None,
        filters: Sequence[str | Filter] = (),
        priority: int = 0,
    ) -> None:
        """Declare a key with its first value, which is rank 0's; a key that exists keeps its own.

        Every worker calls it, with the same declaration (else UsageError); it returns when the first value is in
        place. Repeating it is harmless. `filters` are what pushes go through, in order, on their way (docs/filters.md).
        On a link that is too slow for everything at once, keys of higher `priority` travel first.
        """
        if isinstance(key, str) and key.startswith(RESERVED):
            raise UsageError(f"'{key}': names that begin with '{RESERVED}' are the store's own")
        self._create(
            key, value, reduce=reduce, update=update, consistency=consistency, filters=filters, priority=priority
        )

    def _create(
        self,
        key: str,
        value: Any,
        *,
        reduce: str | Reducer = "sum",
        update: str | Updater = "assign",
        consistency: Consistency | None = None,
        filters: Sequence[str | Filter] = (),
        priority: int = 0,
        gives: bool | None = None,
        chunk_bytes: int = 0,
        together: str = "",
    ) -> None:
        """`gives` says whether this worker gives the first value, where that is not simply the lowest rank's to do. Of
        several who give one the first counts, for each chunk. `together` is as in KeySpec."""
        like, flat = look(value, f"create('{key}')")
        check_size(like, f"create('{key}')")
        policy = consistency or self.options.consistency
        check_declaration(key, update, policy, self.options.deterministic)
        with declaring(key):
            reduce_by, update_by = reducer_rule(reduce, self._local), updater_rule(update, self._local)
            go_through = filter_rules(filters, self._local)
        spec = KeySpec(
            name=key,
            shape=like.shape,
            dtype=like.dtype,
            reduce=reduce_by,
            update=update_by,
            consistency=policy,
            chunk_bytes=chunk_bytes or self.options.chunk_bytes or fitting_chunk_bytes(flat.nbytes),
            priority=priority,
            namespace=self.namespace,
            together=together,
            filters=go_through,
        )
        check_filters(spec, self._local or {})
        self._declare(spec, f"create('{key}')", like.kind, flat, gives)

    def _declare(
        self, spec: KeySpec, what: str, kind: str, first: Array | None, gives: bool | None = None
    ) -> None:
        """Make a key known, and begin to use it."""
        spec.check()
        with self._opening(spec.name):
            declared, _ = self._client.request(MANAGER, lambda n: m.Declare(request=n, spec=spec), what)
            known = self._entries.get(spec.name)
            if known is None or known.key.id != declared.key:
                if known is not None:
                    self._client.disuse(known.key)
                self._open(declared, kind, first, gives)

    def _open(self, declared: m.Declared, kind: str, first: Array | None, gives: bool | None = None) -> Entry:
        """Begin to use a declared key; rank 0, or the driver, gives it its first value."""
        name = declared.spec.name
        key = KeyInfo(declared.key, declared.spec, list(declared.chains))
        self._client.use(key, Generation(declared.term, declared.number))
        lost = self._client.state.lost_range(key)
        if lost is not None:
            raise lost
        entry = self._make_entry(key, kind)
        if gives is None:
            gives = self.is_driver or self._client.state.is_lowest
        if first is not None and gives:
            self._give_first(entry, first)
        if not self.is_driver:
            what = f"create('{name}'), which waits for rank 0's value,"
            while (clock := self._attach(key, what)) < 0:
                if first is None:
                    raise UsageError(f"'{name}' has no value yet; the lowest rank gives it, by create()")
                self._give_first(entry, first)
            self._begin_at(key, clock, f"create('{name}')")
        self._entries[name] = entry
        return entry

    def _make_entry(self, key: KeyInfo, kind: str) -> Entry:
        if key.spec.filters:  # a driver pushes nothing, but reads answers that are filtered
            chain = chain_of(key.spec, self._local or {})
            key.filtering = KeyFilter(key, chain, self._client.hub, self._client.state.rank)
            self._client.undisturbed(lambda: self._client.state.give_back(key))
        if key.spec.table is None:
            return Entry(key, kind, self._client.hub)
        return TableEntry(key, self._client.hub, key.spec.table, resolve_reducer(key.spec.reduce, self._local or {}))

    def _attach(self, key: KeyInfo, what: str, clock: int = -1, since: Generation = NO_GENERATION) -> int:
        attach = partial(m.Attach, key=key.id, shard=0, clock=clock, term=since.term, number=since.number)
        done, _ = self._client.request((key, 0), lambda n: attach(request=n), what)
        return int(done.detail)

    def _begin_at(self, key: KeyInfo, clock: int, what: str, first: int = 1) -> None:
        """The keeper has named our clock: tell the other shards."""
        key.clock = key.since = clock
        for shard in range(first, len(key.chains)):
            self._client.request(
                (key, shard),
                lambda n, shard=shard: m.Attach(request=n, key=key.id, shard=shard, clock=clock),  # type: ignore[misc]
                what,
            )

    def _rest(self, entry: Entry) -> None:
        """Let nobody wait for our pushes on this key, once all that were made are acknowledged."""
        key = entry.key
        self._client.settle(key)
        entry.is_resting = True
        for shard in reversed(range(len(key.chains))):
            self._client.request(
                (key, shard),
                lambda n, shard=shard: m.Detach(request=n, key=key.id, shard=shard),  # type: ignore[misc]
                f"a rest on '{key.spec.name}'",
            )

    def _level(self, entry: Entry, since: Generation = NO_GENERATION) -> None:
        """Take our place again on a key, as one that has made as many pushes as anybody of this generation or a later
        one, once all that were made are acknowledged."""
        self._client.settle(entry.key)
        what = f"the return to '{entry.key.spec.name}'"
        self._begin_at(entry.key, self._attach(entry.key, what, LEVEL, since), what, first=0)
        entry.is_resting = False

    def _give_first(self, entry: Entry, first: Array) -> None:
        """Give the key its first value; the keeper last: when it has its part, everybody has."""
        key = entry.key
        for shard in reversed(key.whole):
            self._give(entry, shard, first, 0, m.Init, f"the first value of '{key.spec.name}'")

    def _give(
        self, entry: Entry, shard: int, flat: Array, lo: int, kind: Callable[..., m.AnyMessage], what: str
    ) -> None:
        """Hand a shard its pieces of an array that begins at element lo, one message for each; one without any if
        it holds none, so that it knows. Blocks."""
        pieces = split(entry.key, lo, lo + flat.size)[shard]
        single: list[tuple[m.Piece, ...]] = [(piece,) for piece in pieces]
        for wanted in single or [()]:
            parts, owned = entry.parts(flat, lo, {shard: wanted}, may_borrow=True)
            [part] = parts[shard]
            self._client.request(
                (entry.key, shard),
                lambda n, wanted=wanted: kind(request=n, key=entry.key.id, shard=shard, pieces=wanted),  # type: ignore[misc]
                what,
                data=part.blocks,
            )
            for block in owned:
                self._client.hub.memory.free(block)

    def _put_down(self, key: str) -> None:
        """Use a key no longer; whoever uses it next looks for it anew."""
        known = self._entries.pop(key, None)
        if known is not None:
            self._client.disuse(known.key)

    def delete(self, key: str) -> None:
        """Forget a key, dense or a table, for everybody. Every worker may call it: deleting what does not exist, or
        no longer, is harmless."""
        if not isinstance(key, str):
            raise UsageError(f"a key is a string, got {type(key).__name__}")
        known = self._entries.pop(key, None)
        key_id = known.key.id if known is not None else KeyId(0)
        if known is not None:
            self._client.disuse(known.key)
        self._client.request(MANAGER, lambda n: self._forget(n, key, key_id), f"delete('{key}')")

    def _forget(self, request: int, name: str, key: KeyId) -> m.Forget:
        return m.Forget(request=request, name=name, key=key, namespace=self.namespace)

    def _entry(self, key: str) -> Entry:
        """The key, ready to be used. A push on it that failed, and that nobody waited for, is raised here."""
        entry = self._entries.get(key)
        if entry is not None and entry.failed:
            self.raise_unseen(entry)
        if entry is None:
            if not isinstance(key, str):
                raise UsageError(f"a key is a string, got {type(key).__name__}")
            with self._opening(key):
                entry = self._entries.get(key)
                if entry is None:
                    what = f"looking for '{key}'"
                    look_up = partial(m.Lookup, name=key, namespace=self.namespace)
                    declared, _ = self._client.request(MANAGER, lambda n: look_up(request=n), what)
                    entry = self._open(declared, "numpy", None)
        return entry

    def raise_unseen(self, *entries: Entry) -> None:
        """Raise the error of a push that failed and that nobody has waited for, of these keys or of any."""
        for entry in entries or list(self._entries.values()):
            failed, entry.failed = entry.failed, []
            for task in failed:
                if not task.is_seen and task.error is not None:
                    task.is_seen = True
                    task.error.add_note(f"raised by an earlier {task.text} that nobody waited for")
                    raise task.error

    def _opening(self, key: str) -> threading.Lock:
        """Held while a key is opened: two threads that both began to count its pushes would take each other's for
        ones sent twice."""
        return self._locks.setdefault(key, threading.Lock())
