"""What differs between two checkpoints: keys, declarations, and by how much the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from windlass.checkpoint.manifest import SavedKey
from windlass.checkpoint.reader import Reader
from windlass.types import Array


@dataclass(frozen=True, slots=True)
class ArrayDifference:
    """One array of a key, such as its value, over all slots. `max_abs` is the largest difference of two elements, nan
    where one of them is no number and the other is; `differing` counts the elements that are not the same bits."""

    key: str
    name: str
    elements: int
    differing: int
    max_abs: float


@dataclass(frozen=True, slots=True)
class Difference:
    """`changed` says for a key which fields of its declaration were something else: field, before, after. Its arrays
    are compared if they still have as many elements of the same type. Arrays that only one side has stand in
    `one_sided`: key, array, and the path of that side."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, list[tuple[str, str, str]]]
    arrays: tuple[ArrayDifference, ...]
    one_sided: tuple[tuple[str, str, str], ...]

    @property
    def is_same(self) -> bool:
        moved = any(array.differing for array in self.arrays)
        return not (self.added or self.removed or self.changed or self.one_sided or moved)


def diff(before: Reader, after: Reader, on_bytes: Callable[[int], object] = lambda count: None) -> Difference:
    """Compare two checkpoints. Blocks while it reads both, and calls `on_bytes` now and then with the bytes read since.
    It holds one array of a slot of each at a time, or of a whole key where their slots differ. Raises DamagedCheckpoint
    where bytes are not as they were written."""
    shared = [name for name in before.keys if name in after.keys]
    changed: dict[str, list[tuple[str, str, str]]] = {}
    arrays: list[ArrayDifference] = []
    one_sided: list[tuple[str, str, str]] = []
    for name in shared:
        old, new = before.keys[name], after.keys[name]
        if fields := _fields(old, new):
            changed[name] = fields
        ours, theirs = _names(old), _names(new)
        for part, (dtype, elements) in ours.items():
            if part not in theirs:
                one_sided.append((name, part, before.path))
            elif theirs[part] == (dtype, elements):
                arrays.append(_compare(before, after, name, part, on_bytes))
        one_sided += [(name, part, after.path) for part in theirs if part not in ours]
    return Difference(
        added=tuple(name for name in after.keys if name not in before.keys),
        removed=tuple(name for name in before.keys if name not in after.keys),
        changed=changed,
        arrays=tuple(arrays),
        one_sided=tuple(one_sided),
    )


def _fields(old: SavedKey, new: SavedKey) -> list[tuple[str, str, str]]:
    was, now = msgspec.structs.asdict(old.spec), msgspec.structs.asdict(new.spec)
    return [(field, str(was[field]), str(now[field])) for field in was if was[field] != now[field]]


def _names(key: SavedKey) -> dict[str, tuple[str, int]]:
    """The arrays of a key, with dtype and elements. A value is of the key's dtype, whatever its bits lie in."""
    found: dict[str, tuple[str, int]] = {}
    for slot in key.slots:
        for array in slot.arrays:
            dtype = key.spec.dtype if array.name == "value" else array.dtype
            size = array.nbytes // np.dtype(array.dtype).itemsize
            found[array.name] = (dtype, found.get(array.name, (dtype, 0))[1] + size)
    return found


def _compare(
    before: Reader, after: Reader, key: str, part: str, on_bytes: Callable[[int], object]
) -> ArrayDifference:
    is_bfloat16 = part == "value" and before.keys[key].spec.dtype == "bfloat16"
    elements, differing, largest = 0, 0, 0.0
    for a, b in _pairs(before, after, key, part):
        elements += a.size
        on_bytes(a.nbytes + b.nbytes)
        is_other = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
        if not is_other.any():
            continue
        differing += int(np.count_nonzero(is_other))
        largest = float(np.maximum(largest, _distance(a[is_other], b[is_other], is_bfloat16=is_bfloat16)))
    return ArrayDifference(key, part, elements, differing, largest)


def _pairs(before: Reader, after: Reader, key: str, part: str) -> Iterator[tuple[Array, Array]]:
    if _sizes(before.keys[key], part) == _sizes(after.keys[key], part):
        for number in range(len(before.keys[key].slots)):
            if any(array.name == part for array in before.keys[key].slots[number].arrays):
                yield before.part(key, number, part).reshape(-1), after.part(key, number, part).reshape(-1)
    else:
        yield before.array(key, part).reshape(-1), after.array(key, part).reshape(-1)


def _sizes(key: SavedKey, part: str) -> list[int]:
    return [sum(array.nbytes for array in slot.arrays if array.name == part) for slot in key.slots]


def _distance(a: Array, b: Array, *, is_bfloat16: bool) -> float:
    """The largest difference; the arrays are not empty and differ everywhere."""
    if is_bfloat16:
        a, b = ((each.astype(np.uint32) << 16).view(np.float32) for each in (a, b))
    if a.dtype.kind in "iu":  # a difference of integers may not fit into their type, but into the unsigned one it does
        unsigned = a.dtype.str.replace("i", "u")
        return float(np.where(a > b, a.view(unsigned) - b.view(unsigned), b.view(unsigned) - a.view(unsigned)).max())
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    is_nan = np.isnan(gaps) & ~(np.isnan(a) & np.isnan(b))
    return float("nan") if is_nan.any() else float(np.nan_to_num(gaps, nan=0.0, posinf=np.inf).max())
