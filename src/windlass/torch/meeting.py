"""Where all workers of a store compare what they have, before they rely on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import UsageError
from windlass.torch.buckets import Parameter
from windlass.worker.store import Store


def gather(store: Store, payload: Any) -> list[Any]:
    """What every worker brought, in rank order. Every worker calls it; blocks. `payload` is plain data."""
    said = msgspec.msgpack.encode(payload)
    sizes = [int.from_bytes(size, "little") for size in store.exchange(len(said).to_bytes(8, "little"))]
    room = 1 << max(sizes).bit_length()  # a key for each size: let there be few
    everything = store.exchange(said.ljust(room, b"\0"))
    return [msgspec.msgpack.decode(one[:size]) for one, size in zip(everything, sizes, strict=True)]


def forget(store: Store, *keys: str) -> None:
    """Delete keys once every worker has come here; return when they are gone. Every worker calls it."""
    store.barrier()
    if store.is_lowest:
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


BACKWARD, STEP = "ended a backward()", "calls step()"
NORM_TOLERANCE = 0.01


def same_call(store: Store, what: str, norm: float = 0.0) -> None:
    """UsageError, naming the workers, unless all have come for the same, BACKWARD or STEP, and with gradients of about
    the same norm. Every worker calls it; blocks. Without it they would wait for each other at different places."""
    (first, first_norm), *others = gather(store, (what, norm))
    for rank, (other, other_norm) in enumerate(others, start=1):
        if other != first:
            raise UsageError(
                f"worker-0 {first} where worker-{rank} {other}: let all workers run backward() equally often before a "
                "step, or all but the last inside `with optimizer.no_sync():`"
            )
        if abs(other_norm - first_norm) > NORM_TOLERANCE * max(abs(first_norm), abs(other_norm)):
            raise UsageError(
                f"at step() the averaged gradients have norm {first_norm:.6g} in worker-0 and {other_norm:.6g} in "
                f"worker-{rank}: what is done to them after backward(), clipping say, must be done in every worker"
            )


def _told(parameter: Parameter) -> str:
    return f"parameter '{parameter.name}' of shape {parameter.shape}, {parameter.dtype}, in group {parameter.group}"
