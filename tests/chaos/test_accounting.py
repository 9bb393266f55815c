"""The books are compared: what was lost or counted twice is found, and nothing else."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass._ledger import Faults, Ledger, Phase, open_ledger
from windlass.chaos.accounting import (
    Books,
    Finding,
    Findings,
    Samples,
    Shard,
    Tally,
    count_samples,
    judge,
    read_books,
    read_shards,
    tallies,
)
from windlass.chaos.report import Fault, Report
from windlass.errors import ClusterError
from windlass.types import Incarnation

ALICE, BOB, KEY = 101, 102, 7
SIZES = (600, 400)  # elements of the two shards of the key


def _tally(who: int, *, acked: int, begun: int) -> Tally:
    """Of one who pushes the whole key."""
    size = sum(SIZES)
    return Tally(
        incarnation=who, key=KEY, begun_elements=begun * size, acked_clock=acked, acked_pushes=acked,
        acked_elements=acked * size,
    )  # fmt: skip


def _books(counts: dict[int, tuple[int, int]], *tally: Tally, departed: tuple[int, ...] = ()) -> Books:
    """`counts`: how many pushes each shard has counted of whom."""
    shards = tuple(
        Shard(
            applied={who: count[n] for who, count in counts.items() if who not in departed},
            counted={who: count[n] * SIZES[n] for who, count in counts.items()},
        )
        for n in range(2)
    )
    return Books(tally, tally, {KEY: shards}, {KEY: "w", ALICE: "worker-0", BOB: "worker-1"})


@given(st.data())
def test_what_was_promised_is_found_in_order(data: st.DataObject) -> None:
    """Acknowledged pushes count once on every shard; one that is under way may be on some."""
    acked = {who: data.draw(st.integers(0, 50)) for who in (ALICE, BOB)}
    extra = {who: tuple(data.draw(st.integers(0, 1)) for _ in SIZES) for who in acked}
    counts = {who: (acked[who] + extra[who][0], acked[who] + extra[who][1]) for who in acked}
    departed = tuple(data.draw(st.sets(st.sampled_from([ALICE, BOB]))))
    tally = [_tally(who, acked=acked[who], begun=acked[who] + 1) for who in acked]
    found = judge(_books(counts, *tally, departed=departed))
    assert (found.lost, found.twice, found.unjudged) == ((), (), "")
    assert found.num_acked == sum(acked.values())


@given(st.integers(1, 50), st.integers(0, 1), st.booleans())
def test_an_acknowledged_push_that_a_shard_lacks_is_lost(acked: int, shard: int, has_left: bool) -> None:
    counts = [acked, acked]
    counts[shard] -= 1
    books = _books(
        {ALICE: (counts[0], counts[1]), BOB: (3, 3)},
        _tally(ALICE, acked=acked, begun=acked),
        _tally(BOB, acked=3, begun=3),
        departed=(ALICE,) if has_left else (),
    )
    (finding,) = judge(books).lost
    assert (finding.worker, finding.key, finding.pushes) == ("worker-0", "w", 1)
    assert judge(books).twice == ()


@given(st.integers(1, 50), st.integers(0, 1))
def test_a_push_that_counts_twice_on_a_shard_is_found_though_no_clock_moved(acked: int, shard: int) -> None:
    books = _books({ALICE: (acked, acked)}, _tally(ALICE, acked=acked, begun=acked))
    shards = list(books.shards[KEY])
    kept = shards[shard]
    assert kept is not None
    shards[shard] = Shard(applied=kept.applied, counted={ALICE: kept.counted[ALICE] + SIZES[shard]})
    (finding,) = judge(replace(books, shards={KEY: tuple(shards)})).twice
    assert finding.pushes == 1
    assert finding.reason == f"{SIZES[shard]} elements more are in the value than were ever pushed"


def test_losing_one_push_and_counting_another_twice_does_not_even_out() -> None:
    books = _books({ALICE: (9, 9), BOB: (11, 11)}, _tally(ALICE, acked=10, begun=10), _tally(BOB, acked=10, begun=10))
    found = judge(books)
    assert [one.worker for one in found.lost] == ["worker-0"]
    assert [one.worker for one in found.twice] == ["worker-1"]
    books = _books({ALICE: (9, 11)}, _tally(ALICE, acked=10, begun=10))
    assert judge(books).lost[0].reason == "push 10 was acknowledged, and a shard has counted 9"


def test_a_lost_shard_takes_all_its_pushes_with_it() -> None:
    books = _books({ALICE: (5, 5)}, _tally(ALICE, acked=5, begun=5))
    (finding,) = judge(replace(books, shards={KEY: (books.shards[KEY][0], None)})).lost
    assert (finding.pushes, finding.reason) == (5, "1 of 2 shards of the key are lost")


def test_pushes_on_a_deleted_key_are_not_judged_and_counted_as_such() -> None:
    found = judge(replace(_books({}, _tally(ALICE, acked=5, begun=5)), shards={}))
    assert (found.lost, found.num_deleted_keys) == ((), 1)


def test_pushes_that_go_on_while_the_books_are_read_are_no_mistake() -> None:
    """The servers are asked between the two readings."""
    books = _books({ALICE: (8, 8)}, _tally(ALICE, acked=5, begun=6))
    assert judge(books).twice
    assert not judge(replace(books, after=(_tally(ALICE, acked=9, begun=10),))).twice


def _heads(*shards: tuple[list[Any], int]) -> dict[str, Any]:
    """What a cluster says of itself whose first epoch, of five batches of two samples, is done."""
    counts = {
        number: {"is_head": True, "batches": {"work": counted}, "repeats": {"work": repeats} if repeats else {}}
        for number, (counted, repeats) in enumerate(shards)
    }
    work = {"name": "work", "size": 10, "batch_size": 2, "epoch": 1}
    return {"workloads": {"work": work}, "servers": {"server-0": {"keys": {"w": {"counts": counts}}}}}


def test_a_sample_is_missed_if_one_shard_lacks_it_and_repeated_if_one_has_it_twice() -> None:
    assert count_samples({}) is None
    assert count_samples(_heads(([5, []], 0), ([7, []], 0))) == Samples(repeated=0, missed=0, total=10)
    assert count_samples(_heads(([5, []], 0), ([2, [3, 4]], 0))) == Samples(repeated=0, missed=2, total=10)
    assert count_samples(_heads(([1, [2, 3, 4]], 0), ([2, [3, 4]], 0))) == Samples(repeated=0, missed=4, total=10)
    assert count_samples(_heads(([5, []], 0), ([5, []], 3))) == Samples(repeated=6, missed=0, total=10)


# --- reading them -----------------------------------------------------------------------------------------------------


def _said(is_head: bool) -> dict[str, Any]:
    counts = {0: {"is_head": is_head, "version": 3, "applied": {ALICE: 3}, "counted": {ALICE: 3000}}}
    return {
        "keys": {"w": {"id": KEY, "shards": [["server-1", "server-0"]]}},
        "servers": {"server-1": {"keys": {"w": {"counts": counts}}}},
        "nodes": [{"incarnation": ALICE, "name": "worker-0"}],
    }


def test_only_the_head_of_a_chain_is_believed() -> None:
    assert read_shards(_said(True)) == ({KEY: (Shard(applied={ALICE: 3}, counted={ALICE: 3000}),)}, [])
    assert read_shards(_said(False))[1] == ["server-1 does not speak for shard 0 of 'w' yet"]


def test_a_shard_that_changes_hands_is_asked_again() -> None:
    answers = iter([_said(False), ClusterError("the manager is away"), _said(True)])

    def ask() -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with_rows = Ledger.make()
    books, said = read_books(with_rows.rows, ask, 5.0)
    with_rows.close()
    assert books.gaps == ()
    assert books.names == {KEY: "w", ALICE: "worker-0"}
    assert said["keys"]["w"]["id"] == KEY


def test_books_are_not_waited_for_longer_than_somebody_asks() -> None:
    """It is asked for while they are being read: without that it takes a minute."""
    asked: list[float] = []

    def ask() -> dict[str, Any]:
        asked.append(time.monotonic())
        return _said(False)

    ledger = Ledger.make()
    books, _ = read_books(ledger.rows, ask, 60.0, lambda: 0.0 if len(asked) == 3 else math.inf)
    ledger.close()
    assert len(asked) == 3
    assert books.gaps == ("server-1 does not speak for shard 0 of 'w' yet",)


def test_a_verdict_counts_one_push_and_many() -> None:
    about = {"worker": "worker-0", "key": "w", "reason": "it is missing"}
    reasons = [
        Report(seed=1, seconds=1.0, findings=Findings(lost=(Finding(pushes=pushes, **about),))).reason
        for pushes in (1, 2000)
    ]
    assert reasons == [
        "1 acknowledged push lost, 0 counted twice",
        "2,000 acknowledged pushes lost, 0 counted twice",
    ]


def test_books_that_cannot_be_read_prove_nothing() -> None:
    def ask() -> dict[str, Any]:
        raise ClusterError("the manager cannot be reached")

    ledger = Ledger.make()
    books, _ = read_books(ledger.rows, ask, 0.0)
    ledger.close()
    report = Report(seed=1, seconds=1.0, faults=(Fault(what="kill", who="server-0", at=0.0),), findings=judge(books))
    assert not report.ok
    assert report.status == 1
    assert report.reason == "the books could not be compared: the manager cannot be reached"


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_a_ledger_is_read_by_whoever_opens_it_while_its_maker_has_it() -> None:
    ledger = Ledger.make()
    other = open_ledger(ledger.path)
    assert other is not None
    row = other.row(Incarnation(ALICE), KEY)
    assert row is not None
    row.begin(1000)
    row.begin(1000)
    row.acknowledge(1, 1000, 10.0, 10.5)
    (tally,) = tallies(ledger.rows())
    assert tally == Tally(
        incarnation=ALICE, key=KEY, begun_elements=2000, acked_clock=1, acked_pushes=1, acked_elements=1000
    )
    assert ledger.rows()["longest_seconds"][0] == pytest.approx(0.5)
    faults = Faults(drop=0.5, delay_seconds=0.1, nodes=frozenset({1, 2}), sides=((1,), (2,)), until=5.0)
    ledger.write_faults(faults)
    assert other.read_faults() == (2, faults)
    other.tell(Phase.ENDED)
    assert ledger.phase is Phase.ENDED
    assert not other.await_judged(0.0)
    ledger.tell(Phase.JUDGED)
    assert other.await_judged(1.0)
    path = ledger.path
    other.close()
    ledger.close()
    assert open_ledger(path) is None


def test_rows_are_everybodys_own() -> None:
    ledger = Ledger.make()
    rows = [ledger.row(Incarnation(number), KEY) for number in range(100)]
    for number, row in enumerate(rows):
        assert row is not None
        row.begin(number)
    assert np.array_equal(ledger.rows()["begun_elements"], np.arange(100))
    ledger.close()
