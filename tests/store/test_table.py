"""What a slot of a table promises: rows by id, made when they are pushed to, let go when they are told to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.tables import bits, make_table, mixed, pull, push
from windlass.errors import UsageError
from windlass.store import row_kernels, table_kernels
from windlass.store.ageing import LAST_TICK, Limits
from windlass.store.initial import Constant, Normal
from windlass.store.reduce import BUILT_IN
from windlass.store.table import Batch, Contribution, warm_table
from windlass.store.table_options import TableOptions
from windlass.store.update import FTRL, SGD, Adagrad, RowwiseAdagrad, Updater
from windlass.types import Array, Block, Heap

EDGES = [0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32)]


def test_any_int64_is_an_id_and_what_comes_twice_is_added_up_first():
    table = make_table(TableOptions(dim=2), update=SGD(lr=1.0, momentum=0.5))
    push(table, [*EDGES, 0, 0])
    assert pull(table, EDGES).tolist() == [[-3.0, -3.0], *[[-1.0, -1.0]] * 6]
    assert table.num_rows == 7


def test_a_row_that_is_only_pulled_is_never_made_and_looks_as_it_would_start():
    table = make_table(TableOptions(dim=3, init=Normal(0.1)), update=SGD(lr=1.0))
    before = pull(table, [5, -5])
    assert table.num_rows == 0
    push(table, [-5], 0.0)
    assert np.array_equal(pull(table, [5, -5]), before)
    assert table.num_rows == 1


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(12)))
def test_rows_and_dumps_do_not_depend_on_the_order_in_which_ids_first_came(order):
    one, other = (make_table(TableOptions(dim=2, init=Normal(0.1)), update=Adagrad()) for _ in range(2))
    push(one, range(12))
    for number in order:
        push(other, [number])
    assert bits(one) == bits(other)


@pytest.mark.parametrize("admit_after", [1, 2])
def test_a_broken_promise_that_ids_are_unique_costs_a_step_and_breaks_nothing(admit_after):
    table = make_table(TableOptions(dim=1, admit_after=admit_after, limits=Limits(max_rows=3)), update=SGD(lr=1.0))
    ids, rows = np.array([5, 5, 6, 5]), np.ones((4, 1), np.float32)
    for _ in range(3):
        table.apply([Contribution(ids, rows, is_unique=True)], divisor=1, hyper=None, now=0.0)
    assert table.ids_between(0, 10).tolist() == [5, 6]
    assert (table.num_rows, table.num_candidates) == (2, 0)
    assert pull(table, [6]).tolist() == [[admit_after - 4.0]]
    table.restore(*table.dump())


def test_an_index_of_many_ids_finds_each_of_them_and_no_other():
    rng = np.random.default_rng(0)
    ids = np.unique(rng.integers(-(2**63), 2**63, 150_000))
    here, gone = ids[::2], ids[1::2]
    table = make_table(TableOptions(dim=1), update="assign")
    for part in np.array_split(rng.permutation(here), 7):
        table.update(Batch(part, part.astype(np.float32)), hyper=None, now=0.0)
    assert table.num_rows == here.size
    assert np.array_equal(table.pull(here)[:, 0], here.astype(np.float32))
    assert not table.pull(gone).any()


def test_ids_between_are_those_with_a_row_in_order():
    table = make_table(TableOptions(dim=1))
    push(table, range(-500, 500, 5))
    assert table.ids_between(-7, 6).tolist() == [-5, 0, 5]
    assert table.ids_between(-3, 12).tolist() == [0, 5, 10]
    assert table.ids_between(-(2**63), -490).tolist() == [-500, -495]
    assert table.ids_between(7, 7).tolist() == []


def test_pages_give_every_row_once_while_others_come_and_the_index_grows():
    table = make_table(TableOptions(dim=1), update="assign")
    push(table, range(1000), 7.0)
    seen: list[int] = []
    for number, page in enumerate(table.pages(limit=64)):
        assert len(page.ids) <= 64
        assert (page.rows == 7.0).all()
        seen += [each for each in page.ids.tolist() if each < 1000]
        push(table, range(1000 * (number + 1), 1000 * (number + 1) + 30), 7.0)
    assert sorted(seen) == list(range(1000))


def test_half_rows_keep_what_rounding_takes_away():
    table = make_table(TableOptions(dim=1, dtype="float16", init=Constant(1.0)), update=SGD(lr=1.0))
    tiny = np.full((1, 1), 2.0**-12, np.float16)
    for _ in range(4):
        push(table, [3], tiny)
    assert pull(table, [3])[0, 0] == np.float16(1 - 2.0**-10)
    assert pull(table, [3]).dtype == np.float16


def test_a_large_slot_lets_go_of_the_oldest_and_is_the_same_after_a_dump():
    limits = Limits(max_rows=48_000)
    one, other = (make_table(TableOptions(dim=1, limits=limits), update="assign") for _ in range(2))
    rng = np.random.default_rng(0)
    used: dict[int, int] = {}
    for tick in range(12):
        ids = np.unique(rng.integers(0, 200_000, 10_000))
        for slot in (one, other):
            slot.update(Batch(ids, ids.astype(np.float32)), hyper=None, now=0.0)
        used |= dict.fromkeys(ids.tolist(), tick)
        if len(used) > limits.max_rows:
            oldest = sorted(used, key=lambda number: (used[number], mixed(number)))
            for number in oldest[: len(used) - 45_000]:
                del used[number]
        if tick == 6:
            other.restore(*one.dump())
    assert one.ids_between(0, 200_000).tolist() == sorted(used)
    assert np.concatenate([page.ids for page in one.pages(1000)]).tolist() == one.dump()[0]["ids"].tolist()
    assert bits(one) == bits(other)


# --- who gets a row ---------------------------------------------------------------------------------------------------


def test_an_id_has_a_row_only_after_so_many_pushes_and_what_came_before_is_dropped():
    table = make_table(TableOptions(dim=1, admit_after=3))
    for _ in range(2):
        push(table, [1, 2])
    assert (table.num_rows, table.num_candidates) == (0, 2)
    push(table, [1])
    push(table, [1])
    assert pull(table, [1, 2]).tolist() == [[2.0], [0.0]]
    assert (table.num_rows, table.num_candidates) == (1, 1)


def test_the_rows_that_were_not_pushed_to_for_longest_go_and_pulls_do_not_keep_them():
    table = make_table(TableOptions(dim=1, limits=Limits(max_rows=3)))
    for number in (1, 2, 3, 1):
        push(table, [number])
    pull(table, [2])
    push(table, [4])
    assert table.ids_between(0, 10).tolist() == [1, 3, 4]
    assert pull(table, [2]).tolist() == [[0.0]]


def test_rows_that_went_leave_their_memory_to_others():
    table = make_table(TableOptions(dim=64, limits=Limits(max_rows=1000)))
    for start in range(0, 2000, 500):
        push(table, range(start, start + 500))
    held = table.nbytes
    for start in range(2000, 20_000, 500):
        push(table, range(start, start + 500))
    assert table.nbytes <= held
    assert 900 < table.num_rows <= 1000


def test_a_row_lives_for_so_many_updates_that_do_not_touch_it():
    table = make_table(TableOptions(dim=1, limits=Limits(ttl_updates=2)))
    push(table, [1])
    for expected in ([1, 2], [1, 2], [2]):
        push(table, [2])
        assert table.ids_between(0, 10).tolist() == expected


def test_a_row_lives_for_so_many_seconds_and_at_most_a_sixteenth_longer():
    table = make_table(TableOptions(dim=1, limits=Limits(ttl_seconds=16.0)))
    push(table, [1], now=100.0)
    for now in (101.0, 110.0, 115.9):
        push(table, [2], now=now)
    assert table.ids_between(0, 10).tolist() == [1, 2]
    push(table, [2], now=117.0)
    assert table.ids_between(0, 10).tolist() == [2]
    table.expire(117.0 + 15.9)
    assert table.num_rows == 1
    table.expire(117.0 + 16.0)
    assert table.num_rows == 0


def test_no_row_goes_before_its_time_because_of_one_that_was_used_a_little_earlier():
    table = make_table(TableOptions(dim=1, limits=Limits(ttl_seconds=16.0)))
    for number, now in ((1, 100.0), (2, 100.9), (3, 101.5), (4, 116.5)):
        push(table, [number], now=now)
    assert table.ids_between(0, 10).tolist() == [1, 2, 3, 4]
    table.expire(116.9)
    assert table.ids_between(0, 10).tolist() == [3, 4]


def test_counts_of_pushes_grow_old_like_rows():
    table = make_table(TableOptions(dim=1, admit_after=2, limits=Limits(ttl_updates=1)))
    push(table, [1])
    push(table, [2])
    push(table, [2])
    push(table, [1])
    assert pull(table, [1, 2]).tolist() == [[0.0], [1.0]]


def test_ticks_are_renumbered_before_they_overflow_and_the_order_stays():
    table = make_table(TableOptions(dim=1, limits=Limits(max_rows=3)))
    push(table, [1])
    arrays, meta = table.dump()
    arrays["used"][:] = LAST_TICK - 5
    meta["ageing"]["tick"] = LAST_TICK - 3
    table.restore(arrays, meta)
    for number in (2, 3, 1, 4, 5):
        push(table, [number])
    assert table.dump()[1]["ageing"]["tick"] < 2**31 + 3
    assert table.ids_between(0, 10).tolist() == [1, 4, 5]


def test_what_is_written_is_there_admitted_or_not_and_state_stays():
    table = make_table(TableOptions(dim=1, admit_after=2), update=SGD(lr=1.0, momentum=0.5))
    push(table, [1, 2])
    push(table, [1])
    table.write(np.array([1, 2, 3]), np.array([[10.0], [20.0], [30.0]], np.float32), now=0.0)
    assert pull(table, [1, 2, 3]).tolist() == [[10.0], [20.0], [30.0]]
    assert (table.num_rows, table.num_candidates) == (3, 0)
    push(table, [1, 2])
    assert pull(table, [1, 2]).tolist() == [[8.5], [19.0]]


def test_a_candidate_counts_for_the_bytes_when_it_gets_its_row():
    table = make_table(TableOptions(dim=256, admit_after=2, max_bytes=100_000))
    push(table, range(500))
    before = bits(table)
    with pytest.raises(UsageError, match="outgrow max_bytes"):
        push(table, range(500))
    assert bits(table) == before


# --- what goes wrong --------------------------------------------------------------------------------------------------


def row(*numbers: float) -> Array:
    return np.array([numbers], np.float32)


@pytest.mark.parametrize(
    ("ids", "rows", "text"),
    [
        (np.zeros(1, np.int32), row(1, 2), "ids must be int64, got int32"),
        (np.zeros(1), row(1, 2), "ids must be int64, got float64"),
        (np.zeros(1, np.int64), row(1, 2, 3), "1 rows of 2 x float32 are 8 bytes, got 12"),
        (np.zeros(2, np.int64), row(1, 2), "2 rows of 2 x float32 are 16 bytes, got 8"),
        (np.zeros(1, np.int64), row(1, 2).astype(np.float64), "takes bytes or float32 elements, got float64"),
    ],
)
def test_a_batch_of_the_wrong_kind_is_refused_in_words_and_changes_nothing(ids, rows, text):
    table = make_table(TableOptions(dim=2))
    push(table, [0])
    before = bits(table)
    with pytest.raises(UsageError, match=text):
        table.apply([Contribution(ids, rows)], divisor=1, hyper=None, now=0.0)
    with pytest.raises(UsageError):
        table.apply([Contribution(ids, rows, is_unique=True)], divisor=1, hyper=None, now=0.0)
    assert bits(table) == before


def test_a_table_that_would_outgrow_its_bytes_refuses_the_whole_batch():
    table = make_table(TableOptions(dim=16, max_bytes=20_000), update=Adagrad())
    push(table, range(100))
    before = bits(table)
    with pytest.raises(UsageError, match=r"outgrow max_bytes: 200 rows .* need 32000 bytes, its share is 20000"):
        push(table, range(200))
    assert bits(table) == before
    push(table, range(100))  # what is there can still be pushed to


def test_more_bytes_are_not_asked_for_where_old_rows_go():
    table = make_table(TableOptions(dim=16, max_bytes=20_000, limits=Limits(max_rows=100)), update=Adagrad())
    for start in range(0, 1000, 50):
        push(table, range(start, start + 50))
    assert 50 < table.num_rows <= 100


@dataclass(frozen=True)
class Failing(Updater):
    state = ("seen",)

    def update(self, value: Array, grad: Array, state: dict[str, Array], step: int) -> None:
        value += grad
        if (grad < 0).any():
            raise ArithmeticError("negative")


def test_a_users_updater_that_raises_leaves_the_slot_as_it_was():
    table = make_table(TableOptions(dim=2, limits=Limits(max_rows=5)), update=Failing())
    push(table, [1, 2])
    before = bits(table)
    with pytest.raises(ArithmeticError):
        push(table, [1, 3], -1.0)
    assert bits(table) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (TableOptions(dim=0), "dim must be a whole number from 1"),
        (TableOptions(dim=2, dtype="int64"), "tables hold float32, float16, bfloat16, got dtype 'int64'"),
        (TableOptions(dim=2, admit_after=0), "admit_after must be a whole number from 1"),
        (TableOptions(dim=2, max_bytes=0), "max_bytes must be a whole number of at least 1"),
        (TableOptions(dim=2, limits=Limits(max_rows=0)), "max_rows must be a whole number of at least 1"),
        (TableOptions(dim=2, limits=Limits(ttl_updates=True)), "ttl_updates must be"),
        (TableOptions(dim=2, limits=Limits(ttl_seconds=-1)), "ttl_seconds must be a number above 0"),
    ],
)
def test_what_no_table_can_be_is_refused_when_it_is_declared(options, text):
    with pytest.raises(UsageError, match=text):
        make_table(options)


def test_numbers_that_need_steps_are_refused_where_none_are_counted():
    table = make_table(TableOptions(dim=2), update=Adagrad(lr=0.1))
    push(table, [1])
    before = bits(table)
    with pytest.raises(UsageError, match="depend on how many steps"):
        push(table, [1], hyper={"lr_decay": 0.5})
    assert bits(table) == before


def test_row_wise_adagrad_is_for_tables_and_keeps_one_number_a_row():
    arrays, _ = make_table(TableOptions(dim=16), update=RowwiseAdagrad()).dump()
    assert arrays["state.sum"].shape == (0,)
    with pytest.raises(UsageError, match="is for tables"):
        RowwiseAdagrad().check("float32", None)


# --- keeping and bringing back ----------------------------------------------------------------------------------------


def test_a_dump_of_another_kind_of_table_is_refused_and_the_slot_stays():
    table = make_table(TableOptions(dim=2), update=FTRL())
    push(table, [1])
    before = bits(table)
    for other, text in (
        (make_table(TableOptions(dim=3), update=FTRL()), "rows of 3 x float32"),
        (make_table(TableOptions(dim=2), update=Adagrad()), "made under another updater"),
    ):
        with pytest.raises(UsageError, match=text):
            table.restore(*other.dump())
    arrays, meta = table.dump()
    with pytest.raises(UsageError, match="has an id twice"):
        table.restore({name: np.concatenate([each, each]) for name, each in arrays.items()}, meta)
    with pytest.raises(UsageError, match="'value' should be of shape"):
        table.restore({**arrays, "value": arrays["value"][:0]}, meta)
    assert bits(table) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_warming_leaves_nothing_to_compile(dtype):
    options = TableOptions(dim=2, dtype=dtype)
    warm_table(options, BUILT_IN["sum"], Adagrad())
    kernels = [row_kernels.adagrad, row_kernels.pull, row_kernels.make, table_kernels.find, table_kernels.enter]
    before = [len(each.signatures) for each in kernels]
    table = make_table(options, update=Adagrad())
    readonly = np.zeros(3, np.int64)
    readonly.flags.writeable = False
    rows = np.zeros((3, 2), np.float32 if dtype == "float32" else np.uint16)
    table.apply([Contribution(readonly, rows, True)], divisor=1, hyper=None, now=0.0)
    table.pull(readonly)
    assert [len(each.signatures) for each in kernels] == before


class Counted(Heap):
    """Memory that knows what is out."""

    def __init__(self) -> None:
        super().__init__()
        self.out = 0

    def allocate(self, nbytes: int) -> Block:
        self.out += nbytes
        return super().allocate(nbytes)

    def free(self, block: Block) -> None:
        self.out -= block.array.nbytes
        super().free(block)


def test_all_memory_is_given_back():
    memory = Counted()
    table = make_table(TableOptions(dim=8), update=Adagrad(), memory=memory)
    push(table, range(5000))
    assert table.nbytes == memory.out > 5000 * 64
    table.restore(*table.dump())
    table.close()
    assert memory.out == 0


def test_a_large_table_takes_little_more_than_its_values_and_state():
    table = make_table(TableOptions(dim=16), update=Adagrad())
    shares = []
    for start in range(0, 100_000, 5000):
        push(table, range(start, start + 5000))
        shares.append(table.nbytes / table.num_rows / 128)
    assert max(shares[4:]) < 1.45  # of a slot that is this small; the last block weighs less in a larger one
    assert np.mean(shares[10:]) < 1.35
