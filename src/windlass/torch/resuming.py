"""What the store has of an earlier optimizer, from a checkpoint or another run, for one that goes on with it.

The keys of an optimizer are its buckets, whose names tell the first and the last of their parameters. Where some take
no part, one more key says which.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from windlass.errors import UsageError
from windlass.torch.buckets import Parameter, plan
from windlass.torch.charter import Begun
from windlass.types import Sequential
from windlass.worker.store import Store

log = logging.getLogger("windlass")

USED = "parameters used"


def is_lane(key: str, name: str, parameters: Sequence[str]) -> bool:
    """Whether a model of this name, with these parameters, has such a key."""
    if not key.startswith(f"{name}/"):
        return False
    bucket = key.removeprefix(f"{name}/").removeprefix("gradient/")
    return bucket in ("seats", "gradients used", USED) or _is_bucket(bucket, parameters)


def _is_bucket(bucket: str, parameters: Sequence[str]) -> bool:
    first, _, last = bucket.partition("..")
    return bucket in parameters or (first in parameters and last in parameters)


def note_used(store: Store, name: str, begun: Begun) -> None:
    """Leave word of which parameters take part, if some do not; before there are keys for those that do."""
    if not all(begun.takes_part):
        said = np.array(begun.takes_part, np.uint8)
        store._create(f"{name}/{USED}", said, consistency=Sequential(), gives=True)


def find_kept(
    store: Store, name: str, parameters: Sequence[Parameter], bucket_bytes: int
) -> tuple[Begun | None, set[str]]:
    """What an optimizer of this name has begun, and its keys; nothing if there is none, or not all of it. UsageError if
    the parameters were put together otherwise."""
    names = [parameter.name for parameter in parameters]
    every = store.keys()
    existing = [key.removeprefix(f"{name}/") for key in every if key.startswith(f"{name}/")]
    found = {bucket for bucket in existing if _is_bucket(bucket, names)}
    takes_part = [True] * len(parameters)
    if USED in existing:
        takes_part = np.asarray(_read(store, f"{name}/{USED}")).astype(bool).tolist()
    if not found:
        return None, set()
    if len(takes_part) != len(parameters):
        raise UsageError(
            f"resume=True: the store has '{name}' of a model of {len(takes_part)} parameters, this one has "
            f"{len(parameters)}; give the optimizer a name of its own"
        )
    numbers = [number for number, takes in enumerate(takes_part) if takes]
    wanted = {bucket.name for bucket in plan(parameters, numbers, bucket_bytes)}
    if found < wanted:  # saved, or broken off, in the middle of the first step
        log.warning("'%s' begins anew: the store has not all keys of the optimizer that it would go on with", name)
        return None, set()
    if found != wanted:
        raise UsageError(
            f"resume=True: the store has '{name}/{min(found - wanted)}', which is not how the parameters are put "
            "together now; make the optimizer with the bucket_bytes and find_unused_parameters that it had"
        )
    first = f"{name}/{min(wanted)}"
    is_summed = store._entry(first).key.spec.reduce.path == "sum"
    store._put_down(first)
    state = store._client.state
    begun = Begun(takes_part, is_summed, rank=state.rank, maker=int(state.me))
    return begun, {f"{name}/{bucket}" for bucket in (*wanted, USED)}


def _read(store: Store, key: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    value = np.asarray(store.pull(key))
    store._put_down(key)
    return value
