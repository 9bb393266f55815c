"""Checkpoints for tests: small, of many slots and shards, each value telling which save it is of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from windlass.checkpoint import AfterRound, Reader, Writer, verify
from windlass.types import STORAGE, Consistency, KeySpec, Rule, Sequential

SHARD_BYTES = 1500


def spec(name: str, size: int, dtype: str = "float32", consistency: Consistency | None = None) -> KeySpec:
    return KeySpec(
        name=name,
        shape=(size,),
        dtype=dtype,
        reduce=Rule("sum"),
        update=Rule("assign"),
        consistency=consistency or Sequential(),
        chunk_bytes=400,
    )


KEYS = (spec("w", 700), spec("b", 3, "bfloat16"), spec("nothing", 0))


def content(key: KeySpec, number: int, step: int) -> dict[str, np.ndarray[Any, Any]]:
    lo, hi = key.slot_range(number)
    value = (np.arange(lo, hi) + step).astype(STORAGE[key.dtype])
    return {"value": value, "state.m": np.full(hi - lo, step, np.float32)}


def save(path: str | Path, step: int, keys: tuple[KeySpec, ...] = KEYS, **options: Any) -> str:
    with Writer(path, step=step, **({"shard_bytes": SHARD_BYTES} | options)) as writer:
        for key in keys:
            for number in range(key.num_slots):
                writer.add(key, number, content(key, number, step), {"step": step}, AfterRound(step))
    return writer.path


def check_whole(path: str | Path, keys: tuple[KeySpec, ...] = KEYS) -> int:
    """That the (newest) checkpoint is one that `save` made, every bit; gives its step."""
    reader = Reader(path)
    step = reader.manifest.step
    assert list(reader.keys) == [key.name for key in keys]
    for key in keys:
        assert reader.keys[key.name].spec == key
        assert reader.keys[key.name].moment == AfterRound(step)
        for number in range(key.num_slots):
            slot = reader.slot(key.name, number)
            assert slot.meta == {"step": step}
            check_same(slot.arrays, content(key, number, step))
    assert verify(reader) == []
    return step


def check_same(found: Mapping[str, np.ndarray[Any, Any]], expected: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """The same names in the same order, types, shapes and bits."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
