"""The hot loops of a table's index: which row an id has.

An id is *mixed* into a hash, a bijection of 64 bits, so that hash and id say the same and the index keeps the hash.
`entries` has two words for each place: the hash, and a *tag* below when it was last used (`used << 32 | tag`). A tag is
0 where the place is empty, 1 + row where the id has a row, and above CANDIDATE the number of pushes that an id without
a row has had. An id's *home* is its hash scaled to the number of homes; entries are sorted by hash, each at its home or
as soon after it as there is place. So the order of the entries depends on neither history nor size; an id that is not
there is missed after few places; and to make the index larger or to drop entries is one pass over memory, in order.

`ids` and other inputs come as addresses: read-only memory is another type to numba, and would be compiled again. A
place of the index is asked for some ids before it is read, so that several are on their way from memory at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from windlass.store.kernels import jit, pointer
from windlass.types import Array

CANDIDATE = 0xFFFF0000
"""Tags from here on count pushes: MAX_ROWS rows are possible in a slot, and counts below 2**16."""

MAX_ROWS = CANDIDATE - 1
AHEAD = 16

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_NONE = np.uint64(0)
_CANDIDATE = np.uint64(CANDIDATE)
_SHIFT = np.uint64(33)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_UNDO_FIRST = np.uint64(pow(0xFF51AFD7ED558CCD, -1, 1 << 64))
_UNDO_SECOND = np.uint64(pow(0xC4CEB9FE1A85EC53, -1, 1 << 64))


def _fetch(_: Any, address: Any) -> Any:
    """Ask for the cache line at this address, and do not wait for it."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], cgutils.voidptr_t)
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word])
        insert: Any = cgutils.get_or_insert_function
        function = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), build


fetch: Any = intrinsic(_fetch)


@jit
def mix(number: Any) -> Any:
    """The 64-bit finaliser of MurmurHash3."""
    number = np.uint64(number)
    number = (number ^ (number >> _SHIFT)) * _FIRST
    number = (number ^ (number >> _SHIFT)) * _SECOND
    return number ^ (number >> _SHIFT)


@jit
def unmix(hashed: Any) -> Any:
    """The id that has this hash."""
    hashed = np.uint64(hashed)
    hashed = (hashed ^ (hashed >> _SHIFT)) * _UNDO_SECOND
    hashed = (hashed ^ (hashed >> _SHIFT)) * _UNDO_FIRST
    return np.int64(hashed ^ (hashed >> _SHIFT))


@jit
def home(hashed: Any, homes: Any) -> Any:
    return np.int64(((hashed >> _HALF) * np.uint64(homes)) >> _HALF)


@jit
def find(entries: Array, homes: int, ids: int, hashes: Array, places: Array, rows: Array) -> Any:
    """Where each id is: its place in the index, or -1, and its row, or -1. Returns how many have no place."""
    count, base, missing = hashes.size, entries.ctypes.data, 0
    given = carray(pointer(ids, np.empty(0, np.int64)), count)
    for i in range(count + AHEAD):
        if i < count:
            hashes[i] = mix(given[i])
            fetch(base + 16 * home(hashes[i], homes))
        if i < AHEAD:
            continue
        hashed = hashes[i - AHEAD]
        place = home(hashed, homes)
        tag = entries[place, 1] & _LOW
        while tag and entries[place, 0] < hashed:
            place += 1
            tag = entries[place, 1] & _LOW
        is_here = tag != _NONE and entries[place, 0] == hashed
        places[i - AHEAD] = place if is_here else -1
        rows[i - AHEAD] = np.int64(tag) - 1 if is_here and tag < _CANDIDATE else -1
        missing += not is_here
    return missing


@jit
def _insert(entries: Array, homes: int, hashed: Any, word: Any) -> Any:
    """Put a new entry where it belongs, and those after it one place on. Returns the tag of one that is there already,
    and stays as it is; else 0; or -1: no room, the index must be made larger."""
    place = home(hashed, homes)
    while entries[place, 1] & _LOW and entries[place, 0] < hashed:
        place += 1
    if entries[place, 1] & _LOW and entries[place, 0] == hashed:
        return np.int64(entries[place, 1] & _LOW)
    stop = place
    while entries[stop, 1] & _LOW:
        stop += 1
    if stop == len(entries) - 1:  # the last place stays empty: every search ends there
        return -1
    while stop > place:
        entries[stop, 0], entries[stop, 1] = entries[stop - 1, 0], entries[stop - 1, 1]
        stop -= 1
    entries[place, 0], entries[place, 1] = hashed, word
    return np.int64(0)


@jit
def touch(entries: Array, places: Array, rows: Array, free: Array, made: Array, done: Array) -> None:
    """Count a push for the ids that have a place. Those that get their row now take one of `free`, and their numbers
    in the batch go into `made`. `done` is as in `enter`."""
    used, admit_after = np.uint64(done[3]) << _HALF, done[4]
    for i in range(places.size):
        if places[i] < 0:
            continue
        tag = entries[places[i], 1] & _LOW
        if tag >= _CANDIDATE:
            tag += np.uint64(1)
            if np.int64(tag - _CANDIDATE) >= admit_after:
                rows[i] = free[done[1]]
                made[done[1]] = i
                done[1] += 1
                tag = np.uint64(rows[i] + 1)
        entries[places[i], 1] = used | tag


@jit
def enter(
    entries: Array, homes: int, hashes: Array, places: Array, rows: Array, free: Array, made: Array, done: Array
) -> bool:
    """Give the ids that have no place one, and a row of `free` unless they must wait for it. `done` says how far it
    got: the number of the next id, of the rows taken, of the entries made; then the tick, and after how many pushes an
    id has a row. False: the index must be made larger first."""
    used, admit_after = np.uint64(done[3]) << _HALF, done[4]
    while done[0] < places.size:
        i = done[0]
        if places[i] < 0:
            row = free[done[1]] if admit_after <= 1 else -1
            tag = np.uint64(row + 1) if admit_after <= 1 else _CANDIDATE + np.uint64(1)
            before = _insert(entries, homes, hashes[i], used | tag)
            if before < 0:
                return False
            rows[i] = row
            if before > 0:  # an id that comes twice, against the promise
                rows[i] = before - 1 if before < CANDIDATE else -1
            else:
                done[2] += 1
                if row >= 0:
                    made[done[1]] = i
                    done[1] += 1
        done[0] += 1
    return True


# --- passes over the whole index --------------------------------------------------------------------------------------


@jit
def rebuild(entries: Array, empty: Array, homes: int, floors: Array, freed: Array, counts: Array) -> bool:
    """Put the entries into an empty index, but those below a floor: rows, and candidates, that were last used before a
    tick, or in it with a hash below another. `counts` are the rows that this `freed`, and the candidates dropped.
    False: no room."""
    place = 0
    counts[:] = 0
    for i in range(len(entries)):
        hashed, word = entries[i, 0], entries[i, 1]
        tag, used = word & _LOW, word >> _HALF
        if tag == _NONE:
            continue
        kind = 1 if tag >= _CANDIDATE else 0
        if used < floors[2 * kind] or (used == floors[2 * kind] and hashed < floors[2 * kind + 1]):
            if kind == 0:
                freed[counts[0]] = np.int64(tag) - 1
            counts[kind] += 1
            continue
        place = max(place, home(hashed, homes))
        if place >= len(empty) - 1:
            return False
        empty[place, 0], empty[place, 1] = hashed, word
        place += 1
    return True


@jit
def fill(empty: Array, homes: int, hashes: Array, words: Array) -> bool:
    """Put new entries, by rising hash, into an empty index. False: no room."""
    place = 0
    for i in range(hashes.size):
        place = max(place, home(hashes[i], homes))
        if place >= len(empty) - 1:
            return False
        empty[place, 0], empty[place, 1] = hashes[i], words[i]
        place += 1
    return True


@jit
def first_above(entries: Array, homes: int, hashed: Any) -> Any:
    """The place of the first entry whose hash is above this one, or an empty one before it."""
    place = home(np.uint64(hashed), homes)
    while entries[place, 1] & _LOW and entries[place, 0] <= np.uint64(hashed):
        place += 1
    return place


@jit
def collect(entries: Array, start: int, found: Array) -> int:
    """Copy entries from a place on. Returns how many there were."""
    count = 0
    for i in range(start, len(entries)):
        if count == len(found):
            break
        if entries[i, 1] & _LOW:
            found[count, 0], found[count, 1] = entries[i, 0], entries[i, 1]
            count += 1
    return count


@jit
def unmix_all(hashes: Array, ids: Array) -> None:
    for i in range(hashes.size):
        ids[i] = unmix(hashes[i])


@jit
def mix_all(ids: Array, hashes: Array) -> None:
    for i in range(ids.size):
        hashes[i] = mix(ids[i])
