"""Saves to a disk that has room for a small checkpoint and not for a large one; run as a program.

    python -m tests.checkpoint.full DIRECTORY

Prints what the user is told.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from tests.checkpoint.making import check_whole, files, save, spec
from windlass.errors import ClusterError

SMALL, LARGE = (spec("w", 10_000),), (spec("w", 1_000_000),)


def main(path: str, limit_bytes: int) -> None:
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    save(path, 1, SMALL, shard_bytes=1 << 20)
    before = files(Path(path))
    for name in (None, "step-000001"):  # a new one, and one in the place of the one that is there
        try:
            save(path, 2, LARGE, name=name, keep=1, shard_bytes=1 << 20)
        except ClusterError as error:
            print(error)
        else:
            raise AssertionError("the disk was not full")
        assert files(Path(path)) == before, "leftovers"
        assert check_whole(path, SMALL) == 1
    save(path, 3, SMALL, keep=1, shard_bytes=1 << 20)
    assert check_whole(path, SMALL) == 3


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
