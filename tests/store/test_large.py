"""Memory in large pages: blocks do not overlap, join when they are freed, and go back to the system."""

from __future__ import annotations

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from windlass.store.large import REGION_BYTES, LargePages

SIZES = st.one_of(st.integers(1, 500), st.integers(1, REGION_BYTES // 3))


@given(st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 100)), max_size=60))
def test_blocks_never_overlap_and_all_memory_comes_back(steps):
    memory, out = LargePages(), []
    for is_freed, nbytes, which in steps:
        if is_freed and out:
            memory.free(out.pop(which % len(out)))
        else:
            block = memory.allocate(nbytes)
            assert block.array.nbytes == nbytes
            assert block.array.ctypes.data % 64 == 0
            out.append(block)
        spans = sorted((block.array.ctypes.data, block.array.nbytes) for block in out)
        assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
        used = sum(size for _, size in spans)
        assert used <= memory.nbytes - memory.free_bytes <= used + 64 * len(out)
    for block in out:
        memory.free(block)
    assert (memory.nbytes, memory.free_bytes) == (0, 0)


def test_a_block_larger_than_a_region_gets_one_of_its_own():
    memory = LargePages()
    block = memory.allocate(REGION_BYTES + 1)
    block.array[-1] = 7
    assert memory.nbytes >= REGION_BYTES + 1


def test_what_was_freed_in_pieces_is_used_again_as_a_whole():
    memory = LargePages()
    pieces = [memory.allocate(REGION_BYTES // 4) for _ in range(4)]
    first = pieces[0].array.ctypes.data
    memory.free(pieces[1])
    memory.free(pieces[0])
    assert memory.allocate(REGION_BYTES // 2).array.ctypes.data == first
