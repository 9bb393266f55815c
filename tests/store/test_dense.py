import numpy as np
import pytest

from tests.store.slots import make_slot, push, value
from windlass.errors import UsageError
from windlass.store.dense import Contribution
from windlass.store.reduce import Reducer
from windlass.store.update import SGD, Adam, Updater
from windlass.types import STORAGE, Array, Block, Heap


class Ledger(Heap):
    """Private memory that knows what is out, and never hands the same block out twice."""

    def __init__(self) -> None:
        super().__init__()
        self.out: list[Block] = []

    def allocate(self, nbytes: int) -> Block:
        block = Block(np.full(nbytes, 0xA5, np.uint8))
        self.out.append(block)
        return block

    def free(self, block: Block) -> None:
        self.out.remove(block)


def ones(size: int, dtype: str = "float32") -> Array:
    return np.ones(size, dtype)


@pytest.mark.parametrize("dtype", list(STORAGE))
def test_a_fresh_slot_is_zero_and_can_be_written(dtype: str) -> None:
    slot = make_slot(5, dtype, "max", memory=Ledger())
    assert not slot.block.array.any()
    data = np.array([0, 1, 1], STORAGE[dtype])
    assert slot.write(1, 4, data) is None
    assert slot.block.array.view(STORAGE[dtype]).tolist() == [0, 0, 1, 1, 0]
    slot.write(0, 2, data[1:].view(np.uint8))
    assert slot.block.array.view(STORAGE[dtype]).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("update", ["merge", "add"])
def test_merge_goes_on_accumulating(update: str) -> None:
    slot = make_slot(3, "int32", "sum", update)
    slot.write(0, 3, np.array([10, 20, 30], np.int32))
    for _ in range(2):
        push(slot, ones(3, "int32"), ones(3, "int32"))
    assert value(slot).tolist() == [14, 24, 34]


def test_merge_under_mean_adds_each_rounds_mean() -> None:
    slot = make_slot(2, reduce="mean", update="add")
    for _ in range(3):
        push(slot, ones(2), ones(2) * 2, divisor=2)
    assert value(slot).tolist() == [4.5, 4.5]


def test_mean_divides_by_what_it_is_told_to_and_nothing_else_divides() -> None:
    slot = make_slot(2, reduce="mean")
    push(slot, ones(2), ones(2), divisor=4)
    assert value(slot).tolist() == [0.5, 0.5]
    slot = make_slot(2, reduce="sum")
    push(slot, ones(2), ones(2), divisor=4)
    assert value(slot).tolist() == [2, 2]


def test_elements_that_nobody_contributed_to_do_not_change_in_any_way() -> None:
    slot = make_slot(6, update=SGD(lr=1.0, momentum=0.5, weight_decay=0.5))
    slot.write(0, 6, ones(6))
    push(slot, (1, ones(2)), (2, ones(2)))
    # decay makes each gradient g + 0.5
    assert value(slot).tolist() == [1, -0.5, -1.5, -0.5, 1, 1]
    assert slot.state["momentum_buffer"].tolist() == [0, 1.5, 2.5, 1.5, 0, 0]
    assert list(slot.spans) == [(0, 1, 0), (1, 4, 1), (4, 6, 0)]


def test_mean_over_parts_divides_every_part_by_the_members_of_the_round() -> None:
    slot = make_slot(4, reduce="mean")
    push(slot, (0, ones(3)), (1, ones(3)), divisor=2)
    assert value(slot).tolist() == [0.5, 1, 1, 0.5]


def test_an_updater_that_ignores_steps_keeps_one_span_whatever_is_pushed() -> None:
    for update in ("assign", SGD(), "merge"):
        slot = make_slot(50, update=update)
        for lo in range(0, 50, 7):
            push(slot, (lo, ones(1)))
        assert len(slot.spans) == 1


@pytest.mark.parametrize("update", ["assign", SGD(momentum=0.9), Adam()], ids=str)
def test_a_pinned_block_is_never_written_and_the_result_is_the_same(update: str | Updater) -> None:
    memory = Ledger()
    pinned, plain = make_slot(5000, update=update, memory=memory), make_slot(5000, update=update)
    rng = np.random.default_rng(0)
    start = rng.standard_normal(5000).astype(np.float32)
    for slot in (pinned, plain):
        slot.write(0, 5000, start)
    for pieces in ([(0, 5000), (0, 5000)], [(10, 20)], [(0, 3000), (2000, 5000)]):
        data = [(lo, rng.standard_normal(hi - lo).astype(np.float32)) for lo, hi in pieces]
        before, copy = pinned.block, pinned.block.array.copy()
        old = push(pinned, *data, is_pinned=True)
        assert old is before
        assert pinned.block is not before
        np.testing.assert_array_equal(before.array, copy)
        memory.free(old)
        assert push(plain, *data) is None
        np.testing.assert_array_equal(value(pinned), value(plain))
    assert memory.out == [pinned.block]


def test_writing_a_pinned_slot_hands_the_old_block_back() -> None:
    memory = Ledger()
    slot = make_slot(4, "float16", memory=memory)
    slot.write(0, 4, ones(4, "float16"))
    before = slot.block
    assert slot.write(1, 2, np.zeros(1, np.float16), is_pinned=True) is before
    assert before.array.view(np.float16).tolist() == [1, 1, 1, 1]
    assert value(slot).tolist() == [1, 0, 1, 1]
    push(slot, (0, ones(1, "float16")))
    assert value(slot).tolist() == [1, 0, 1, 1]
    assert memory.out == [before, slot.block]


@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("update", ["assign", Adam()], ids=str)
def test_a_round_without_contributions_changes_nothing(update: str | Updater, is_pinned: bool) -> None:
    for size in (0, 3):
        slot = make_slot(size, update=update)
        block, spans = slot.block, list(slot.spans)
        assert push(slot, is_pinned=is_pinned) is None
        assert push(slot, (size, ones(0)), is_pinned=is_pinned) is None
        assert slot.write(size, size, ones(0), is_pinned=is_pinned) is None
        assert slot.block is block
        assert list(slot.spans) == spans
        assert slot.value_bytes == 4 * size


def test_empty_pushes_beside_full_ones_count_for_nothing() -> None:
    slot = make_slot(3, update=Adam(lr=1.0))
    push(slot, ones(3), (1, ones(0)), ones(3))
    np.testing.assert_allclose(value(slot), [-1, -1, -1], rtol=1e-6)


def test_contributions_may_be_readonly_strided_misaligned_or_typed() -> None:
    readonly = ones(3)
    readonly.flags.writeable = False
    strided = np.array([1, 9, 1, 9, 1], np.float32)[::2]
    misaligned = np.zeros(13, np.uint8)[1:]
    misaligned[:] = ones(3).view(np.uint8)
    strided_bytes = np.repeat(ones(3).view(np.uint8), 2)[::2]
    slot = make_slot(3)
    contributions = [
        Contribution(0, 3, data) for data in (readonly, readonly.view(np.uint8), strided, misaligned, strided_bytes)
    ]
    slot.apply(contributions, divisor=1, hyper=None, is_pinned=False)
    assert value(slot).tolist() == [5, 5, 5]
    slot.apply(
        [Contribution(1, 3, misaligned[4:]), Contribution(0, 2, strided[:2])], divisor=1, hyper=None, is_pinned=False
    )
    assert value(slot).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("lo", "hi", "data", "text"),
    [
        (0, 3, np.zeros(2, np.float32), r"range \[0, 3\) of float32 is 12 bytes, got 8"),
        (2, 5, np.zeros(3, np.float32), r"range \[2, 5\) is not within a slot of 4 elements"),
        (-1, 1, np.zeros(2, np.float32), r"range \[-1, 1\) is not within a slot of 4 elements"),
        (2, 1, np.zeros(0, np.float32), r"range \[2, 1\) is not within"),
        (0, 4, np.zeros(2, np.float64), "a float32 slot takes bytes or float32 elements, got float64"),
    ],
)
def test_data_that_does_not_fit_its_range_is_refused_and_changes_nothing(
    lo: int, hi: int, data: Array, text: str
) -> None:
    slot = make_slot(4, update=SGD(momentum=0.9))
    bad = Contribution(lo, hi, data)
    with pytest.raises(UsageError, match=text):
        slot.apply([Contribution(0, 4, ones(4)), bad], divisor=1, hyper=None, is_pinned=True)
    with pytest.raises(UsageError, match=text):
        slot.write(lo, hi, data)
    assert value(slot).tolist() == [0] * 4
    assert list(slot.spans) == [(0, 4, 0)]


def test_a_divisor_below_one_and_an_unknown_type_are_refused() -> None:
    with pytest.raises(UsageError, match="divisor must be at least 1, got 0"):
        push(make_slot(1), ones(1), divisor=0)
    with pytest.raises(UsageError, match="dtype 'complex64' is unknown; keys hold float16, float32"):
        make_slot(1, "complex64")


def test_hyper_overrides_the_round_it_comes_with_and_no_other() -> None:
    slot = make_slot(1, update=SGD(lr=1.0))
    push(slot, ones(1), hyper={"lr": 0.25})
    push(slot, ones(1), hyper={"lr": 0.25})
    push(slot, ones(1))
    assert value(slot).tolist() == [-1.5]


def test_an_unknown_hyper_parameter_changes_nothing() -> None:
    slot = make_slot(1, update=SGD(lr=1.0))
    with pytest.raises(UsageError, match="hyper-parameter 'rate' is unknown to SGD; it has 'lr', 'momentum'"):
        push(slot, ones(1), hyper={"rate": 0.1})
    with pytest.raises(UsageError, match="hyper-parameter 'lr' is unknown to Assign; it has none"):
        push(make_slot(1), ones(1), hyper={"lr": 0.1})
    assert value(slot).tolist() == [0]


def test_bytes_are_counted() -> None:
    assert make_slot(10).state_bytes == 0
    slot = make_slot(10, "float16", update=Adam())
    assert (slot.value_bytes, slot.state_bytes) == (20, 40 + 80)
    assert repr(slot).startswith("<DenseSlot 10 x float16 | sum, Adam(lr=0.001")


def test_importing_the_store_does_not_import_numba() -> None:
    import subprocess
    import sys

    code = "import sys, windlass.store.dense; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_warming_loads_what_a_first_round_needs_and_starts_no_thread() -> None:
    import threading

    from windlass.store import kernels
    from windlass.store.dense import warm
    from windlass.store.reduce import BUILT_IN

    before = threading.active_count()
    warm("float32", BUILT_IN["sum"], SGD(momentum=0.9))
    compiled = len(kernels.sgd.signatures), len(kernels.put.signatures)  # type: ignore[attr-defined]
    push(make_slot(4, update=SGD(momentum=0.9)), ones(4), ones(4))
    assert (len(kernels.sgd.signatures), len(kernels.put.signatures)) == compiled  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_two_slots_with_a_custom_reducer_of_the_same_name_do_not_mix() -> None:
    first, second = Reducer("r", np.add, 0), Reducer("r", np.multiply, 1)
    a, b = make_slot(1, reduce=first), make_slot(1, reduce=second)
    for slot in (a, b):
        push(slot, ones(1) * 3, ones(1) * 4)
    assert (value(a).tolist(), value(b).tolist()) == ([7], [12])
