"""A reduction of memory that is given by address.

Floats go through the kernels. Integers, bools and users' reducers go through numpy, block by block: they are not what
people train with, and each type that the kernels are compiled for costs seconds the first time.
"""

from __future__ import annotations

import ctypes

import numpy as np

from windlass.collectives.shared import kernels
from windlass.collectives.tensors import HALVES, narrowed, widened
from windlass.store.kernels import COUNT, DIVISOR, HI, INPUTS, LO, new_job
from windlass.store.reduce import Op, Reducer
from windlass.types import STORAGE, Array


class Reduction:
    """Reduces elements of one type over one number of members. One thread at a time."""

    def __init__(self, dtype: str, reducer: Reducer, members: int) -> None:
        self._dtype, self._reducer, self._members = dtype, reducer, members
        self._itemsize = STORAGE[dtype].itemsize
        self._is_fused = reducer.op is not Op.CUSTOM and dtype in (*HALVES, "float32", "float64")
        if self._is_fused:
            self._job = new_job(members, size=0, op=reducer.op, dtype=dtype)
            self._job[COUNT], self._job[DIVISOR] = members, members
            self._scratch: Array = np.empty(kernels.BLOCK, np.float64 if dtype == "float64" else np.float32)
            self._halves = np.empty(kernels.BLOCK if dtype in HALVES else 0, np.uint16)

    def run(self, outs: Array, inputs: Array, lo: int, hi: int) -> None:
        """Reduce elements lo to hi of the inputs, in rank order, and write them to all outs, which may be the inputs
        themselves. Addresses are those of element 0."""
        if not self._is_fused:
            for start in range(lo, hi, kernels.BLOCK):
                self._run_block(outs, inputs, start * self._itemsize, min(kernels.BLOCK, hi - start))
        elif lo < hi:
            job = self._job
            job[INPUTS:], job[LO], job[HI] = inputs, lo, hi
            kernels.reduce(outs, job, self._scratch, self._halves)

    def _run_block(self, outs: Array, inputs: Array, offset: int, length: int) -> None:
        storage, is_half = STORAGE[self._dtype], self._dtype in HALVES
        given = [elements(address + offset, length, storage) for address in inputs.tolist()]
        total = self._reducer.fold([widened(each, self._dtype) for each in given] if is_half else given, self._members)
        result = narrowed(total, self._dtype) if is_half else total
        for out in outs.tolist():
            elements(out + offset, length, storage)[:] = result


def elements(address: int, size: int, storage: np.dtype[np.generic]) -> Array:
    """The elements at this address, to read or to write; the caller keeps the memory alive."""
    memory = (ctypes.c_char * (size * storage.itemsize)).from_address(address)
    found: Array = np.frombuffer(memory, storage)  # type: ignore[call-overload]
    return found
