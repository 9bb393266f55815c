"""What rows start as."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windlass.errors import UsageError
from windlass.store.initial import Constant, Initial, Normal, Uniform, initial_rule, resolve_initial
from windlass.types import Rule

IDS = np.arange(-500, 500)


def test_numbers_depend_on_seed_id_and_column_alone():
    rows = Normal(1.0, seed=7).rows(IDS, 8)
    assert np.array_equal(Normal(1.0, seed=7).rows(IDS[::-1], 8), rows[::-1])
    assert np.array_equal(Normal(1.0, seed=7).rows(IDS, 3), rows[:, :3])
    assert len(np.unique(rows)) > 7990
    assert not np.intersect1d(rows, Normal(1.0, seed=8).rows(IDS, 8)).size
    assert not np.array_equal(Normal(1.0).salted("a").rows(IDS, 8), Normal(1.0).salted("b").rows(IDS, 8))


def test_the_first_numbers_are_these_on_every_machine():
    bits = Normal(1.0, seed=1).rows(np.array([0, -1]), 2).view(np.uint32)
    assert bits.tolist() == [[0xBF7D9E17, 0x3EE18614], [0x402BEA56, 0xBE8315D2]]


def test_normal_numbers_have_the_quantiles_of_the_normal_distribution():
    rows = np.sort(Normal(2.0, mean=1.0).rows(IDS, 100).reshape(-1))
    for z in (-3, -2, -1, 0, 1, 2, 3):
        share = 0.5 * (1 + math.erf(z / math.sqrt(2)))
        off = np.searchsorted(rows, 1 + 2 * z) / rows.size - share
        assert abs(off) < 4 * math.sqrt(share * (1 - share) / rows.size)


def test_uniform_numbers_fill_their_range_evenly():
    rows = Uniform(-1, 3).rows(IDS, 100)
    counts, _ = np.histogram(rows, 10, (-1, 3))
    assert counts.sum() == rows.size
    assert abs(counts - rows.size / 10).max() < 5 * math.sqrt(rows.size / 10)


@pytest.mark.parametrize("init", [Constant(2.5), Normal(0.01, mean=1.0, seed=2**64 - 1), Uniform(-0.5, 0.5)])
def test_a_rule_brings_it_back(init: Initial):
    assert resolve_initial(initial_rule(init)) == init


def test_a_number_is_a_constant_and_nothing_is_zero():
    assert resolve_initial(initial_rule(3)) == Constant(3.0)
    assert resolve_initial(initial_rule(None)) == Constant(0.0)


def test_what_is_wrong_is_said():
    for make, text in (
        (lambda: Normal(-1.0), "std must be 0 or more"),
        (lambda: Normal(float("nan")), r"Normal\(std=nan\): std must be a number"),
        (lambda: Normal(1.0, seed=-1), "seed must be a whole number from 0"),
        (lambda: Uniform(2, 1), "low must not be above high"),
        (lambda: initial_rule("zeros"), r"init= expects a number, wl.Constant\(value\)"),
        (lambda: resolve_initial(Rule("xavier")), "one of 'constant', 'normal', 'uniform', got 'xavier'"),
        (lambda: resolve_initial(Rule("normal", {"sigma": 1})), "unknown option sigma; known: std, mean, seed"),
    ):
        with pytest.raises(UsageError, match=text):
            make()
