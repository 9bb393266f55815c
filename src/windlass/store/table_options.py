"""What a table is declared with, and the share of it that one slot has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windlass.errors import UsageError
from windlass.store.ageing import Limits
from windlass.store.initial import Constant, Initial, resolve_initial
from windlass.store.rows import storage_of
from windlass.types import KeySpec, TableSpec

MAX_ADMIT_AFTER = (1 << 16) - 1


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What a table is, beside its reducer and updater. `admit_after`: an id gets a row at its so many-th push, and what
    was pushed before that is dropped; pushes are counted exactly, at some 20 to 32 bytes an id. `limits` say when rows,
    and such counts, go again."""

    dim: int
    dtype: str = "float32"
    init: Initial = field(default_factory=Constant)
    admit_after: int = 1
    limits: Limits = field(default_factory=Limits)
    max_bytes: int | None = None

    def check(self) -> None:
        """Raise UsageError for what no table can be."""
        storage_of(self.dtype)
        if type(self.dim) is not int or not 1 <= self.dim <= 1 << 20:
            raise UsageError(f"dim must be a whole number from 1 to {1 << 20}, got {self.dim!r:.40}")
        if type(self.admit_after) is not int or not 1 <= self.admit_after <= MAX_ADMIT_AFTER:
            expected = f"admit_after must be a whole number from 1 to {MAX_ADMIT_AFTER}"
            raise UsageError(f"{expected}, got {self.admit_after!r:.40}")
        if self.max_bytes is not None and (type(self.max_bytes) is not int or self.max_bytes < 1):
            raise UsageError(f"max_bytes must be a whole number of at least 1, or None, got {self.max_bytes!r:.40}")
        self.limits.check()

    def share(self, num_slots: int) -> TableOptions:
        """The same for one of so many slots: ids are spread evenly, and so are the limits."""
        most = self.limits.max_rows
        limits = replace(self.limits, max_rows=None if most is None else -(-most // num_slots))
        return replace(self, limits=limits, max_bytes=None if self.max_bytes is None else self.max_bytes // num_slots)


def table_options(spec: KeySpec, table: TableSpec) -> TableOptions:
    """What a declaration says. UsageError if no table can be so."""
    options = TableOptions(
        dim=table.dim,
        dtype=spec.dtype,
        init=resolve_initial(table.init).salted(spec.name),
        admit_after=table.admit_after,
        limits=Limits(max_rows=table.max_rows, ttl_updates=table.ttl_updates, ttl_seconds=table.ttl_seconds),
        max_bytes=table.max_bytes,
    )
    options.check()
    return options
