"""Writing a checkpoint: shards while slots come in, then the manifest.

Everything is written into the checkpoint's own directory under names that no other save uses; the manifest, put in
place by one rename, turns it into a checkpoint. So a name can be used again: until that moment the old manifest names
the old shards, and after it nobody names them. A crash at any point leaves what was there before, and leftovers that
the next save removes.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from types import TracebackType
from typing import Any

from windlass.checkpoint.folder import Folder
from windlass.checkpoint.listing import Listed, State, list_folder, mark, prune, sweep
from windlass.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    Manifest,
    Moment,
    SavedFile,
    SavedKey,
    SavedSlot,
    SlotEntry,
    seal,
)
from windlass.checkpoint.shard import Part, write_shard
from windlass.errors import ClusterError, UsageError
from windlass.types import Array, KeySpec

SHARD_BYTES = 64 << 20
WRITERS = 2
"""Shards being written at a time, while the next is gathered: so many of them, and one, are in memory."""

NICENESS = 15
"""Of the threads that write: on a busy machine they get a thirtieth of what others get, on an idle one all."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,99}")
log = logging.getLogger("windlass")


@cache
def _own_version() -> str:
    return version("windlass")  # it takes two milliseconds to find out


def _give_way() -> None:
    """Whatever else runs on this machine goes first: a checkpoint may take its time, pushes may not."""
    with suppress(OSError, AttributeError):
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + NICENESS)


class Writer:
    """One checkpoint in the making; a context manager. At the end of the block it is there; after an exception in the
    block it is not, and nothing has changed. Not thread-safe.

    `name` is by default step-000042 for step 42. A checkpoint that has this name already is replaced. `keep=3` leaves
    the three newest numbered ones; it neither counts nor removes those that the user has named.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        step: int = 0,
        keep: int | None = None,
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        self.name = f"step-{step:06d}" if name is None else name
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"a checkpoint's name is made of letters, digits and . _ = + -, got {self.name!r:.80}")
        if keep is not None and (type(keep) is not int or keep < 1):
            raise UsageError(f"keep expects a whole number of at least 1, or None to remove nothing, got {keep!r}")
        self._root = Folder.at(path)
        self._folder = self._root.child(self.name)
        self._step, self._keep, self._shard_bytes = step, keep, shard_bytes
        self._prefix = secrets.token_hex(4)
        self._others: list[Listed] = []
        self._specs: dict[str, tuple[KeySpec, Moment]] = {}
        self._slots: dict[str, dict[int, SlotEntry]] = {}
        self._files: list[SavedFile] = []
        self._gathered: list[Part] = []
        self._gathered_bytes = 0
        self._num_shards = 0
        self._pool = ThreadPoolExecutor(WRITERS, "windlass-save", initializer=_give_way)
        self._writing: deque[tuple[list[Part], Future[tuple[SavedFile, list[SlotEntry]]]]] = deque()
        self._claim = ExitStack()

    @property
    def path(self) -> str:
        """Where the checkpoint is, or will be."""
        return str(self._folder)

    # --- the block --------------------------------------------------------------------------------------------------

    def __enter__(self) -> Writer:
        """Claim the directory, and remove what crashed saves have left in it."""
        root = self._root
        if root.is_file():
            raise UsageError(f"'{root}': expected a directory for checkpoints, got a file")
        if root.is_local and not root.parent().exists():
            raise UsageError(f"cannot save to '{root}': no such directory as '{root.parent()}'")
        with self._told():
            root.make()
            self._claim.enter_context(root.claimed())
            with self._claim:
                for name in root.folders():
                    sweep(root.child(name))
                listed = list_folder(root)
                self._others = [one for one in listed if one.name != self.name]
                self._sequence = 1 + max((one.manifest.sequence for one in listed if one.manifest), default=0)
                self._folder.make()
                mark(self._folder)
                self._claim = self._claim.pop_all()  # nothing went wrong: it is kept until the end of the block
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._claim:
            if kind is not None:
                self._abandon()
                return
            try:
                self._commit()
            except BaseException:
                self._abandon()
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What a file system refuses concerns this checkpoint, and no other."""
        try:
            yield
        except ClusterError as error:
            raise ClusterError(
                f"{error}. The checkpoint '{self.path}' was not saved, those saved before are as they were; "
                "make room or mend the cause, and save again"
            ) from error

    def _abandon(self) -> None:
        self._gathered.clear()
        self._pool.shutdown(cancel_futures=True)
        with suppress(ClusterError):  # what cannot be removed now is removed by the next save
            sweep(self._folder)

    # --- gathering --------------------------------------------------------------------------------------------------

    def add(
        self, spec: KeySpec, number: int, arrays: Mapping[str, Array], meta: Mapping[str, Any], moment: Moment
    ) -> None:
        """Take one slot of a key. Its arrays must not change until the end of the block. Slots come in any order; all
        slots of a key are of one moment. The slot after the last is what workers have kept back; a key may be without.
        Blocks while WRITERS shards are being written."""
        part = Part(spec, number, SavedSlot(dict(arrays), dict(meta)))
        part.check()
        known = self._specs.setdefault(spec.name, (spec, moment))
        if known != (spec, moment):
            raise UsageError(
                f"slot {number} of '{spec.name}' is {moment} of {spec}, but an earlier one was {known[1]} of {known[0]}"
            )
        slots = self._slots.setdefault(spec.name, {})
        if not 0 <= number < spec.num_slots + bool(spec.filters) or number in slots:
            known_as = "was added already" if number in slots else f"does not exist: it has {spec.num_slots}"
            raise UsageError(f"slot {number} of '{spec.name}' {known_as}")
        slots[number] = SlotEntry(file="", arrays=(), meta={})  # until it is written
        self._gathered.append(part)
        self._gathered_bytes += part.nbytes
        if self._gathered_bytes >= self._shard_bytes:
            self._send()

    def _send(self) -> None:
        """Have what is gathered written, as one shard."""
        while len(self._writing) >= WRITERS:
            self._receive()
        parts, self._gathered, self._gathered_bytes = self._gathered, [], 0
        name = f"{self._prefix}-{self._num_shards:05d}.safetensors"
        self._num_shards += 1
        self._writing.append((parts, self._pool.submit(write_shard, self._folder, name, parts)))

    def _receive(self) -> None:
        parts, future = self._writing.popleft()
        with self._told():
            file, entries = future.result()
        self._files.append(file)
        for part, entry in zip(parts, entries, strict=True):
            self._slots[part.spec.name][part.number] = entry

    # --- the end ----------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        for name, (spec, _) in self._specs.items():
            missing = sum(number not in self._slots[name] for number in range(spec.num_slots))
            if missing:
                raise UsageError(f"'{name}' has {spec.num_slots} slots, {missing} of them were not added")
        if self._gathered:
            self._send()
        while self._writing:
            self._receive()
        manifest = self._manifest()
        with self._told():
            there = self._folder.files()
            for file in self._files:
                if there.get(file.name) != file.nbytes:
                    raise ClusterError(f"{file.name} was written and is not there; did another save remove it?")
            self._folder.put(MANIFEST, seal(manifest))
        self._pool.submit(self._tidy_up, manifest).result()  # it is saved now, whatever becomes of the rest
        self._pool.shutdown()

    def _tidy_up(self, manifest: Manifest) -> None:
        try:
            sweep(self._folder)
            if self._keep is not None:
                mine = Listed(self.name, self.path, State.COMPLETE, manifest)
                prune(self._root, [*self._others, mine], self._keep)
        except ClusterError as error:
            log.warning("the checkpoint '%s' is saved, but %s; the next save tries again", self.path, error)

    def _manifest(self) -> Manifest:
        keys = (
            SavedKey(
                spec=spec,
                moment=moment,
                slots=tuple(self._slots[name][number] for number in range(spec.num_slots)),
                residuals=self._slots[name].get(spec.num_slots),
            )
            for name, (spec, moment) in self._specs.items()
        )
        return Manifest(
            format=FORMAT,
            windlass=_own_version(),
            created=datetime.now(UTC),
            sequence=self._sequence,
            step=self._step,
            files=tuple(self._files),
            keys=tuple(keys),
        )
