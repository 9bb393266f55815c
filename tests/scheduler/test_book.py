"""The scheduler's book of one workload: every batch is given out, and done, once."""

import random

from hypothesis import given
from hypothesis import strategies as st

from windlass._wire.messages import Workload
from windlass.consistency import Counted
from windlass.scheduler.book import SLOW_SECONDS, Book
from windlass.types import Incarnation

A, B, C = Incarnation(10), Incarnation(11), Incarnation(12)
CREW = (A, B, C)


def workload(size=10, batch_size=1, epochs=1, step_batches=0):
    return Workload(name="p", size=size, batch_size=batch_size, epochs=epochs, step_batches=step_batches)


def test_an_epoch_gives_out_every_batch_once_and_then_the_next_begins():
    book = Book(workload(size=7, batch_size=2, epochs=2), Counted())
    given = []
    while batches := book.give(A, 0.0, CREW):
        given += batches
        book.finish(A, batches, 1.0)
    assert given == [0, 1, 2, 3]
    assert book.is_epoch_done
    book.end_epoch()
    assert not book.is_over
    assert book.give(B, 2.0, CREW) == (4,)


def test_what_a_lost_worker_held_is_doubted_until_the_servers_have_told():
    book = Book(workload(size=3), Counted())
    assert book.give(A, 0.0, CREW) + book.give(B, 0.0, CREW) == (0, 1)
    book.lose(A)
    book.finish(B, (1,), 1.0)
    assert book.doubted == {0}
    assert not book.is_epoch_done
    book.settle({0}, [])
    assert book.give(B, 1.0, CREW) == (0,), "what is missing goes out first"
    book.lose(B)
    book.settle({0}, [0])
    assert book.give(C, 1.0, CREW) == (2,)
    book.finish(C, (2,), 2.0)
    assert book.is_epoch_done


def test_a_slow_workers_batch_goes_to_another_too_but_only_where_nobody_waits_for_rounds():
    book = Book(workload(size=1), Counted())
    assert book.give(A, 0.0, CREW) == (0,)
    assert book.give(B, SLOW_SECONDS + 1, CREW) == ()
    book.may_copy = True
    assert book.give(B, SLOW_SECONDS - 1, CREW) == ()
    assert book.give(B, SLOW_SECONDS + 1, CREW) == (0,)
    assert book.give(C, SLOW_SECONDS + 1, CREW) == (), "one copy is enough"
    book.finish(B, (0,), SLOW_SECONDS + 2)
    assert book.is_epoch_done


@given(size=st.integers(1, 40), batch=st.integers(1, 4), step=st.integers(1, 6), seed=st.integers(0, 1000))
def test_all_workers_together_take_so_many_batches_for_a_step_however_many_they_are(size, batch, step, seed):
    rng = random.Random(seed)
    book = Book(workload(size=size, batch_size=batch, step_batches=step), Counted())
    seen = []
    while not book.is_epoch_done:
        crew = rng.sample(CREW, rng.randint(1, 3))
        taken = {who: book.give(who, 0.0, crew) for who in crew}
        assert not any(book.give(who, 0.0, crew) for who in crew if not taken[who]), "the next step waits for this one"
        together = [batch for batches in taken.values() for batch in batches]
        left = book.workload.epoch_batches - len(seen)
        assert len(together) == min(step, left)
        assert max(map(len, taken.values())) - min(map(len, taken.values())) <= 1, "shares are as equal as can be"
        for who, batches in taken.items():
            book.finish(who, batches, 1.0)
        seen += together
    assert sorted(seen) == list(range(book.workload.epoch_batches))


def test_a_share_that_nobody_comes_for_is_done_in_the_end():
    book = Book(workload(size=6, step_batches=3), Counted())
    given = []
    while batches := book.give(A, 0.0, (A, B)):
        given += batches
        book.finish(A, batches, 1.0)
    assert sorted(given) == list(range(6))
    assert book.is_epoch_done


@given(seed=st.integers(0, 100_000), step=st.sampled_from([0, 0, 2, 3]))
def test_whatever_happens_to_workers_every_batch_counts_and_the_epoch_ends(seed, step):
    """Workers take, finish, die before or after their push counted, and claim what an earlier scheduler gave them."""
    rng = random.Random(seed)
    book = Book(workload(size=12, step_batches=step), Counted())
    counted: set[int] = set()
    holding: dict[Incarnation, tuple[int, ...]] = {}
    for _ in range(400):
        if book.is_epoch_done:
            break
        who = rng.choice(CREW)
        held = holding.get(who)
        if held is None:
            batches = book.give(who, 0.0, CREW)
            if batches:
                holding[who] = batches
        elif rng.random() < 0.6:
            counted.update(held)
            book.finish(who, holding.pop(who), 0.0)
        else:
            if rng.random() < 0.5:
                counted.update(held)
            del holding[who]
            book.lose(who)
        if book.doubted and rng.random() < 0.5:
            book.settle(set(book.doubted), counted)
    assert book.is_epoch_done
    assert counted == set(range(12))
