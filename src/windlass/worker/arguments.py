"""Arguments of the store's calls, looked at before anything is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from windlass.errors import UsageError
from windlass.types import Bounded, Consistency, Eventual, KeySpec, Sequential, check_consistency
from windlass.worker.task import Task

MAX_NAME_BYTES = 512


def items_of(key: str | Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    if isinstance(key, str):
        return {key: value}
    if not isinstance(key, Mapping):
        raise UsageError(f"a key is a string, got {type(key).__name__}")
    if value is not None:
        raise UsageError("push takes a key and a value, or one mapping of keys to values")
    return key


def ids_by_key(key: object, ids: Any) -> Mapping[str, Any]:
    """The ids of each table that a call names: one key's, or a mapping where it names several."""
    if isinstance(ids, Mapping):
        return ids
    if ids is None:
        return {}
    if not isinstance(key, str):
        raise UsageError(f"ids expects a mapping of tables to ids where many keys are named, got {type(ids).__name__}")
    return {key: ids}


def no_ids(name: str, ids: Mapping[str, Any]) -> None:
    if name in ids:
        raise UsageError(f"'{name}' is a dense key: ids= is for tables, range=(lo, hi) for parts of a value")


def no_such_ids(ids: Any) -> str:
    """What is wrong with what was given as ids."""
    expected = "ids must be int64, or whole numbers that fit into it"
    dtype = getattr(ids, "dtype", None)
    if dtype is not None:
        kind = str(dtype).removeprefix("torch.")
        hints = {"uint64": "; ids.view(np.int64) makes some of hashes", "float": "; ids.astype(np.int64) makes some"}
        hint = hints.get(kind) or (hints["float"] if kind.startswith("float") else "")
        return f"{expected}, got {kind}{hint if isinstance(ids, np.ndarray) else ''}"
    if not isinstance(ids, list | tuple):
        hint = "; list(ids) makes some" if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else ""
        return f"{expected}, got {type(ids).__name__} {ids!r:.40}{hint}"
    pending: list[Any] = [*ids]
    while pending:
        each = pending.pop(0)
        if isinstance(each, list | tuple):
            pending = [*each, *pending]
        elif not isinstance(each, int | np.integer) or isinstance(each, bool):
            return f"{expected}, got {each!r:.40} ({type(each).__name__})"
        elif not is_id(int(each)):
            return f"{expected}, got {each}, and ids go from -2**63 to 2**63 - 1"
    return f"{expected}, got lists of different lengths: {ids!r:.60}"


def is_id(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 63


def no_range(name: str, range: object) -> None:
    if range is not None:
        raise UsageError(f"'{name}' is a table: say which rows by ids=; range= is for a pull of one table alone")


def check_batches(dataset_size: object, batch_size: object, epochs: object, global_batch: object) -> int:
    """How many batches make a step; 0 where each is one of its own."""
    if type(dataset_size) is not int or dataset_size < 0:
        raise UsageError(f"batches expects the size of a data set, a whole number, got {dataset_size!r:.60}")
    if type(batch_size) is not int or batch_size < 1:
        raise UsageError(f"batch_size expects a whole number of at least 1, got {batch_size!r:.60}")
    if type(epochs) is not int or epochs < 0:
        raise UsageError(f"epochs expects a whole number, got {epochs!r:.60}")
    if global_batch is None:
        return 0
    if type(global_batch) is not int or global_batch < batch_size or global_batch % batch_size:
        raise UsageError(f"global_batch expects a multiple of batch_size ({batch_size}), got {global_batch!r:.60}")
    return global_batch // batch_size


def check_ahead(spec: KeySpec, ahead: object) -> None:
    """UsageError where what is read so many pushes ahead could miss more than the key allows."""
    if type(ahead) is not int or ahead < 0:
        raise UsageError(f"ahead expects a whole number of pushes, got {ahead!r:.60}")
    allowed = spec.consistency.delay if isinstance(spec.consistency, Bounded) else 0
    if ahead > allowed and not isinstance(spec.consistency, Eventual):
        missed = "1 push ahead misses it" if ahead == 1 else f"{ahead} pushes ahead misses them"
        raise UsageError(
            f"'{spec.name}' is {spec.consistency}, and what is read {missed}: declare it with "
            f"consistency=wl.Bounded({ahead}) or more"
        )


def tasks_of(after: Iterable[Task]) -> tuple[Task, ...]:
    if not after:
        return ()
    tasks = tuple(after)
    for task in tasks:
        if not isinstance(task, Task):
            raise UsageError(f"after expects tasks, got {type(task).__name__}")
    return tasks


def numbers_of(hyper: object) -> dict[str, float]:
    if isinstance(hyper, Mapping):
        try:
            return {str(name): float(number) for name, number in hyper.items()}
        except (TypeError, ValueError, OverflowError):
            pass
    raise UsageError(f"hyper expects a mapping of names to numbers, got {hyper!r:.60}")


def outs_of(out: Any, names: list[str]) -> list[Any]:
    if out is None:
        return [None] * len(names)
    if len(out) != len(names):
        raise UsageError(f"pull of several keys: out expected an array for each, {len(names)}, got {len(out)}")
    return list(out)


@contextmanager
def declaring(key: str) -> Iterator[None]:
    """What is wrong with a reducer, an updater or a filter is told with the key that it was meant for."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"'{key}': {error}") from error


def check_declaration(key: str, update: object, policy: Consistency, deterministic: bool) -> None:
    if not isinstance(key, str) or not 0 < _num_bytes(key) <= MAX_NAME_BYTES:
        raise UsageError(f"a key is a string of 1 to {MAX_NAME_BYTES} bytes, got {key!r:.60}")
    with declaring(key):
        check_consistency(policy)
    if isinstance(policy, Sequential):
        return
    if deterministic:
        raise UsageError(f"'{key}': deterministic=True expects Sequential(), got {policy}")
    if update == "assign":
        raise UsageError(f"'{key}': update='assign' expects Sequential(), got {policy}; use 'merge' or an updater")


def _num_bytes(name: str) -> int:
    """How long a name is when it is sent. One with half a surrogate in it, as that of a file may have, cannot be."""
    try:
        return len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(f"a key is a string that can be written in UTF-8, got {name!r:.60}") from None
