"""What shards report to the keeper of a key, over links and around cuts, in whatever order it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.consistency import Keeper
from windlass.consistency.rounds import Report
from windlass.types import Generation, Incarnation

A, B, C = (Incarnation(number) for number in (1, 2, 3))
LIVE = (A, B)
NOW = Generation(2, 1)


def report(
    generation: Generation, round: int, draft: int, drafted: set[Incarnation], members: set[Incarnation]
) -> Report:
    return Report(generation, round, draft, frozenset(drafted), frozenset(members))


SAID = [
    report(Generation(1, 1), 1, 1, {A}, {A}),
    report(Generation(1, 1), 1, 1, {A}, {A, B}),
    report(Generation(1, 1), 1, 2, {A, B}, {A, B}),
    report(Generation(1, 2), 1, 2, {A, B}, {A, B}),
    report(Generation(1, 2), 2, 1, {A, C}, {A, C}),
    report(NOW, 2, 1, {A, C}, {A, C}),
    report(NOW, 2, 1, {A, C}, {A, B, C}),
    report(NOW, 2, 2, {A, B}, {A, B}),
]
"""One head's reports, in the order in which it made them."""


@given(order=st.permutations(range(len(SAID))))
def test_a_report_that_comes_late_takes_nothing_back(order: list[int]) -> None:
    keeper = Keeper(2)
    for which in order:
        keeper.report(0, SAID[which])
    keeper.report(1, SAID[-1])
    members = keeper.verdict(2, NOW, LIVE)
    assert members == {A, B}
    assert keeper.others(members) == []


def test_shards_with_drafts_of_different_members_are_asked_for_those_that_all_have() -> None:
    """C has died; one shard has what it pushed, the other has not."""
    keeper = Keeper(2)
    keeper.report(0, report(NOW, 1, 1, {A, B, C}, {A, B, C}))
    keeper.report(1, report(NOW, 1, 3, {A, B}, {A, B}))
    members = keeper.verdict(1, NOW, LIVE)
    assert members == {A, B}
    assert keeper.others(members) == [(0, 1)]


def test_a_draft_that_all_have_counts_though_nobody_has_its_pieces_any_more() -> None:
    """C has died, and so has the head that had its pieces; the draft has come down the chain."""
    keeper = Keeper(2)
    keeper.report(0, report(NOW, 1, 1, {A, B, C}, {A, B, C}))
    keeper.report(1, report(NOW, 1, 1, {A, B, C}, {A, B}))
    members = keeper.verdict(1, NOW, LIVE)
    assert members == {A, B, C}
    assert keeper.others(members) == []


def test_a_draft_that_all_have_does_not_count_without_a_worker_that_came_since() -> None:
    keeper = Keeper(2)
    keeper.report(0, report(NOW, 1, 1, {A}, {A, B}))
    keeper.report(1, report(NOW, 1, 1, {A}, {A}))
    assert keeper.verdict(1, NOW, LIVE) is None
    keeper.report(1, report(NOW, 1, 1, {A}, {A, B}))
    members = keeper.verdict(1, NOW, LIVE)
    assert members == {A, B}
    assert keeper.others(members) == [(0, 1), (1, 1)]
