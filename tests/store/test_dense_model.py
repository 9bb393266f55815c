"""Slots against a model that keeps every element by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.slots import make_slot, push, value
from windlass.store.reduce import Reducer
from windlass.store.update import SGD, Adam, Updater
from windlass.types import Array

SIZE = 9
Rounds = list[tuple[list[tuple[int, int]], bool]]
"""For each round the ranges pushed, and whether the block is pinned."""

RANGES = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda pair: (min(pair), max(pair)))
ROUNDS = st.lists(st.tuples(st.lists(RANGES, max_size=4), st.booleans()), max_size=6)
PLAIN_SUM = Reducer("plain_sum", lambda a, b: a + b, 0)


@dataclass(frozen=True)
class PlainSGD(Updater):
    """SGD with dampened momentum, as a user would write it."""

    lr: float
    momentum: float
    dampening: float
    state = ("buffer",)

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        buffer = state["buffer"]
        buffer *= self.momentum
        buffer += grad if step == 1 else (1 - self.dampening) * grad
        value -= self.lr * buffer


class Element:
    """One element, by the book."""

    def __init__(self) -> None:
        self.value = self.first = self.second = 0.0
        self.step = 0

    def sgd(self, grads: list[float]) -> None:
        self.step += 1
        self.first = 0.5 * self.first + (1 if self.step == 1 else 0.75) * sum(grads)
        self.value -= 0.125 * self.first

    def adam(self, grads: list[float]) -> None:
        self.step += 1
        grad = sum(grads)
        self.first = 0.9 * self.first + 0.1 * grad
        self.second = 0.999 * self.second + 0.001 * grad * grad
        root = (self.second / (1 - 0.999**self.step)) ** 0.5
        self.value -= 0.1 * self.first / (1 - 0.9**self.step) / (root + 1e-8)

    def assign(self, grads: list[float]) -> None:
        self.value = sum(grads)


def check_each_element(rule: str, update: str | Updater, reduce: str | Reducer, rounds: Rounds) -> None:
    slot, elements, steps = make_slot(SIZE, "float64", reduce, update), [Element() for _ in range(SIZE)], [0] * SIZE
    for number, (ranges, is_pinned) in enumerate(rounds):
        pieces = [
            (lo, np.arange(lo, hi, dtype=np.float64) * (index + 1) - number - 3.5)
            for index, (lo, hi) in enumerate(ranges)
        ]
        held = slot.block.array.copy(), slot.block
        old = push(slot, *pieces, is_pinned=is_pinned)
        for i, element in enumerate(elements):
            grads = [data[i - lo] for lo, data in pieces if lo <= i < lo + data.size]
            if grads:
                steps[i] += 1
                getattr(element, rule)(grads)
        if is_pinned and any(data.size for _, data in pieces):
            assert old is held[1]
            np.testing.assert_array_equal(held[1].array, held[0])
        np.testing.assert_allclose(value(slot), [each.value for each in elements], rtol=1e-9, atol=1e-12)
    if slot.updater.counts_steps:
        assert [step for lo, hi, step in slot.spans for _ in range(lo, hi)] == steps


@settings(deadline=None, max_examples=60)
@given(ROUNDS)
def test_dampened_momentum_over_any_ranges_is_what_each_element_would_do_alone(
    rounds: Rounds,
) -> None:
    check_each_element("sgd", SGD(lr=0.125, momentum=0.5, dampening=0.25), "sum", rounds)


@settings(deadline=None, max_examples=60)
@given(ROUNDS)
def test_adam_over_any_ranges_is_what_each_element_would_do_alone(
    rounds: Rounds,
) -> None:
    check_each_element("adam", Adam(lr=0.1), "sum", rounds)


@settings(deadline=None, max_examples=40)
@given(ROUNDS, st.sampled_from(["sum", PLAIN_SUM]))
def test_assign_over_any_ranges(rounds: Rounds, reduce: str | Reducer) -> None:
    check_each_element("assign", "assign", reduce, rounds)


@settings(deadline=None, max_examples=40)
@given(ROUNDS, st.sampled_from(["sum", PLAIN_SUM]))
def test_a_users_updater_over_any_ranges(
    rounds: Rounds, reduce: str | Reducer
) -> None:
    check_each_element("sgd", PlainSGD(lr=0.125, momentum=0.5, dampening=0.25), reduce, rounds)


@settings(deadline=None, max_examples=40)
@given(ROUNDS)
def test_a_users_reducer_under_a_built_in_optimizer(rounds: Rounds) -> None:
    check_each_element("adam", Adam(lr=0.1), PLAIN_SUM, rounds)
