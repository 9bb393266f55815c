"""What a store can be told once, for all its calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.errors import UsageError
from windlass.types import MAX_CHUNK_BYTES, Consistency, Sequential, check_consistency


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store behaves where a call does not say.

    Raise `timeout` if waits end while the others are only slow; `warn_seconds` is when a wait begins to say so. With
    `chunk_bytes` 0 a value is cut by its size; lower it if a key of a few MiB keeps a single server busy while others
    idle. It must be the same in every worker.
    `trace` is where an embedded store, or the cluster of this one, writes a trace at its end; "" for nowhere.
    """

    consistency: Consistency = field(default_factory=Sequential)
    deterministic: bool = False
    check_finite: bool = False
    timeout: float = 300.0
    warn_seconds: float = 10.0
    chunk_bytes: int = 0
    trace: str = ""

    def __post_init__(self) -> None:
        check_consistency(self.consistency)
        for name in ("timeout", "warn_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not seconds >= 0:
                raise UsageError(f"{name} expects seconds, 0 or more, got {seconds!r}")
        if self.deterministic and not isinstance(self.consistency, Sequential):
            raise UsageError(f"deterministic=True expects Sequential(), got {self.consistency}: arrival order varies")
        chunk = self.chunk_bytes
        if not isinstance(chunk, int) or not 0 <= chunk <= MAX_CHUNK_BYTES or chunk % 4096:
            expected = f"a multiple of 4096 up to {MAX_CHUNK_BYTES}, or 0 for what fits"
            raise UsageError(f"chunk_bytes expects {expected}, got {self.chunk_bytes!r}")
