"""A slot that is frozen goes on, and what is kept of it does not change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windlass as wl
from windlass.store.dense import Contribution, DenseSlot
from windlass.store.reduce import reducer_rule, resolve_reducer
from windlass.types import STORAGE, Block, Heap

SIZE = 12


@dataclass(frozen=True)
class Remembers(wl.Updater):
    """A rule that makes its state as it goes."""

    def update(self, value, grad, state, step):
        state.setdefault("seen", np.zeros_like(value))
        state["seen"] += grad
        value -= state["seen"]


UPDATERS = {
    "adam": wl.Adam(lr=0.1), "momentum": wl.SGD(lr=0.1, momentum=0.9), "plain": wl.SGD(lr=0.1), "own": Remembers(),
}  # fmt: skip


class Kept:
    """What the server does: the block is pinned for as long as somebody keeps it."""

    def __init__(self, slot: DenseSlot) -> None:
        self.frozen = slot.freeze()
        arrays, self.meta = slot.dump()
        self.arrays = arrays
        self.block: Block = self.frozen.block

    def check(self, slot: DenseSlot) -> None:
        now = slot.frozen_arrays(self.frozen)
        assert list(now) == list(self.arrays)
        for name, expected in self.arrays.items():
            assert np.array_equal(now[name], expected), name
        assert self.frozen.meta == self.meta


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("updater", UPDATERS)
@settings(deadline=None, max_examples=40)
@given(
    acts=st.lists(
        st.sampled_from(["freeze", "thaw", "push", "part", "write", "restore"]) | st.integers(0, SIZE - 1), max_size=14
    )
)
def test_what_is_frozen_stays_as_it_was_whatever_becomes_of_the_slot(updater, dtype, acts):
    reducer = resolve_reducer(reducer_rule("sum"), {})
    slots = [
        DenseSlot(size=SIZE, dtype=dtype, reducer=reducer, updater=UPDATERS[updater], memory=Heap()) for _ in range(2)
    ]
    slot, plain = slots  # the second is never frozen: it must go the same way
    kept: list[Kept] = []
    number = 1
    for act in acts:
        number += 1
        data = np.full(SIZE, number / 8, STORAGE[dtype])
        lo, hi = (0, SIZE) if not isinstance(act, int) else (act, min(SIZE, act + 4))
        if act == "freeze":
            kept.append(Kept(slot))
        elif act == "thaw" and kept:
            slot.thaw(kept.pop(0).frozen)
        for one in slots:
            is_pinned = one is slot and any(each.block is one.block for each in kept)
            if act == "write":
                one.write(2, 7, data[2:7], is_pinned=is_pinned)
            elif act == "restore":
                one.restore(*one.dump(), is_pinned=is_pinned)
            elif act in ("push", "part") or isinstance(act, int):
                one.apply([Contribution(lo, hi, data[lo:hi])], divisor=1, hyper=None, is_pinned=is_pinned)
        for each in kept:
            each.check(slot)
    for name, array in plain.dump()[0].items():
        assert np.array_equal(slot.dump()[0][name], array)


def test_state_is_copied_only_while_somebody_keeps_it():
    reducer = resolve_reducer(reducer_rule("sum"), {})
    slot = DenseSlot(size=SIZE, dtype="float32", reducer=reducer, updater=wl.Adam(lr=0.1), memory=Heap())
    push = [Contribution(0, SIZE, np.ones(SIZE, np.float32))]
    state = slot.state["exp_avg"]
    slot.thaw(slot.freeze())
    slot.apply(push, divisor=1, hyper=None, is_pinned=False)
    assert slot.state["exp_avg"] is state
    first, second = slot.freeze(), slot.freeze()
    slot.thaw(first)
    slot.apply(push, divisor=1, hyper=None, is_pinned=True)
    assert slot.state["exp_avg"] is not state
    slot.thaw(second)
    state = slot.state["exp_avg"]
    slot.apply(push, divisor=1, hyper=None, is_pinned=False)
    assert slot.state["exp_avg"] is state
