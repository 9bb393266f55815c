"""The hot loops of a table's index: which row an id has.

An id is *mixed* into a hash, a bijection of 64 bits, so that hash and id say the same and the index keeps the hash.
An entry is two words: the hash, and a *tag* below when it was last used (`used << 32 | tag`). A tag is 0 where the
place is empty, 1 + row where the id has a row, and above CANDIDATE the number of pushes that an id without a row has
had.

An index is one *part*, or 2**bits of them by the first bits of the hash, so that none is long and to make one larger
is soon done. `parts` has a line for each: the address of its entries, the number of its homes, how many entries it has,
and room for how many places there is. An id's *home* in its part is the rest of its hash scaled to the number of homes;
entries are sorted by hash, each at its home or as soon after it as there is place, and the last place stays empty. So
the order of the entries depends on neither history nor size; an id that is not there is missed after few places; and
to make a part larger or to drop entries is one pass over memory, in order.

`ids` and other inputs come as addresses: read-only memory is another type to numba, and would be compiled again. A
place of the index is asked for some ids before it is read, so that several are on their way from memory at once.
"""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401, whole before its parts: another thread may be importing it
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from windlass.store.kernels import _pointer as pointer
from windlass.store.kernels import jit
from windlass.types import Array

CANDIDATE = 0xFFFF0000
"""Tags from here on count pushes: MAX_ROWS rows are possible in a slot, and counts below 2**16."""

MAX_ROWS = CANDIDATE - 1
AHEAD = 16
_FAR = 1 << 40  # elements: longer than any part

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
def part_of(hashed: Any, bits: int) -> Any:
    return np.int64((hashed >> _HALF) >> np.uint64(32 - bits))


@jit
def home(hashed: Any, bits: int, homes: Any) -> Any:
    return np.int64((((hashed << np.uint64(bits)) >> _HALF) * np.uint64(homes)) >> _HALF)


@jit
def find(parts: Array, bits: int, ids: int, hashes: Array, places: Array, rows: Array) -> Any:
    """Where each id is: the address of its entry, or -1, and its row, or -1. Returns how many have no entry."""
    count, missing, like = hashes.size, 0, np.empty(0, np.uint64)
    given = carray(pointer(ids, np.empty(0, np.int64)), count)
    for i in range(count + AHEAD):
        if i < count:
            hashed = mix(given[i])
            part = part_of(hashed, bits)
            hashes[i], places[i] = hashed, parts[part, 0] + 16 * home(hashed, bits, parts[part, 1])
            fetch(places[i])
        if i < AHEAD:
            continue
        hashed = hashes[i - AHEAD]
        address = places[i - AHEAD]
        entry = carray(pointer(address, like), _FAR)
        at = 0
        tag = entry[1] & _LOW
        while tag and entry[at] < hashed:
            at += 2
            tag = entry[at + 1] & _LOW
        is_here = tag != _NONE and entry[at] == hashed
        places[i - AHEAD] = address + 8 * at if is_here else -1
        rows[i - AHEAD] = np.int64(tag) - 1 if is_here and tag < _CANDIDATE else -1
        missing += not is_here
    return missing


@jit
def _insert(line: Array, bits: int, hashed: Any, word: Any, like: Array) -> Any:
    """Put a new entry where it belongs, and those after it one place on. Returns the tag of one that is there already,
    and stays as it is; else 0; or -1: no room, the part must be made larger."""
    entries = carray(pointer(line[0], like), 2 * line[3])
    at = 2 * home(hashed, bits, line[1])
    while entries[at + 1] & _LOW and entries[at] < hashed:
        at += 2
    if entries[at + 1] & _LOW and entries[at] == hashed:
        return np.int64(entries[at + 1] & _LOW)
    stop = at
    while entries[stop + 1] & _LOW:
        stop += 2
    if stop == entries.size - 2 or 4 * line[2] >= 3 * line[1]:
        return np.int64(-1)
    while stop > at:
        entries[stop], entries[stop + 1] = entries[stop - 2], entries[stop - 1]
        stop -= 2
    entries[at], entries[at + 1] = hashed, word
    line[2] += 1
    return np.int64(0)


@jit
def touch(places: Array, rows: Array, free: Array, made: Array, done: Array) -> None:
    """Count a push for the ids that have an entry. Those that get their row now take one of `free`, and their numbers
    in the batch go into `made`. `done` is as in `enter`."""
    used, admit_after, like = np.uint64(done[2]) << _HALF, done[3], np.empty(0, np.uint64)
    for i in range(places.size):
        if places[i] < 0:
            continue
        entry = carray(pointer(places[i], like), 2)
        tag = entry[1] & _LOW
        if tag >= _CANDIDATE:
            tag += np.uint64(1)
            if np.int64(tag - _CANDIDATE) >= admit_after:
                rows[i] = free[done[1]]
                made[done[1]] = i
                done[1] += 1
                tag = np.uint64(rows[i] + 1)
        entry[1] = used | tag


@jit
def num_due(places: Array, admit_after: int) -> Any:
    """How many of these are candidates that get a row with their next push."""
    due, like = 0, np.empty(0, np.uint64)
    for i in range(places.size):
        if places[i] >= 0:
            tag = carray(pointer(places[i], like), 2)[1] & _LOW
            if tag >= _CANDIDATE and np.int64(tag - _CANDIDATE) + 1 >= admit_after:
                due += 1
    return due


@jit
def enter(
    parts: Array, bits: int, hashes: Array, places: Array, rows: Array, free: Array, made: Array, done: Array
) -> Any:
    """Give the ids that have no entry one, and a row of `free` unless they must wait for it. `done` says how far it
    got: the number of the next id, and of the rows taken; then the tick, and after how many pushes an id has a row.
    Returns the part that must be made larger before it can go on, or -1."""
    used, admit_after, like = np.uint64(done[2]) << _HALF, done[3], np.empty(0, np.uint64)
    while done[0] < places.size:
        i = done[0]
        if places[i] < 0:
            row = free[done[1]] if admit_after <= 1 else -1
            tag = np.uint64(row + 1) if admit_after <= 1 else _CANDIDATE + np.uint64(1)
            part = part_of(hashes[i], bits)
            before = _insert(parts[part], bits, hashes[i], used | tag, like)
            if before < 0:
                return part
            rows[i] = row
            if before > 0:  # an id that comes twice, against the promise
                rows[i] = before - 1 if before < CANDIDATE else -1
            elif row >= 0:
                made[done[1]] = i
                done[1] += 1
        done[0] += 1
    return np.int64(-1)


# --- passes over a part -----------------------------------------------------------------------------------------------


@jit
def rebuild(entries: Array, empty: Array, homes: int, bits: int, floors: Array, freed: Array, counts: Array) -> bool:
    """Put the entries of a part into an empty one, but those below a floor: rows, and candidates, that were last used
    before a tick, or in it with a hash below another. `counts` are the rows that this `freed`, and the candidates
    dropped. False: no room."""
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
        place = max(place, home(hashed, bits, homes))
        if place >= len(empty) - 1:
            return False
        empty[place, 0], empty[place, 1] = hashed, word
        place += 1
    return True


@jit
def fill(empty: Array, homes: int, bits: int, hashes: Array, words: Array) -> bool:
    """Put new entries, by rising hash, into an empty part. False: no room."""
    place = 0
    for i in range(hashes.size):
        place = max(place, home(hashes[i], bits, homes))
        if place >= len(empty) - 1:
            return False
        empty[place, 0], empty[place, 1] = hashes[i], words[i]
        place += 1
    return True


@jit
def collect(entries: Array, after: Any, is_first: bool, found: Array) -> int:
    """Copy entries whose hash is above `after`, or all if it is the first time. Returns how many there were."""
    count = 0
    for i in range(len(entries)):
        if count == len(found):
            break
        if entries[i, 1] & _LOW and (is_first or entries[i, 0] > np.uint64(after)):
            found[count, 0], found[count, 1] = entries[i, 0], entries[i, 1]
            count += 1
    return count


@jit
def last_uses(entries: Array, are_candidates: bool, uses: Array) -> int:
    """When the rows, or the candidates, were last used. Returns how many there are."""
    count = 0
    for i in range(len(entries)):
        tag = entries[i, 1] & _LOW
        if tag != _NONE and (tag >= _CANDIDATE) == are_candidates:
            uses[count] = entries[i, 1] >> _HALF
            count += 1
    return count


@jit
def used_at(entries: Array, are_candidates: bool, tick: int, hashes: Array) -> int:
    """The hashes of the rows, or candidates, that were last used then. Returns how many there are."""
    count = 0
    for i in range(len(entries)):
        tag, used = entries[i, 1] & _LOW, entries[i, 1] >> _HALF
        if tag != _NONE and used == np.uint64(tick) and (tag >= _CANDIDATE) == are_candidates:
            hashes[count] = entries[i, 0]
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
