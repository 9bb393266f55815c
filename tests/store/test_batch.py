"""A batch of ids on its way to the slots and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.slots import bfloat16
from tests.store.tables import mixed
from windlass.errors import UsageError
from windlass.store.batch import check_ids, check_rows, check_rows_finite, expand_rows, merge_rows, route
from windlass.store.reduce import BUILT_IN, Reducer

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=60)
FIRST = Reducer("larger", np.maximum, -1e9)


@settings(max_examples=60, deadline=None)
@given(ids=IDS, num_slots=st.integers(1, 40))
def test_every_id_comes_once_in_its_slot_in_the_order_it_came(ids, num_slots):
    way = route(np.array(ids, np.int64), num_slots)
    assert way.ids[way.inverse].tolist() == ids
    different = list(dict.fromkeys(ids))
    slots = [(mixed(number) & 0xFFFFFFFF) * num_slots >> 32 for number in different]
    pairs = list(zip(different, slots, strict=True))
    expected = [[number for number, at in pairs if at == slot] for slot in range(num_slots)]
    found = [way.ids[lo:hi].tolist() for lo, hi in zip(way.bounds[:-1], way.bounds[1:], strict=True)]
    assert found == expected
    assert way.is_unique == (len(different) == len(ids))


@settings(max_examples=40, deadline=None)
@given(ids=IDS, op=st.sampled_from(["sum", "mean", "max", "larger"]))
def test_rows_of_the_same_id_are_reduced_and_come_back_for_each_of_them(ids, op):
    way = route(np.array(ids, np.int64), 4)
    rows = np.arange(3 * len(ids), dtype=np.float32).reshape(-1, 3)
    merged = merge_rows(way, rows, dtype="float32", reducer=BUILT_IN.get(op, FIRST))
    fold = np.sum if op in ("sum", "mean") else np.max
    for number, row in zip(way.ids, merged, strict=True):
        assert np.array_equal(row, fold(rows[np.array(ids) == number], axis=0))
    assert np.array_equal(expand_rows(way, merged), merged[way.inverse])


def test_half_rows_are_added_up_before_they_are_rounded():
    way = route(np.array([7, 7, 7]), 2)
    small = np.array([[2048.0], [1.0], [1.0]])
    assert merge_rows(way, small.astype(np.float16), dtype="float16", reducer=BUILT_IN["sum"]).tolist() == [[2050.0]]
    bits = merge_rows(way, bfloat16(np.array([[256.0], [1.0], [1.0]])), dtype="bfloat16", reducer=BUILT_IN["sum"])
    assert np.array_equal(bits, bfloat16(np.array([[258.0]])))


def test_ids_are_whole_numbers_of_64_bits_in_one_dimension():
    assert check_ids("emb", [3, 4]).dtype == np.int64
    assert check_ids("emb", np.array([3, 4], np.uint8)).tolist() == [3, 4]
    assert check_ids("emb", []).size == 0
    for ids, text in (
        (np.array([1.0]), "'emb': ids must be int64, .* got float64"),
        (np.array([1], np.uint64), "got uint64"),
        (np.array([[1]]), r"one-dimensional, got shape \(1, 1\)"),
        (np.array([True]), "got bool"),
        (["a"], "got <U1"),
    ):
        with pytest.raises(UsageError, match=text):
            check_ids("emb", ids)


def test_rows_have_the_width_and_the_type_of_the_table():
    with pytest.raises(UsageError, match=r"'emb': expected 2 rows of 3, one for each id, got shape \(2, 4\)"):
        check_rows("emb", np.zeros((2, 4), np.float32), 2, 3, "float32")
    with pytest.raises(UsageError, match="'emb' holds rows of float16, got float32"):
        check_rows("emb", np.zeros((2, 3), np.float32), 2, 3, "float16")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_row_that_is_not_finite_is_named(dtype, wrong):
    numbers, ids = np.array([[1e4, -1.0], [2.0, wrong], [wrong, 0.0]], np.float32), np.array([5, -6, 7])
    rows = bfloat16(numbers) if dtype == "bfloat16" else numbers.astype(dtype)
    check_rows_finite("emb", ids[:1], rows[:1], dtype)
    with pytest.raises(UsageError, match="'emb': the row of id -6 has a NaN or an infinity, and 1 more rows"):
        check_rows_finite("emb", ids, rows, dtype)
