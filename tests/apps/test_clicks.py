"""Clicks: generated ones follow a planted model, files are Criteo's, and the area under the curve is right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from windlass.apps.clicks import (
    BLOCK,
    FIELDS,
    MISSING,
    NUMBERS,
    Source,
    auc,
    count_lines,
    smallest_part,
    smallest_size,
    zipf,
)

LINE = ["1", *("3" for _ in range(NUMBERS)), *(f"{field:08x}" for field in range(FIELDS))]


def test_generated_samples_are_the_same_whoever_makes_them():
    source, size = Source(max_ids=50), 3 * BLOCK + 100
    whole = source.read(0, size)
    parts = [source.read(0, size, part, 2) for part in range(2)]
    assert len(whole) == size
    assert [len(part) for part in parts] == [2 * BLOCK, BLOCK + 100]
    assert smallest_part(size, 2) == BLOCK + 100
    assert np.array_equal(parts[1].ids[:BLOCK], whole.ids[BLOCK : 2 * BLOCK])
    assert not np.array_equal(whole.numbers, Source(max_ids=50, seed=1).read(0, size).numbers)


@given(st.integers(1, 3 * BLOCK), st.integers(1, 5))
def test_so_many_samples_are_just_enough_for_everybody(part, parts):
    size = smallest_size(part, parts)
    assert smallest_part(size, parts) >= part > smallest_part(size - 1, parts)


def test_what_is_no_file_is_told(tmp_path):
    with pytest.raises(wl.UsageError, match=r"there is no file '.*nothing\.txt'"):
        count_lines(tmp_path / "nothing.txt")
    with pytest.raises(wl.UsageError, match="is no file"):
        count_lines(tmp_path)


def test_generated_samples_have_criteos_shape_and_a_model_behind_them():
    clicks = Source().read(0, 4 * BLOCK)
    assert clicks.numbers.shape == (4 * BLOCK, NUMBERS)
    assert clicks.ids.shape == (4 * BLOCK, FIELDS)
    assert 0.2 < clicks.labels.mean() < 0.4
    assert 0.78 < auc(clicks.truth, clicks.labels) < 0.88
    assert len(np.unique(clicks.ids[:, 8])) == 3
    assert len(np.unique(clicks.ids)) == sum(len(np.unique(clicks.ids[:, field])) for field in range(FIELDS))


def test_the_frequencies_of_ids_fall_as_zipf_says():
    ranks = zipf(np.random.default_rng(0).random(400_000), 1000, 1.05)
    counts = np.bincount(ranks, minlength=1000)
    assert ranks.min() == 0
    assert ranks.max() == 999
    for rank in (4, 20, 100):
        assert counts[rank : 2 * rank].mean() / counts[8 * rank : 9 * rank].mean() == pytest.approx(
            (8.5 / 1.45) ** 1.05, rel=0.25
        )


@pytest.mark.parametrize("mark", ["\t", ","])
@pytest.mark.parametrize("titles", ["none", "titles", "titles and numbers"])
def test_a_file_may_have_tabs_or_commas_titles_and_row_numbers(tmp_path, mark, titles):
    empty = [*LINE]
    empty[0], empty[2], empty[-1] = "0", "", ""
    lines = [LINE, empty, LINE]
    first = ["label", *(f"I{n}" for n in range(NUMBERS)), *(f"C{n}" for n in range(FIELDS))]
    if titles == "titles and numbers":
        lines, first = [[str(n), *line] for n, line in enumerate(lines)], ["Id", *first]
    if titles != "none":
        lines = [first, *lines]
    path = tmp_path / "train.txt"
    path.write_text("".join(mark.join(line) + "\n" for line in lines))
    assert count_lines(path) == 3
    clicks = Source(path=path).read(0, 10)
    assert clicks.labels.tolist() == [1, 0, 1]
    assert clicks.ids[0].tolist() == list(range(FIELDS))
    assert clicks.ids[1, -1] == MISSING
    assert clicks.numbers[0] == pytest.approx(np.full(NUMBERS, np.log1p(3)))
    assert clicks.numbers[1, 1] == 0
    assert Source(path=path).read(1, 3).labels.tolist() == [0, 1]
    path.write_text(path.read_text().rstrip("\n"))
    assert count_lines(path) == len(Source(path=path).read(0, 10)) == 3


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (0, "2", "the label is '2', neither 0 nor 1"),
        (3, "many", "could not convert string to float: 'many'"),
        (20, "xyz", "the category 'xyz' is no hexadecimal number"),
        (20, "0123456789abcdef", "more than 15 hexadecimal digits"),
        (20, "1\t2", "got 41 columns"),
    ],
)
def test_a_broken_line_is_named(tmp_path, column, cell, message):
    broken = [*LINE]
    broken[column] = cell
    path = tmp_path / "train.txt"
    path.write_text("\t".join(LINE) + "\n" + "\t".join(broken) + "\n")
    with pytest.raises(wl.UsageError, match=rf"train.txt, line 2: expected a label, 13 numbers and 26 .*{message}"):
        Source(path=path).read(0, 10)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40))
def test_the_area_is_how_often_a_click_scores_above_another(pairs):
    scores, labels = (np.array([pair[n] for pair in pairs], np.float32) for n in range(2))
    clicked, others = scores[labels > 0], scores[labels == 0]
    if not len(clicked) or not len(others):
        assert np.isnan(auc(scores, labels))
        return
    above = (clicked[:, None] > others).mean() + 0.5 * (clicked[:, None] == others).mean()
    assert auc(scores, labels) == pytest.approx(above)
