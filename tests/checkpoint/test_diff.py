"""What differs between two checkpoints, and by how much."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from tests.checkpoint.making import content, save, spec
from windlass.checkpoint import AfterRound, Reader, Writer, diff
from windlass.types import Rule


def saved(path, name, key, **arrays):
    with Writer(path, name=name) as writer:
        for number in range(key.num_slots):
            lo, hi = key.slot_range(number)
            writer.add(key, number, {part: array[lo:hi] for part, array in arrays.items()}, {}, AfterRound(1))
    return Reader(writer.path)


def test_a_checkpoint_is_the_same_as_itself_and_as_one_saved_again(tmp_path):
    a, b = save(tmp_path, 1, name="a"), save(tmp_path, 1, name="b", shard_bytes=1)
    found = diff(Reader(a), Reader(b))
    assert found.is_same
    assert {(one.key, one.name, one.elements) for one in found.arrays} >= {("w", "value", 700), ("b", "state.m", 3)}


def test_keys_added_and_removed_and_declarations_changed_are_named(tmp_path):
    other = msgspec.structs.replace(spec("w", 700), update=Rule("SGD", {"lr": 0.5}))
    a = Reader(save(tmp_path, 1, (spec("w", 700), spec("old", 5)), name="a"))
    b = Reader(save(tmp_path, 1, (spec("new", 5), other), name="b"))
    found = diff(a, b)
    assert (found.removed, found.added, list(found.changed)) == (("old",), ("new",), ["w"])
    ((field, was, now),) = found.changed["w"]
    assert (field, "assign" in was, "SGD" in now) == ("update", True, True)
    assert [one.differing for one in found.arrays] == [0, 0]
    assert not found.is_same


@pytest.mark.parametrize(
    ("dtype", "a", "b", "largest", "differing"),
    [
        ("float32", [1, 2, 3], [1, 2.5, 3], 0.5, 1),
        ("float64", [1, -2, 3], [1, 2, 3.5], 4.0, 2),
        ("float16", [60000, 0, 0], [-60000, 0, 0], 120000.0, 1),
        ("float32", [math.nan, 1, 0], [math.nan, 1, 0], 0.0, 0),
        ("float32", [math.nan, 1, 0], [0, 1, 0], math.nan, 1),
        ("float32", [math.inf, 1, 0], [0, 1, 0], math.inf, 1),
        ("float32", [0.0, 1, 0], [-0.0, 1, 0], 0.0, 1),
        ("int8", [-128, 5, 0], [127, 5, 0], 255.0, 1),
        ("uint64", [2**64 - 1, 5, 0], [0, 7, 0], float(2**64 - 1), 2),
        ("int64", [-(2**63), 5, 0], [2**63 - 1, 5, 0], float(2**64 - 1), 1),
        ("bool", [True, False, True], [True, True, True], 1.0, 1),
    ],
)
def test_the_largest_difference_is_that_of_the_numbers(tmp_path, dtype, a, b, largest, differing):
    key = spec("w", 3, dtype)
    one = saved(tmp_path, "a", key, value=np.array(a, dtype))
    two = saved(tmp_path, "b", key, value=np.array(b, dtype))
    for found in (diff(one, two), diff(two, one)):
        (array,) = found.arrays
        assert array.differing == differing
        assert array.max_abs == largest or (math.isnan(largest) and math.isnan(array.max_abs))
        assert found.is_same is not differing


def test_bfloat16_is_compared_as_the_numbers_that_its_bits_mean(tmp_path):
    key = spec("w", 2, "bfloat16")
    one = saved(tmp_path, "a", key, value=np.array([0x3F80, 0x4000], np.uint16))  # 1, 2
    two = saved(tmp_path, "b", key, value=np.array([0x3F80, 0xC040], np.uint16))  # 1, -3
    (array,) = diff(one, two).arrays
    assert (array.differing, array.max_abs) == (1, 5.0)


def test_other_slots_do_not_hinder_the_comparison(tmp_path):
    wide = msgspec.structs.replace(spec("w", 700), chunk_bytes=1000)
    values = np.arange(700, dtype=np.float32)
    moved = values.copy()
    moved[[3, 650]] += (2, -7)
    found = diff(saved(tmp_path, "a", spec("w", 700), value=values), saved(tmp_path, "b", wide, value=moved))
    (array,) = found.arrays
    assert (array.elements, array.differing, array.max_abs) == (700, 2, 7.0)
    assert [field for field, _, _ in found.changed["w"]] == ["chunk_bytes"]


def test_arrays_of_one_side_only_are_named_with_the_side(tmp_path):
    key = spec("w", 3)
    a = saved(tmp_path, "a", key, **content(key, 0, 1))
    b = saved(tmp_path, "b", key, value=content(key, 0, 1)["value"])
    assert diff(a, b).one_sided == (("w", "state.m", a.path),)
    assert diff(b, a).one_sided == (("w", "state.m", a.path),)
