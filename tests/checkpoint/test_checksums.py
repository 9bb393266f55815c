"""The checksum of a file, put together from those of its parts."""

from __future__ import annotations

import random
import zlib

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.checkpoint.checksums import Running

SIZES = (0, 1, 7, 1000, 1 << 16, (1 << 16) + 1, 100_001, 1 << 20)


@given(st.lists(st.sampled_from(SIZES), max_size=5), st.integers())
@settings(deadline=None, max_examples=50)
def test_parts_give_the_checksum_of_the_whole(sizes: list[int], seed: int) -> None:
    parts = [random.Random(seed + number).randbytes(size) for number, size in enumerate(sizes)]
    running = Running()
    running.add(b"header")
    for part in parts:
        running.join(part, zlib.crc32(part))
    whole = b"header" + b"".join(parts)
    assert (running.nbytes, running.crc) == (len(whole), zlib.crc32(whole))
