"""The loops of the shared-memory backend: waiting for flags, copying, and reducing straight into every member's memory.

Memory is given by address, as in `store/kernels.py`, whose reduction this uses; a *job* is one of its jobs. Everything
releases the interpreter lock, and nothing here takes long: a wait returns after `WAIT_NANOSECONDS`, a caller cuts a
large reduction into pieces, so that Ctrl-C and the death of a peer are noticed in between.

What is copied past the cache must not be wanted soon: it is for results that are far larger than the cache.
"""

from __future__ import annotations

from typing import Any

import numba  # noqa: F401, whole before its parts: another thread may be importing it
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from windlass.collectives.shared import atomics
from windlass.store import kernels
from windlass.store.copying import fence, stream
from windlass.store.kernels import HI, INPUTS, ITEMSIZE, LO, jit
from windlass.types import Array

WAIT_NANOSECONDS = 20_000_000
SPIN_NANOSECONDS = 3_000
YIELD_NANOSECONDS = 300_000
SLEEP_MICROSECONDS = 50
BLOCK = 2048
_LINE = 32


LATE = -2
"""What `come` returns when somebody has not come yet: `wait`, then `first_unlike`."""


def _as_words(_: Any, address: Any) -> Any:
    """The address as a pointer to int64s."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    pointer: Any = types.CPointer
    return pointer(types.int64)(types.int64), build


def _move(_: Any, to: Any, source: Any, nbytes: Any) -> Any:
    """An ordinary copy, by address."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        declared: Any = cgutils.get_or_insert_function
        kind = ir.FunctionType(byte, [byte, byte, ir.IntType(64)])
        copy = declared(builder.module, kind, "memcpy")
        builder.call(copy, [builder.inttoptr(args[0], byte), builder.inttoptr(args[1], byte), args[2]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), build


move: Any = intrinsic(_move)
_words: Any = intrinsic(_as_words)


@jit
def post(slot: int, notice: Array, payload: int, nbytes: int) -> None:
    """Write a notice, and behind it a small payload."""
    move(slot, notice.ctypes.data, 8 * notice.size)
    move(slot + 8 * notice.size, payload, nbytes)


@jit
def first_unlike(slots: Array, mine: int, length: int) -> int:
    """The first slot whose first words are not as mine are; -1 if all are."""
    own = carray(_words(mine), length)
    for i in range(slots.size):
        other = carray(_words(slots[i]), length)
        for k in range(own.size):
            if own[k] != other[k]:
                return i
    return -1


@jit
def arrive(flag: int, count: int) -> None:
    """Say that this member has done everything before its count-th meeting."""
    atomics.store(flag, count)


@jit
def wait(flags: Array, count: int, spins: bool) -> bool:
    """Wait until every flag has come to `count`; False if that takes too long, to look around and call again. A short
    wait spins (if there is a core for everybody), a longer one gives way, a long one sleeps."""
    began = atomics.nanoseconds()
    for i in range(flags.size):
        address = flags[i]
        tries = 0
        while atomics.load(address) < count:
            tries += 1
            if tries % 16 and spins:
                atomics.pause()
                continue
            waited = atomics.nanoseconds() - began
            if waited > WAIT_NANOSECONDS:
                return False
            if waited > YIELD_NANOSECONDS:
                atomics.sleep(np.int32(SLEEP_MICROSECONDS))
            elif not spins or waited > SPIN_NANOSECONDS:
                atomics.give_way()
    return True


@jit
def come(
    slots: Array, rank: int, notice: Array, length: int, payload: int, nbytes: int, flag: int, count: int,
    flags: Array, spins: bool,
) -> int:
    """Post, arrive, wait and look for the first that is unlike, in one call: a small collective is little else."""
    post(slots[rank], notice, payload, nbytes)
    arrive(flag, count)
    if not wait(flags, count, spins):
        return LATE
    return first_unlike(slots, slots[rank], length)


@jit
def _move_past_cache(to: int, source: int, nbytes: int) -> None:
    head = min(nbytes, (-to) % _LINE)
    move(to, source, head)
    body = (nbytes - head) // (4 * _LINE) * (4 * _LINE)
    for i in range(head, head + body, 4 * _LINE):
        stream(to + i, source + i)
        stream(to + i + _LINE, source + i + _LINE)
        stream(to + i + 2 * _LINE, source + i + 2 * _LINE)
        stream(to + i + 3 * _LINE, source + i + 3 * _LINE)
    move(to + head + body, source + head + body, nbytes - head - body)


@jit
def copy(tos: Array, sources: Array, lengths: Array, past_cache: bool) -> None:
    """Copy each source to its place; lengths in bytes."""
    for i in range(tos.size):
        if past_cache:
            _move_past_cache(tos[i], sources[i], lengths[i])
        else:
            move(tos[i], sources[i], lengths[i])
    if past_cache:
        fence()


@jit
def exchange(
    rooms: Array, starts: Array, lengths: Array, parts: Array, piece: int, share: int, inward: bool, past_cache: bool
) -> None:
    """Copy one piece's share of each of these parts of a tensor into its room, or out of it. By part: where its room
    is, where in the tensor it begins, and how many bytes it has."""
    done = piece * share
    for part in parts:
        length = min(share, lengths[part] - done)
        if length <= 0:
            continue
        if inward:
            move(rooms[part], starts[part] + done, length)
        elif past_cache:
            _move_past_cache(starts[part] + done, rooms[part], length)
        else:
            move(starts[part] + done, rooms[part], length)
    if past_cache:
        fence()


@jit
def reduce(outs: Array, job: Array, scratch: Array, halves: Array) -> None:
    """Reduce the job's inputs, elements job[LO] to job[HI], and write the result to every out. An address is where
    element 0 is, or would be. Outs may be the inputs' own memory."""
    part = job.copy()
    itemsize = job[ITEMSIZE]
    source = halves.ctypes.data if itemsize == 2 and halves.size else scratch.ctypes.data
    for start in range(job[LO], job[HI], BLOCK):
        length = min(BLOCK, job[HI] - start)
        part[LO], part[HI] = 0, length
        for i in range(INPUTS, job.size):
            part[i] = job[i] + start * itemsize
        kernels.assign(scratch, scratch, halves, part, scratch)
        for i in range(outs.size):
            # Not past the cache: mostly this is what has just been read, and is in the cache already.
            move(outs[i] + start * itemsize, source, length * itemsize)
