"""Small sets of real images, as directories of idx files."""

from __future__ import annotations

from pathlib import Path

from windlass.apps.fashion import SAMPLE, Source, write_idx


def cut(directory: Path, *, train: int, test: int) -> Source:
    """The first images of the sample."""
    whole = Source(SAMPLE).load()
    for part, split, count in (("train", whole.train, train), ("t10k", whole.test, test)):
        write_idx(directory / f"{part}-images-idx3-ubyte.gz", split.images[:count])
        write_idx(directory / f"{part}-labels-idx1-ubyte.gz", split.labels[:count])
    return Source(directory)
