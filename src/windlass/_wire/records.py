"""What is written into the manager's journal, as far as more than the manager does so."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, gc=False):
    """Frozen, tagged, keyword-only. Fields are only ever added, at the end, with a default."""


class EpochDone(Record, frozen=True):
    """So many epochs of a workload are done: the servers have confirmed every batch of them."""

    namespace: str
    workload: str
    epochs: int
