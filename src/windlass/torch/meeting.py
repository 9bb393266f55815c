"""Where all workers of a store compare what they have, before they rely on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import UsageError
from windlass.torch.buckets import Parameter
from windlass.torch.charter import Begun, Terms
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


def same_model(mine: Terms, theirs: Terms) -> None:
    """UsageError, naming worker and parameter, unless these two workers have the same options and parameters."""
    me = f"worker-{mine.rank}"
    who = f"worker-{theirs.rank}" + (" before it" if mine.rank == theirs.rank else "")
    for option, value in mine.agreed.items():
        other = theirs.agreed.get(option)
        if option == "groups" and value != other:
            _same_groups(value, other, me, who)
        if value != other:
            raise UsageError(f"{me} has {option}={value!r}, {who} {option}={other!r}")
    ours, first = mine.parameters, theirs.parameters
    for one, two in zip(ours, first, strict=False):
        if one != two:
            raise UsageError(f"{me} has {_told(one)} where {who} has {_told(two)}")
    if len(ours) != len(first):
        longer, shorter = (me, who) if len(ours) > len(first) else (who, me)
        extra = max(ours, first, key=len)[min(len(ours), len(first))]
        raise UsageError(f"{longer} has {_told(extra)}, which {shorter} does not have")


def _same_groups(mine: Any, theirs: Any, me: str, who: str) -> None:
    """UsageError that names the first number of a parameter group in which these two workers differ."""
    if not isinstance(theirs, list):
        return
    if len(mine) != len(theirs):
        raise UsageError(f"{me} has a different number of parameter groups: {len(mine)}, {who} {len(theirs)}")
    for number, (one, two) in enumerate(zip(mine, theirs, strict=True)):
        for name in [*one, *(name for name in two if name not in one)]:
            ours, other = (repr(group.get(name)) for group in (one, two))
            if ours != other:
                raise UsageError(f"{me} has {name}={ours} in parameter group {number}, {who} has {name}={other} there")


def same_part(mine: Begun, theirs: Begun, names: Sequence[str]) -> None:
    """UsageError, naming worker and parameter, unless both workers' first steps found the same."""
    both = [[name for name, takes in zip(names, one.takes_part, strict=True) if takes] for one in (theirs, mine)]
    _same_gradients(both[1], mine.rank, both[0], theirs.rank)
    if mine.is_summed != theirs.is_summed:
        how = {True: "batches(global_batch=)", False: "batches without global_batch"}
        raise UsageError(
            f"worker-{mine.rank} takes {how[mine.is_summed]}, worker-{theirs.rank} {how[theirs.is_summed]}: let every "
            "worker take the same"
        )


def same_gradients(names: Sequence[Sequence[str]]) -> None:
    """UsageError, naming worker and parameter, unless every worker has gradients of the same parameters."""
    for rank in range(1, len(names)):
        _same_gradients(names[rank], rank, names[0], 0)


def _same_gradients(one: Sequence[str], rank: int, other: Sequence[str], other_rank: int) -> None:
    for has, lacks, who, whom in ((one, other, rank, other_rank), (other, one, other_rank, rank)):
        missing = sorted(set(has) - set(lacks))
        if missing:
            raise UsageError(
                f"worker-{whom} has no gradient of '{missing[0]}', worker-{who} has one; if a worker's forward may "
                "leave parameters out, pass find_unused_parameters=True"
            )


BACKWARD, STEP = "ended a backward()", "calls step()"
NORM_TOLERANCE = 0.01
EQUALLY_OFTEN = (
    "Let all workers run backward() equally often before a step, or all but the last time inside "
    "`with optimizer.no_sync():` (of a wrapped model: `model.no_sync()`)"
)


def same_call(store: Store, what: str, norm: float = 0.0) -> None:
    """UsageError, naming the workers, unless all have come for the same, BACKWARD or STEP, and with gradients of about
    the same norm. Every worker calls it; blocks. Without it they would wait for each other at different places."""
    (first, first_norm), *others = gather(store, (what, norm))
    for rank, (other, other_norm) in enumerate(others, start=1):
        if other != first:
            raise UsageError(f"worker-0 {first} where worker-{rank} {other}. {EQUALLY_OFTEN}")
        if abs(other_norm - first_norm) > NORM_TOLERANCE * max(abs(first_norm), abs(other_norm)):
            raise UsageError(
                f"at step() the averaged gradients have norm {first_norm:.6g} in worker-0 and {other_norm:.6g} in "
                f"worker-{rank}: what is done to them after backward(), clipping say, must be done in every worker"
            )


def _told(parameter: Parameter) -> str:
    return f"parameter '{parameter.name}' of shape {parameter.shape}, {parameter.dtype}, in group {parameter.group}"
