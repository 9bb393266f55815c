"""Makes the sample of Fashion-MNIST that ships with the package: `python -m windlass.apps.make_sample DIRECTORY`.

It holds the first images of each label in their original order, 1,000 of the training set and 200 of the test set; the
whole set has to be here (see `fashion.find`). Repeating it gives the same files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from windlass.apps.fashion import LABELS, Source, Split, default_places, find, write_idx

TRAIN_PER_LABEL, TEST_PER_LABEL = 1000, 200


def first_of_each(split: Split, per_label: int) -> Split:
    """The first `per_label` images of every label, in their order."""
    rows = np.sort(np.concatenate([np.flatnonzero(split.labels == label)[:per_label] for label in range(len(LABELS))]))
    return Split(split.images[rows], split.labels[rows])


def make(source: Source, directory: Path) -> None:
    whole = source.load()
    directory.mkdir(parents=True, exist_ok=True)
    for part, split, count in (("train", whole.train, TRAIN_PER_LABEL), ("t10k", whole.test, TEST_PER_LABEL)):
        chosen = first_of_each(split, count)
        write_idx(directory / f"{part}-images-idx3-ubyte.gz", chosen.images)
        write_idx(directory / f"{part}-labels-idx1-ubyte.gz", chosen.labels)


if __name__ == "__main__":
    make(find("full", default_places(os.environ), print), Path(sys.argv[1]))
