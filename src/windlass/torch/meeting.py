"""Where all workers of a store compare what they have, before they rely on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from windlass.errors import UsageError
from windlass.torch.buckets import Parameter
from windlass.types import Sequential
from windlass.worker.store import Store


def gather(store: Store, name: str, payload: Any) -> list[Any]:
    """What every worker brought, in rank order. Every worker calls it; blocks. `payload` is plain data."""
    if store.num_workers == 1:
        return [payload]
    said = np.frombuffer(msgspec.msgpack.encode(payload), np.uint8)
    rank = store.rank
    lengths = _exchange(
        store, f"{name}/lengths", np.array([said.size], np.int64), (rank, rank + 1), store.num_workers
    )
    ends = np.cumsum(lengths)
    begins = ends - lengths
    everything = _exchange(
        store, f"{name}/words", said, (int(begins[rank]), int(ends[rank])), int(ends[-1])
    )
    return [
        msgspec.msgpack.decode(everything[lo:hi].tobytes()) for lo, hi in zip(begins, ends, strict=True)
    ]


def _exchange(store: Store, key: str, mine: Any, span: tuple[int, int], size: int) -> Any:
    """Every worker's part of one array, by a key that is there only meanwhile: it was left over, perhaps, by a run
    that failed, and nobody may delete it while another still reads."""
    forget(store, key)
    store.create(key, np.zeros(size, mine.dtype), consistency=Sequential())
    store.push(key, mine, range=span)
    got = store.pull(key)
    forget(store, key)
    return got


def forget(store: Store, *keys: str) -> None:
    """Delete keys once every worker has come here; return when they are gone. Every worker calls it."""
    store.barrier()
    if store.rank == 0:
        for key in keys:
            store.delete(key)
    store.barrier()


def same_model(what: Sequence[dict[str, Any]], models: Sequence[Sequence[Parameter]]) -> None:
    """UsageError, naming worker and parameter, unless every worker has the same options and the same parameters."""
    for rank in range(1, len(models)):
        for option, value in what[rank].items():
            if value != what[0].get(option):
                raise UsageError(f"worker-{rank} has {option}={value!r}, worker-0 {option}={what[0].get(option)!r}")
        ours, first = models[rank], models[0]
        for one, other in zip(ours, first, strict=False):
            if one != other:
                raise UsageError(f"worker-{rank} has {_told(one)} where worker-0 has {_told(other)}")
        if len(ours) != len(first):
            longer, shorter = (rank, 0) if len(ours) > len(first) else (0, rank)
            extra = max(ours, first, key=len)[min(len(ours), len(first))]
            raise UsageError(f"worker-{longer} has {_told(extra)}, which worker-{shorter} does not have")


def same_gradients(names: Sequence[Sequence[str]]) -> None:
    """UsageError, naming worker and parameter, unless every worker has gradients of the same parameters."""
    for rank in range(1, len(names)):
        for has, lacks in ((rank, 0), (0, rank)):
            missing = sorted(set(names[has]) - set(names[lacks]))
            if missing:
                raise UsageError(
                    f"worker-{lacks} has no gradient of '{missing[0]}', worker-{has} has one; if a worker's forward "
                    "may leave parameters out, pass find_unused_parameters=True"
                )


def _told(parameter: Parameter) -> str:
    return f"parameter '{parameter.name}' of shape {parameter.shape}, {parameter.dtype}, in group {parameter.group}"
