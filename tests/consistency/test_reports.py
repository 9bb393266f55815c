"""What shards report to the keeper of a key, over links and around cuts, in whatever order it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.consistency import Keeper
from windlass.types import Generation, Incarnation

A, B = Incarnation(1), Incarnation(2)
LIVE = (A, B)


def _said() -> list[tuple[int, Generation, tuple[Incarnation, ...]]]:
    """One head's reports, in the order in which it made them."""
    return [
        (1, Generation(1, 1), (A,)),
        (1, Generation(1, 1), (A, B)),
        (1, Generation(1, 2), (A, B)),
        (2, Generation(1, 2), (A, B)),
        (2, Generation(2, 1), (A,)),
        (2, Generation(2, 1), (A, B)),
    ]


@given(order=st.permutations(range(len(_said()))))
def test_a_report_that_comes_late_takes_nothing_back(order: list[int]) -> None:
    keeper = Keeper(2)
    for which in order:
        keeper.report(0, *_said()[which])
    keeper.report(1, *_said()[-1])
    assert keeper.verdict(2, Generation(2, 1), LIVE) == {A, B}
