"""A head reduces and a replica updates with what it made: the same bits as whoever did both, and as a plain dict of
dense keys; those that learned the slot halfway, and rows that had to go, included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.tables import Model, bits, make_table, pull
from tests.store.test_dense_model import PLAIN_SUM, PlainSGD
from tests.store.test_halves import random_data
from windlass.store.ageing import Limits
from windlass.store.initial import Constant, Normal, Uniform
from windlass.store.reduce import Reducer
from windlass.store.table import Contribution
from windlass.store.table_options import TableOptions
from windlass.store.update import FTRL, SGD, Adagrad, Adam, AdamW, RowwiseAdagrad, Updater
from windlass.types import STORAGE, Array

POOL = [0, 1, -1, 2, 3, 2**63 - 1, -(2**63), *range(100, 130)]
IDS = st.lists(st.sampled_from(POOL), max_size=20)
ROUNDS = st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=4), st.integers(0, 3)), min_size=1, max_size=8)

CASES: list[tuple[TableOptions, str | Reducer, str | Updater]] = [
    (TableOptions(dim=3), "sum", "assign"),
    (TableOptions(dim=16), "mean", SGD(lr=0.1, momentum=0.9, dampening=0.5)),
    (TableOptions(dim=5), "sum", SGD(lr=0.1, weight_decay=0.1)),
    (TableOptions(dim=8, init=Normal(0.1, seed=3)), "mean", Adam(lr=0.1)),
    (TableOptions(dim=8), "sum", AdamW(lr=0.1)),
    (TableOptions(dim=17, init=Uniform(-1, 1)), "sum", Adagrad(lr=0.1)),
    (TableOptions(dim=4), "sum", Adagrad(lr=0.1, lr_decay=0.5, weight_decay=0.1)),
    (TableOptions(dim=7), "sum", RowwiseAdagrad(lr=0.1)),
    (TableOptions(dim=1), "sum", FTRL(lr=0.1, l1=0.01, l2=0.1)),
    (TableOptions(dim=2, init=Constant(-np.inf)), "max", "merge"),
    (TableOptions(dim=3), PLAIN_SUM, "merge"),
    (TableOptions(dim=3, admit_after=2), "mean", PlainSGD(lr=0.125, momentum=0.5, dampening=0.25)),
    (TableOptions(dim=6, dtype="float16", init=Normal(0.1)), "mean", SGD(lr=0.1, momentum=0.9)),
    (TableOptions(dim=6, dtype="bfloat16", init=Normal(0.1)), "sum", Adam(lr=0.1)),
    (TableOptions(dim=2, limits=Limits(max_rows=9)), "sum", "add"),
    (TableOptions(dim=2, limits=Limits(max_rows=18, ttl_updates=2), admit_after=2), "sum", Adagrad(lr=0.1)),
    (TableOptions(dim=2, limits=Limits(max_rows=9, ttl_seconds=4.0), admit_after=3), "sum", Adam(lr=0.1)),
]


def contributions(rng: np.random.Generator, options: TableOptions, ids: list[list[int]]) -> list[Contribution]:
    found = []
    for each in ids:
        rows = random_data(rng, options.dtype, len(each) * options.dim)
        found.append(Contribution(np.array(each, np.int64), rows, is_unique=len(set(each)) == len(each)))
    return found


def value_bits(value: Array) -> bytes:
    return np.ascontiguousarray(value).view(np.uint8).tobytes()


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@settings(max_examples=20, deadline=None)
@given(rounds=ROUNDS, seed=st.integers(0, 1000))
def test_slots_that_take_the_same_batches_are_the_same_and_are_a_dict_of_dense_keys(case, rounds, seed):
    options, reduce, update = case
    rng, now = np.random.default_rng(seed), 100.0
    alone, head, replica, learner = (make_table(options, reduce, update) for _ in range(4))
    model = Model(options, reduce, update)
    for number, (ids, seconds) in enumerate(rounds):
        now += seconds
        pieces = contributions(rng, options, ids)
        hyper = {"lr": 0.05} if isinstance(update, Adam | Adagrad) and number % 3 == 1 else None
        batch = head.reduce(pieces, divisor=len(pieces))
        alone.apply(pieces, divisor=len(pieces), hyper=hyper, now=now)
        for slot in (head, replica, learner):
            slot.update(batch, hyper=hyper, now=now)
        model.apply(batch.ids, batch.rows.reshape(-1, options.dim), hyper, now)
        if number == len(rounds) // 2:
            learner = make_table(options, reduce, update)
            learner.restore(*head.dump())
    assert bits(alone) == bits(head) == bits(replica) == bits(learner)
    assert head.ids_between(-(2**63), 2**63).tolist() == sorted(model.rows)
    assert (head.num_rows, head.num_candidates) == (len(model.rows), len(model.waiting))
    for number in POOL:
        assert value_bits(pull(head, [number])) == value_bits(model.value(number).view(STORAGE[options.dtype]))
