"""What is read ahead of own pushes misses no more, when it is used, than its key allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windlass as wl
from windlass.consistency import Clocks, may_pull
from windlass.types import Incarnation

COUNTS = st.integers(0, 12)


@given(clocks=st.lists(COUNTS, min_size=1, max_size=4), clock=COUNTS, delay=st.integers(1, 4), data=st.data())
def test_a_bounded_pull_waits_until_others_are_where_they_must_be_when_it_is_used(clocks, clock, delay, data):
    ahead = data.draw(st.integers(0, delay))
    known = Clocks()
    for who, pushes in enumerate(clocks):
        known.start(Incarnation(who), pushes)
    live = [Incarnation(who) for who in range(len(clocks))]
    verdict = may_pull(wl.Bounded(delay), live[0], clock, rounds=0, clocks=known, live=live, ahead=ahead)
    assert verdict.admit == (clocks[0] >= clock and min(clocks) >= clock + ahead - delay)


@given(clocks=st.lists(COUNTS, min_size=1, max_size=4), delay=st.integers(1, 4), data=st.data())
def test_whoever_has_pushed_least_never_waits_for_another(clocks, delay, data):
    ahead = data.draw(st.integers(0, delay))
    known = Clocks()
    for who, pushes in enumerate(clocks):
        known.start(Incarnation(who), pushes)
    live = [Incarnation(who) for who in range(len(clocks))]
    slowest = min(live, key=lambda who: clocks[who])
    pull = may_pull(wl.Bounded(delay), slowest, clocks[slowest], rounds=0, clocks=known, live=live, ahead=ahead)
    assert pull.admit


def test_a_key_that_allows_less_refuses_it():
    with wl.Store() as store:
        store.create("strict", np.zeros(2, np.float32), update="add")
        store.create("bounded", np.zeros(2, np.float32), update="add", consistency=wl.Bounded(2))
        store.create("eventual", np.zeros(2, np.float32), update="add", consistency=wl.Eventual())
        for key, ahead in (("strict", 1), ("bounded", 3)):
            with pytest.raises(wl.UsageError, match=f"'{key}' is .* {ahead} push(es)? ahead misses "):
                store.pull(key, ahead=ahead)
        with pytest.raises(wl.UsageError, match="ahead expects a whole number of pushes, got -1"):
            store.pull("eventual", ahead=-1)
        assert store.pull("strict", ahead=0).tolist() == [0, 0]
        early = store.pull("bounded", ahead=2, wait=False)
        store.push("bounded", np.ones(2, np.float32)).wait()
        assert early.wait().tolist() in ([0, 0], [1, 1])
        assert store.pull(["eventual", "bounded"], ahead=1)[1].tolist() == [1, 1]
