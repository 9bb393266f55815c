"""Which leases a shard has counted."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.consistency import Counted, CountedBatches

numbers = st.lists(st.integers(0, 30))


@given(numbers)
def test_counted_numbers_are_a_set_however_they_come(added):
    counted = Counted()
    for number in added:
        counted.add(number)
    assert {number for number in range(40) if number in counted} == set(added)
    assert len(counted) == len(set(added))
    again = Counted(counted.floor, counted.above)
    assert (again.floor, again.above) == (counted.floor, counted.above)


def test_what_is_taken_is_not_free_but_not_told_to_a_learner_either():
    batches = CountedBatches()
    batches.take("p", (1, 2))
    assert not batches.is_free("p", (2, 3))
    assert batches.is_free("p", (3,))
    assert batches.is_free("q", (1,))
    assert batches.dump() == {}
    batches.count("p", (1,))
    batches.give_up()
    assert batches.is_free("p", (2,))
    assert not batches.is_free("p", (1,))
    learner = CountedBatches()
    learner.load(batches.dump(), {})
    assert not learner.is_free("p", (1,))


def test_a_batch_that_is_in_two_entries_is_noted_and_a_learner_is_told():
    batches = CountedBatches()
    batches.count("p", (0, 1))
    batches.count("p", (2,))
    assert batches.repeats == {}
    batches.count("p", (1, 3))
    assert (batches.repeats, batches.dump()) == ({"p": 1}, {"p": [4, []]})
    learner = CountedBatches()
    learner.load(batches.dump(), batches.repeats)
    learner.count("p", (1,))
    assert learner.repeats == {"p": 2}
