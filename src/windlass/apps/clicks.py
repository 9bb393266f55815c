"""Clicks on advertisements in the shape of Criteo's data: 13 numbers, 26 categories, clicked or not.

Generated ones have ids whose frequencies follow Zipf's law, and labels drawn from a *planted* model: each id has an
effect of its own, and some pairs of fields act together. So the best area under the curve that any model can have is
known. Files are Criteo's own, tab- or comma-separated. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.errors import UsageError

NUMBERS, FIELDS = 13, 26
MISSING = -1
"""The id of a category that a line of a file leaves out."""

CRITEO_FIELDS = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194,
    27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
"""How many different categories each field of Criteo's Kaggle data has."""

BLOCK = 4096
"""Samples are generated in blocks, each from its own seed, so that a worker makes only what is its."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class Clicks(NamedTuple):
    """Samples: `numbers` (n, 13), `ids` (n, 26), `labels` (n,), and the log-odds that labels were drawn from, which
    only generated ones have."""

    numbers: Floats
    ids: Ids
    labels: Floats
    truth: Floats

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ids | slice) -> Clicks:
        return Clicks(self.numbers[rows], self.ids[rows], self.labels[rows], self.truth[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where samples come from: a file, or, without one, a planted model. Small enough to travel. `max_ids` is the
    largest number of different ids that a generated field has, `zipf` how steeply their frequencies fall."""

    path: Path | None = None
    max_ids: int = 100_000
    zipf: float = 1.05
    seed: int = 0

    def read(self, begin: int, end: int, part: int = 0, parts: int = 1) -> Clicks:
        """Of samples `begin` to `end` those of one part: every `parts`-th block. A file may have fewer. Raises
        UsageError, with file and line, for what is no such sample."""
        starts = range(begin, end, BLOCK)[part::parts]
        if self.path is not None:
            return _parsed(self.path, [range(start, min(start + BLOCK, end)) for start in starts])
        planted = Planted(self)
        return _joined([planted.block(start).take(slice(0, min(BLOCK, end - start))) for start in starts])


def smallest_part(size: int, parts: int) -> int:
    """How many samples whoever gets fewest has, where this many are read in so many parts."""
    return min(sum(min(BLOCK, size - start) for start in range(0, size, BLOCK)[part::parts]) for part in range(parts))


def smallest_size(part: int, parts: int) -> int:
    """How many samples there must be so that everybody has so many."""
    rounds = max(0, part - 1) // BLOCK
    return (rounds * parts + parts - 1) * BLOCK + part - rounds * BLOCK


def _joined(blocks: list[Clicks]) -> Clicks:
    empty = Clicks(*(np.empty((0, *rest), kind) for rest, kind in (
        ((NUMBERS,), np.float32), ((FIELDS,), np.int64), ((), np.float32), ((), np.float32)
    )))  # fmt: skip
    return Clicks(*(np.concatenate(each) for each in zip(empty, *blocks, strict=True)))


# --- generated -------------------------------------------------------------------------------------------------------


class Planted:
    """The model behind generated clicks."""

    PAIRS = tuple((field, field + 13) for field in range(13))
    LATENT = 4
    BIAS = -1.4

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sizes = [min(size, source.max_ids) for size in CRITEO_FIELDS]
        rng = np.random.default_rng((source.seed, 1))
        self._weights = rng.normal(0, 0.2, NUMBERS).astype(np.float32)
        self._effects = [rng.normal(0, 0.2, size).astype(np.float32) for size in self._sizes]
        self._latent = [rng.normal(0, 0.35, (size, self.LATENT)).astype(np.float32) for size in self._sizes]

    def block(self, start: int) -> Clicks:
        """BLOCK samples, the same whoever asks."""
        rng = np.random.default_rng((self._source.seed, 2, start))
        numbers = rng.standard_normal((BLOCK, NUMBERS), np.float32)
        ranks = [zipf(rng.random(BLOCK), size, self._source.zipf) for size in self._sizes]
        truth = self.BIAS + numbers @ self._weights
        for field, each in enumerate(ranks):
            truth += self._effects[field][each]
        for one, other in self.PAIRS:
            truth += (self._latent[one][ranks[one]] * self._latent[other][ranks[other]]).sum(axis=1)
        labels = (rng.random(BLOCK) < 1 / (1 + np.exp(-truth))).astype(np.float32)
        ids = np.stack([scatter(each, field) for field, each in enumerate(ranks)], axis=1)
        return Clicks(numbers, ids, labels, truth.astype(np.float32))


def zipf(chances: npt.NDArray[np.float64], size: int, exponent: float) -> Ids:
    """Numbers from 0 to size - 1, that of rank k about as often as 1 / k ** exponent, for chances from 0 to 1."""
    power = 1 - exponent
    ranks = ((((size + 1.0) ** power - 1) * chances + 1) ** (1 / power)) if power else (size + 1.0) ** chances
    found: Ids = np.clip(ranks.astype(np.int64) - 1, 0, size - 1)
    return found


def scatter(ranks: Ids, field: int) -> Ids:
    """Ids all over the int64s, a different one for each rank and field: splitmix64."""
    mixed = (ranks.astype(np.uint64) + (np.uint64(field + 1) << np.uint64(40))) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: Ids = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return found


# --- files -----------------------------------------------------------------------------------------------------------


def _parsed(path: Path, wanted: list[range]) -> Clicks:
    """Some samples of a file: label, 13 whole numbers, 26 categories in hexadecimal; any may be empty but the label. A
    first line of titles, and a first column of row numbers with it, are passed over."""
    with open(path, encoding="utf-8") as file:
        first = file.readline()
        mark = "\t" if "\t" in first else ","
        cells = first.rstrip("\n").split(mark)
        has_titles = cells[0] not in ("0", "1")
        skipped = int(has_titles and len(cells) == NUMBERS + FIELDS + 2)
        if not has_titles:
            file.seek(0)
        lines: list[tuple[int, str]] = []
        at = 0
        for rows in wanted:
            lines += zip(rows, islice(file, rows.start - at, rows.stop - at), strict=False)
            at = rows.stop
    numbers = np.zeros((len(lines), NUMBERS), np.float32)
    ids = np.full((len(lines), FIELDS), MISSING, np.int64)
    labels = np.zeros(len(lines), np.float32)
    for row, (number, line) in enumerate(lines):
        try:
            labels[row] = _parse(line.rstrip("\r\n").split(mark)[skipped:], numbers[row], ids[row])
        except ValueError as error:
            where = f"{path}, line {number + 1 + has_titles}"
            raise UsageError(f"{where}: expected a label, 13 numbers and 26 categories; {error}") from None
    return Clicks(np.log1p(np.maximum(numbers, 0)), ids, labels, np.zeros(len(lines), np.float32))


def _parse(cells: list[str], numbers: Floats, ids: Ids) -> float:
    if len(cells) != 1 + NUMBERS + FIELDS:
        raise ValueError(f"got {len(cells)} columns")
    if cells[0] not in ("0", "1"):
        raise ValueError(f"the label is {cells[0]!r:.40}, neither 0 nor 1")
    for at, cell in enumerate(cells[1 : 1 + NUMBERS]):
        if cell:
            numbers[at] = float(cell)
    for at, cell in enumerate(cells[1 + NUMBERS :]):
        if cell:
            ids[at] = _number(cell)
    return float(cells[0])


def _number(cell: str) -> int:
    """A category as an id: up to 15 hexadecimal digits."""
    if len(cell) > 15:
        raise ValueError(f"the category {cell!r:.40} has more than 15 hexadecimal digits")
    try:
        return int(cell, 16)
    except ValueError:
        raise ValueError(f"the category {cell!r:.40} is no hexadecimal number") from None


def count_lines(path: Path) -> int:
    """How many samples a file has, its titles not counted. UsageError if it cannot be read."""
    if not path.exists():
        raise UsageError(f"there is no file '{path}'")
    if not path.is_file():
        raise UsageError(f"'{path}' is no file")
    with open(path, "rb") as file:
        first = file.readline()
        has_titles = first[:1] not in (b"0", b"1") or first[1:2] not in (b"\t", b",")
        ends, last = 1, first
        while block := file.read(1 << 20):
            ends, last = ends + block.count(b"\n"), block
    return ends - int(has_titles) + int(not last.endswith(b"\n") and last is not first)


# --- how good --------------------------------------------------------------------------------------------------------


def auc(scores: Floats, labels: Floats) -> float:
    """The area under the ROC curve: how often a sample that was clicked scores above one that was not; equal scores
    count half. NaN if all labels are alike."""
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    ends = np.flatnonzero(np.diff(ordered, append=np.inf) != 0)  # the last of each run of equal scores
    sizes = np.diff(ends, prepend=-1)
    ranks = np.repeat(ends + 1 - (sizes - 1) / 2, sizes)
    positive = labels[order] > 0
    clicked, others = int(positive.sum()), int((~positive).sum())
    if not clicked or not others:
        return float("nan")
    return float((ranks[positive].sum() - clicked * (clicked + 1) / 2) / (clicked * others))
