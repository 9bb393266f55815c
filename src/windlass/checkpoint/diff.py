"""What differs between two checkpoints: keys, declarations, and by how much the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from windlass.checkpoint.manifest import SavedKey
from windlass.checkpoint.reader import Reader
from windlass.types import Array

ROWS, CANDIDATES = "rows", "candidates"


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
    `one_sided`: key, array, and the path of that side. Of a table, rows are compared that both sides have; `rows` says
    how many only one has: key, what they are (ids or candidates), removed, added."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: dict[str, list[tuple[str, str, str]]]
    arrays: tuple[ArrayDifference, ...]
    one_sided: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, str, int, int], ...] = ()

    @property
    def is_same(self) -> bool:
        moved = any(array.differing for array in self.arrays)
        return not (self.added or self.removed or self.changed or self.one_sided or self.rows or moved)


def diff(before: Reader, after: Reader, on_bytes: Callable[[int], object] = lambda count: None) -> Difference:
    """Compare two checkpoints. Blocks while it reads both, and calls `on_bytes` now and then with the bytes read since.
    It holds one array of a slot of each at a time, or of a whole key where their slots differ. Raises DamagedCheckpoint
    where bytes are not as they were written."""
    shared = [name for name in before.keys if name in after.keys]
    changed: dict[str, list[tuple[str, str, str]]] = {}
    arrays: list[ArrayDifference] = []
    one_sided: list[tuple[str, str, str]] = []
    rows: list[tuple[str, str, int, int]] = []
    for name in shared:
        old, new = before.keys[name], after.keys[name]
        if fields := _fields(old, new):
            changed[name] = fields
        ours, theirs = _names(old), _names(new)
        is_table = old.spec.table is not None and new.spec.table is not None
        if is_table:
            for noun in (ROWS, CANDIDATES):
                found = _compare_rows(before, after, name, noun, on_bytes)
                arrays += found.arrays
                rows += [(name, noun, found.removed, found.added)] if found.removed or found.added else []
        for part, (dtype, elements) in ours.items():
            if part not in theirs:
                one_sided.append((name, part, before.path))
            elif not is_table and theirs[part] == (dtype, elements):
                arrays.append(_compare(before, after, name, part, on_bytes))
        one_sided += [(name, part, after.path) for part in theirs if part not in ours]
    return Difference(
        added=tuple(name for name in after.keys if name not in before.keys),
        removed=tuple(name for name in before.keys if name not in after.keys),
        changed=changed,
        arrays=tuple(arrays),
        one_sided=tuple(one_sided),
        rows=tuple(rows),
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
    total = _Total(key, part, is_bfloat16=part == "value" and before.keys[key].spec.dtype == "bfloat16")
    for a, b in _pairs(before, after, key, part):
        on_bytes(a.nbytes + b.nbytes)
        total.add(a, b)
    return total.difference()


class _Total:
    """The differences of one array, stretch by stretch."""

    def __init__(self, key: str, part: str, *, is_bfloat16: bool) -> None:
        self._key, self._part, self._is_bfloat16 = key, part, is_bfloat16
        self._elements, self._differing, self._largest = 0, 0, 0.0

    def add(self, a: Array, b: Array) -> None:
        self._elements += a.size
        is_other = a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}")
        if is_other.any():
            self._differing += int(np.count_nonzero(is_other))
            gap = _distance(a[is_other], b[is_other], is_bfloat16=self._is_bfloat16)
            self._largest = float(np.maximum(self._largest, gap))

    def difference(self) -> ArrayDifference:
        return ArrayDifference(self._key, self._part, self._elements, self._differing, self._largest)


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RowDifference:
    """How the rows, or candidates, of a table differ: those of ids that both sides have array by array."""

    removed: int
    added: int
    arrays: list[ArrayDifference]


def _compare_rows(
    before: Reader, after: Reader, key: str, noun: str, on_bytes: Callable[[int], object]
) -> _RowDifference:
    ids, prefix = ("ids", "") if noun == ROWS else ("candidate.ids", "candidate.")
    ours, theirs = _names(before.keys[key]), _names(after.keys[key])
    names = [
        name for name in ours if name != ids and name in theirs and name.startswith("candidate.") == bool(prefix)
    ]
    if ids not in ours or ids not in theirs:
        return _RowDifference(0, 0, [])
    totals = {name: _Total(key, name, is_bfloat16=False) for name in names}
    found = _RowDifference(0, 0, [])
    for old, new in _slot_pairs(before, after, key):
        mine, other = old(ids), new(ids)
        on_bytes(mine.nbytes + other.nbytes)
        both, here, there = np.intersect1d(mine, other, assume_unique=True, return_indices=True)
        found.removed += mine.size - both.size
        found.added += other.size - both.size
        for name, total in totals.items():
            a, b = old(name), new(name)
            on_bytes(a.nbytes + b.nbytes)
            if a.dtype == b.dtype and both.size and a.size // mine.size == b.size // other.size:
                total.add(a.reshape(mine.size, -1)[here].reshape(-1), b.reshape(other.size, -1)[there].reshape(-1))
    found.arrays = [total.difference() for total in totals.values()]
    return found


def _slot_pairs(
    before: Reader, after: Reader, key: str
) -> Iterator[tuple[Callable[[str], Array], Callable[[str], Array]]]:
    """What reads the arrays of a slot on either side, slot by slot; of all at once where their slots differ."""
    count = len(before.keys[key].slots)
    if count != len(after.keys[key].slots):
        yield lambda name: before.array(key, name).reshape(-1), lambda name: after.array(key, name).reshape(-1)
        return
    for number in range(count):
        yield (
            lambda name, number=number: before.part(key, number, name).reshape(-1),  # type: ignore[misc]
            lambda name, number=number: after.part(key, number, name).reshape(-1),  # type: ignore[misc]
        )


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
