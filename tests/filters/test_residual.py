"""sent + residual = true gradient, for every chain; what is kept back is found again, by element and by id."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windlass as wl
from tests.filters.making import CODERS, EXACT, Ends, Measured, Sign, Untouched, chains, numbers
from windlass import filters as wf

pytestmark = pytest.mark.timeout(300)  # the kernels may have to be compiled first
QUICK = settings(max_examples=60, deadline=None)
IS_EXACT = (wf.Cast, wf.SmallGradient, wf.RandomSkip, wf.TopK, wf.RandomK, wf.KKT)


def check_step(ends, values, **where):
    """One push: what arrives and what is kept back are together what was there before."""
    before = ends.residual(values.shape, **where)
    true = values + before
    arrived = ends.deliver(values, **where)
    after = ends.residual(values.shape, **where)
    if not ends.chain.is_lossy:
        assert np.array_equal(arrived, values)
        assert not after.any()
        return
    assert np.array_equal(after, true - arrived)  # bit for bit what float32 makes of the difference
    if all(isinstance(each, IS_EXACT) or not each.is_lossy for each in ends.chain.filters):
        assert np.array_equal(arrived + after, true)
    rest = true.astype(np.float64) - arrived
    assert np.all(np.abs(rest - after) <= np.abs(rest) * 2.0**-24 + 1e-40)
    squares = sum(float(np.sum(kept.values.astype(np.float64) ** 2)) for kept in ends.sender.dump().residual)
    assert ends.sender.residual_norm == pytest.approx(squares**0.5)


@QUICK
@given(chains(for_table=False), st.integers(0, 300), st.integers(0, 2**32), st.sampled_from([1.0, 1e-3, 1e5]))
def test_sent_and_residual_are_the_true_gradient_of_a_dense_key(filters, size, seed, scale):
    ends = Ends(filters, seed=seed)
    ends.sender.note_pulled(np.zeros(size, np.float32), 0.7 * scale)
    for step in range(3):
        check_step(ends, numbers(size, seed + step, scale))


@QUICK
@given(chains(for_table=True), st.integers(0, 60), st.sampled_from([1, 3, 16]), st.integers(0, 2**32))
def test_sent_and_residual_are_the_true_gradient_of_a_table(filters, rows, width, seed):
    ends = Ends(filters, seed=seed, width=width)
    rng = np.random.default_rng(seed)
    every = np.unique(np.concatenate([rng.integers(-(2**63), 2**63, 80), np.arange(-5, 5)]))
    known = every[:40]
    ends.sender.note_pulled(np.zeros((40, width), np.float32), 0.7, ids=known)
    for step in range(3):
        ids = rng.permutation(every)[:rows].astype(np.int64)
        check_step(ends, numbers(rows * width, seed + step).reshape(rows, width), ids=ids)


@QUICK
@given(chains(for_table=False), st.integers(1, 200), st.integers(0, 2**32))
def test_a_fused_filter_loses_what_encoding_and_decoding_lose(filters, size, seed):
    fused, measured = Ends(filters, seed=seed), Ends([Measured(each) for each in filters], seed=seed)
    for step in range(2):
        values = numbers(size, seed + step)
        assert np.array_equal(fused.deliver(values), measured.deliver(values))
        assert np.array_equal(fused.residual(size), measured.residual(size))


OWN = [[Sign()], [Sign(), wf.Zstd()], [wf.TopK(0.3), Sign()], [Untouched(), wf.Int8()]]


@pytest.mark.parametrize("filters", OWN, ids=str)
@pytest.mark.parametrize("width", [None, 4])
def test_a_filter_of_ones_own_has_its_losses_sent_later(filters, width):
    ends = Ends(filters, width=width)
    ids = np.arange(30, dtype=np.int64) if width else None
    values = numbers(120, 5).reshape((30, 4) if width else 120)
    for _ in range(3):
        check_step(ends, values, **({"ids": ids} if width else {}))


@pytest.mark.parametrize("each", [*EXACT, *CODERS], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_element_types_are_sent_completely_too(each, dtype):
    ends = Ends([each], dtype=dtype)
    values = numbers(100, 3).clip(-100, 100).astype(dtype)
    before = ends.residual(100)
    arrived = ends.deliver(values)
    assert arrived.dtype == ends.chain.number
    assert np.allclose(arrived + ends.residual(100), values + before, rtol=1e-6)
    limit = 0.8 if isinstance(each, wf.OneBit) else values.nbytes
    assert ends.sender.encode(values).nbytes <= max(limit, values.nbytes)


def test_a_key_of_bfloat16_travels_in_16_bits_and_is_kept_in_32():
    ends = Ends([wf.TopK(0.5)], dtype="bfloat16")
    bits = (numbers(64, 1).view(np.uint32) >> 16).astype(np.uint16)
    payload = ends.send(bits)
    assert [each[1] for each in payload.meta["arrays"]][-1] == "uint16"
    true = (bits.astype(np.uint32) << 16).view(np.float32)
    arrived = ends.receiver.decode(payload, size=64).values
    assert np.array_equal(arrived + ends.residual(64), true)


def test_over_many_pushes_nothing_is_lost_but_rounding():
    for filters in ([wf.OneBit(block=64)], [wf.TopK(0.05), wf.Int8()], [wf.RandomSkip(0.9)]):
        ends = Ends(filters)
        true, arrived = np.zeros(500), np.zeros(500)
        for step in range(100):
            values = np.random.default_rng(step).standard_normal(500).astype(np.float32)
            true += values
            arrived += ends.deliver(values)
        assert np.allclose(arrived + ends.residual(500), true, atol=1e-3)


def test_parts_of_a_key_keep_their_own_residual_wherever_they_are_cut():
    ends = Ends([wf.SmallGradient(10.0)])
    ends.deliver(np.full(10, 6, np.float32), lo=100)
    assert not ends.deliver(np.full(5, 3, np.float32), lo=95).any()
    assert ends.deliver(np.full(10, 6, np.float32), lo=98).tolist() == [0, 0, *[12] * 8]
    assert ends.residual(20, lo=93).tolist() == [0, 0, 3, 3, 3, 9, 9, *[0] * 8, 6, 6, 0, 0, 0]


def test_without_feedback_nothing_is_kept():
    for filters in ([wf.Int8(feedback=False)], [wf.TopK(0.1, feedback=False), wf.Cast(feedback=False)]):
        ends = Ends(filters)
        values = numbers(100, 2)
        kept = values.copy()
        ends.deliver(values)
        assert np.array_equal(values, kept), "what is pushed is not written to"
        assert ends.sender.residual_norm == 0
        assert ends.sender.dump().residual == []


def test_of_two_filters_only_the_one_with_feedback_is_made_good():
    ends = Ends([wf.TopK(0.5), wf.Int8(feedback=False)])
    values = np.arange(1, 101, dtype=np.float32)
    ends.deliver(values)
    assert np.array_equal(ends.residual(100), np.where(values > 50, 0, values))
    ends = Ends([wf.TopK(0.5, feedback=False), wf.Int8(block=2)])
    arrived = ends.deliver(values)
    assert np.array_equal(ends.residual(100), np.where(values > 50, values - arrived, 0))


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [[wf.Int8()], [wf.RandomSkip(0.5), wf.OneBit()]], ids=str)
@pytest.mark.parametrize("width", [None, 3])
def test_a_restored_sender_sends_what_the_first_would_have_sent(filters, width):
    ids = np.array([7, -1, 0, 2**62], np.int64)
    where = {"ids": ids} if width else {"lo": 70_000}
    values = numbers(12, 1).reshape((4, 3) if width else 12)
    first, second = Ends(filters, width=width), Ends(filters, width=width)
    for _ in range(3):
        first.deliver(values, **where)
    second.deliver(values * 5, **where)
    second.sender.restore(first.sender.dump())
    assert second.sender.residual_norm == first.sender.residual_norm > 0
    for _ in range(3):
        a, b = first.send(values, **where), second.send(values, **where)
        assert a == b


def test_what_a_lost_worker_kept_back_can_be_sent_by_another():
    first, second = Ends([wf.TopK(0.1)]), Ends([wf.TopK(0.1)])
    true = first.deliver(numbers(100, 1)) + second.deliver(numbers(100, 2))
    for kept in first.sender.take_residual():
        second.sender.add_residual(kept)
    assert first.sender.residual_norm == 0
    assert np.allclose(true + second.residual(100), numbers(100, 1) + numbers(100, 2), rtol=1e-6)


def test_a_residual_of_another_kind_of_key_is_refused():
    dense, table = Ends([wf.Int8()]), Ends([wf.Int8()], width=2)
    with pytest.raises(wl.UsageError, match="expected numbers of a dense key"):
        dense.sender.add_residual(wf.Kept(np.zeros((1, 2)), ids=np.zeros(1, np.int64)))
    with pytest.raises(wl.UsageError, match="expected ids with rows of 2"):
        table.sender.add_residual(wf.Kept(np.zeros(4)))


def test_a_table_of_residuals_grows_and_drops_rows_that_are_empty_again():
    ends = Ends([wf.SmallGradient(1.0)], width=2)
    rng = np.random.default_rng(0)
    everything: dict[int, float] = {}
    for _ in range(20):
        ids = rng.permutation(4000)[:500].astype(np.int64) - 2000
        values = rng.random((500, 2)).astype(np.float32)
        arrived = ends.deliver(values, ids=ids)
        for each, row, came in zip(ids.tolist(), values, arrived, strict=True):
            everything[each] = everything.get(each, 0) + row.sum(dtype=float) - came.sum(dtype=float)
    kept = {int(i): row.sum(dtype=float) for part in ends.sender.dump().residual
            for i, row in zip(part.ids, part.values, strict=True)}
    assert len(kept) > 500
    assert kept == pytest.approx({each: rest for each, rest in everything.items() if abs(rest) > 1e-6}, abs=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_leaves_the_residual_as_it_was(wrong):
    ends = Ends([wf.TopK(0.1)])
    ends.deliver(numbers(50, 1))
    before = ends.sender.dump()
    values = numbers(50, 2)
    values[7] = wrong
    with pytest.raises(wl.UsageError, match=r"value 7 of this push is .*nf|value 7 of this push is nan"):
        ends.send(values)
    assert np.array_equal(ends.sender.dump().residual[0].values, before.residual[0].values)


def test_sums_beyond_the_largest_number_are_held_there():
    ends = Ends([wf.SmallGradient(np.finfo(np.float32).max)])
    for _ in range(3):
        ends.deliver(np.full(4, 2e38, np.float32))
    assert np.isfinite(ends.sender.residual_norm)


def test_an_id_that_is_there_twice_is_refused_where_losses_are_kept():
    ends = Ends([wf.Int8()], width=1)
    with pytest.raises(wl.UsageError, match="id 5 is there twice"):
        ends.send(np.ones((3, 1), np.float32), ids=np.array([5, 6, 5], np.int64))
    assert ends.sender.residual_norm == 0


@pytest.mark.parametrize(
    ("values", "ids", "text"),
    [
        (np.zeros((2, 3)), np.zeros(2, np.int64), "expected values of float32, got float64"),
        (np.zeros((2, 3), np.float32), None, "expected ids with the values"),
        (np.zeros((2, 4), np.float32), np.zeros(2, np.int64), "a row of 3 for each"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int32), "ids of int32"),
    ],
)
def test_values_that_do_not_fit_the_table_are_refused(values, ids, text):
    with pytest.raises(wl.UsageError, match=text):
        Ends([wf.Int8()], width=3).sender.encode(values, ids=ids)
