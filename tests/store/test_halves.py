"""A replica updates with what another server reduced: the same bits as whoever did both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.slots import make_slot
from tests.store.test_dense_model import PLAIN_SUM, PlainSGD
from windlass.store.dense import Contribution, DenseSlot
from windlass.store.reduce import Reducer
from windlass.store.update import FTRL, SGD, Adagrad, Adam, AdamW, Updater
from windlass.types import STORAGE, Array

SIZE = 300
RANGES = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))
ROUND = st.lists(st.one_of(st.just((0, SIZE)), RANGES), min_size=1, max_size=6)
ROUNDS = st.lists(ROUND, min_size=1, max_size=5)


def bits(slot: DenseSlot) -> list[bytes]:
    arrays, _ = slot.dump()
    return [array.tobytes() for array in arrays.values()]


def random_data(rng: np.random.Generator, dtype: str, size: int) -> Array:
    storage = STORAGE[dtype]
    if dtype == "bfloat16":
        return (rng.standard_normal(size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if storage.kind == "f":
        return rng.standard_normal(size).astype(storage)
    return rng.integers(0, 2 if dtype == "bool" else 100, size).astype(storage)


CASES: list[tuple[str, str | Reducer, str | Updater]] = [
    ("float32", "sum", "assign"),
    ("float32", "mean", SGD(lr=0.1, momentum=0.9)),
    ("float32", "mean", Adam(lr=0.1)),
    ("float32", "sum", AdamW(lr=0.1)),
    ("float32", "sum", Adagrad(lr=0.1)),
    ("float32", "sum", FTRL(lr=0.1, l1=0.01)),
    ("float32", "max", "merge"),
    ("float32", PLAIN_SUM, "merge"),
    ("float32", "mean", PlainSGD(lr=0.125, momentum=0.5, dampening=0.25)),
    ("float64", "min", "merge"),
    ("float16", "mean", SGD(lr=0.1, momentum=0.9)),
    ("bfloat16", "sum", Adam(lr=0.1)),
    ("bfloat16", "sum", "assign"),
    ("int64", "sum", "add"),
    ("uint8", "max", "merge"),
    ("bool", "any", "merge"),
    ("bool", Reducer("either", lambda a, b: a | b, False), "merge"),
]


@pytest.mark.parametrize(("dtype", "reduce", "update"), CASES, ids=range(len(CASES)))
@settings(max_examples=15, deadline=None)
@given(rounds=ROUNDS, seed=st.integers(0, 1000), is_pinned=st.booleans())
def test_reduce_then_update_elsewhere_gives_the_bits_of_apply(dtype, reduce, update, rounds, seed, is_pinned):
    rng = np.random.default_rng(seed)
    alone, head, replica = (make_slot(SIZE, dtype, reduce, update) for _ in range(3))
    for ranges in rounds:
        pieces = [(lo, hi, random_data(rng, dtype, hi - lo)) for lo, hi in ranges]
        given = [[Contribution(lo, hi, data) for lo, hi, data in pieces] for _ in range(2)]
        alone.apply(given[0], divisor=len(pieces), hyper=None, is_pinned=is_pinned)
        reduced = head.reduce(given[1], divisor=len(pieces), room=lambda nbytes: np.empty(nbytes, np.uint8))
        head.update(reduced, hyper=None, is_pinned=is_pinned)
        replica.update(reduced, hyper=None, is_pinned=not is_pinned)
    assert bits(alone) == bits(head) == bits(replica)
