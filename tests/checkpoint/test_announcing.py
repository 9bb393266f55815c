"""Which round a saver announces, and what it learns from one that did not do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from windlass.store.reduce import reducer_rule
from windlass.store.update import updater_rule
from windlass.types import Incarnation, KeyId, KeySpec, Sequential
from windlass.worker.ops import KeyInfo
from windlass.worker.snapshot import NEAR_ROUNDS, Announcer


def keys(*counts: int, together: str = "") -> dict[KeyInfo, int]:
    made = {}
    for number, count in enumerate(counts):
        spec = KeySpec(
            name=f"k{number}", shape=(1,), dtype="float32", reduce=reducer_rule("sum"), update=updater_rule("add"),
            consistency=Sequential(), chunk_bytes=4096, together=together,
        )  # fmt: skip
        made[KeyInfo(KeyId(number + 1), spec, [(Incarnation(1),)])] = count
    return made


def goals(announcer: Announcer, counts: dict[KeyInfo, int]) -> list[int]:
    found = announcer.announce(counts)
    return [found[key] for key in counts]


def test_keys_that_are_pushed_together_get_the_highest_round_of_them():
    assert goals(Announcer(), keys(10, 9, 10)) == [10, 10, 10]
    assert goals(Announcer(), keys(0, 0)) == [0, 0]


def test_keys_that_are_far_from_each_other_get_rounds_of_their_own():
    assert goals(Announcer(), keys(3, 100, 99, 2)) == [3, 100, 100, 3]
    assert goals(Announcer(margin=2), keys(3, 100, 99, 2)) == [5, 102, 102, 5]


def test_a_missed_round_is_announced_further_ahead_the_next_time():
    announcer, counts = Announcer(), keys(10, 10)
    ahead = []
    for _ in range(4):
        announcer.missed(next(iter(counts)))
        ahead.append(goals(announcer, counts))
    assert ahead == [[11, 11], [12, 12], [14, 14], [18, 18]]


def test_a_key_that_did_not_come_is_taken_as_it_is_until_it_moves_again():
    announcer, counts = Announcer(margin=4), keys(10, 9)
    first, second = counts
    announcer.stayed_behind([second], counts)
    assert goals(announcer, counts) == [14, 9]
    announcer.missed(second)
    assert (goals(announcer, counts), announcer.margin) == ([14, 14], 4)
    assert first.id not in announcer.quiet


def test_keys_that_belong_together_are_not_taken_as_they_are_while_one_is_ahead():
    """It is the middle of a long step."""
    announcer, counts = Announcer(), keys(10, 9, 10, together="model")
    _, second, _ = counts
    announcer.stayed_behind([second], counts)
    assert goals(announcer, counts) == [10, 10, 10]


def test_keys_that_belong_together_are_taken_as_they_are_when_nobody_pushes_any_of_them():
    announcer, counts = Announcer(margin=1), keys(10, 10, together="model")
    announcer.stayed_behind(counts, counts)
    assert goals(announcer, counts) == [10, 10]
    first, second = counts
    assert goals(announcer, {first: 11, second: 10}) == [11, 11]  # they were pushed after all
    announcer.missed(first)
    assert goals(announcer, {first: 12, second: 11}) == [13, 13]


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=8), margin=st.integers(0, 3))
def test_keys_that_belong_together_always_have_one_round(counts, margin):
    assert set(goals(Announcer(margin), keys(*counts, together="model"))) == {max(counts) + margin}


@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=8), margin=st.integers(0, 3))
def test_no_key_is_asked_for_a_round_that_has_gone_by_and_neighbours_agree(counts, margin):
    made = keys(*counts)
    found = Announcer(margin).announce(made)
    ordered = sorted(made, key=lambda key: made[key])
    assert all(found[key] >= made[key] + margin for key in made)
    for below, above in pairwise(ordered):
        assert (found[below] == found[above]) == (made[above] - made[below] <= NEAR_ROUNDS)
