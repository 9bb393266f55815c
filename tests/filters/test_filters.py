"""What each filter sends, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest

import windlass as wl
from tests.filters.making import Ends, numbers
from windlass import filters as wf

pytestmark = pytest.mark.timeout(300)  # the kernels may have to be compiled first


def sent_places(ends, values, **where):
    return np.flatnonzero(ends.deliver(values, **where)).tolist()


# --- selectors --------------------------------------------------------------------------------------------------------


def test_small_gradients_wait_until_they_have_added_up():
    ends = Ends([wf.SmallGradient(1.0)])
    steps = [ends.deliver(np.array([0.4, -1.0, 0.0], np.float32)).tolist() for _ in range(3)]
    assert steps == [[0, -1, 0], [0, -1, 0], [pytest.approx(1.2), -1, 0]]


def test_a_table_sends_the_rows_that_have_a_large_number_and_only_their_ids():
    ends = Ends([wf.SmallGradient(1.0)], width=2)
    payload = ends.send(np.array([[0, 0.5], [0.5, -3], [0, 0]], np.float32), ids=np.array([4, -4, 9], np.int64))
    decoded = ends.receiver.decode(payload)
    assert decoded.ids.tolist() == [-4]
    assert decoded.values.tolist() == [[0.5, -3]]
    assert payload.nbytes == 8 + 2 * 4


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
@pytest.mark.parametrize("fraction", [0.01, 0.3, 1.0])
def test_top_k_sends_the_largest_and_of_equals_the_first(size, fraction):
    values = numbers(size, size)
    ends = Ends([wf.TopK(fraction)])
    wanted = max(1, round(size * fraction))
    order = np.argsort(-np.abs(values), kind="stable")[:wanted]
    assert sent_places(ends, values) == sorted(order[values[order] != 0].tolist())


def test_top_k_of_a_table_orders_rows_by_length():
    values = np.array([[3, 0], [2, 2.5], [0, -3.1], [1, 1]], np.float32)
    decoded = Ends([wf.TopK(0.5)], width=2)
    payload = decoded.send(values, ids=np.arange(4, dtype=np.int64))
    assert decoded.receiver.decode(payload).ids.tolist() == [1, 2]


def test_random_k_sends_its_fraction_and_no_positions():
    ends = Ends([wf.RandomK(0.25)])
    payload = ends.send(np.ones(1000, np.float32))
    assert payload.nbytes == 250 * 4
    assert np.count_nonzero(ends.receiver.decode(payload, size=1000).values) == 250


def test_random_skip_sends_about_its_share_and_no_positions():
    ends = Ends([wf.RandomSkip(0.75)])
    payload = ends.send(np.ones(10_000, np.float32))
    assert 2300 * 4 < payload.nbytes < 2700 * 4
    first = np.flatnonzero(ends.receiver.decode(payload, size=10_000).values)
    second = np.flatnonzero(ends.deliver(np.ones(10_000, np.float32)))
    assert first.tolist() != second.tolist(), "every push draws anew"


@pytest.mark.parametrize("each", [wf.RandomSkip(0.75), wf.RandomK(0.1)], ids=str)
def test_every_row_is_drawn_as_often_as_any_other(each):
    counts = np.zeros(40)
    ends = Ends([each])
    for _ in range(400):
        counts += ends.deliver(np.ones(40, np.float32)) != 0
    share = 0.25 if isinstance(each, wf.RandomSkip) else 0.1
    assert np.all(np.abs(counts / 400 - share) < 5 * (share * (1 - share) / 400) ** 0.5)


@pytest.mark.parametrize("each", [wf.RandomSkip(0.7, unbiased=True), wf.RandomK(0.3, unbiased=True)], ids=str)
@pytest.mark.parametrize("width", [None, 2])
def test_unbiased_lots_send_the_true_gradient_on_average_and_keep_nothing(each, width):
    ends = Ends([each], width=width)
    values = np.arange(1, 21, dtype=np.float32).reshape((10, 2) if width else 20)
    where = {"ids": np.arange(10, dtype=np.int64)} if width else {}
    mean = sum(ends.deliver(values, **where).astype(float) for _ in range(1000)) / 1000
    assert np.allclose(mean, values, rtol=0.25)
    assert mean.sum() == pytest.approx(values.sum(), rel=0.05)
    assert ends.sender.residual_norm == 0


# --- KKT --------------------------------------------------------------------------------------------------------------


def test_kkt_keeps_back_what_cannot_move_a_zero_weight():
    ends = Ends([wf.KKT()])
    weights = np.array([0, 0, 1, 0], np.float32)
    ends.sender.note_pulled(weights, 0.5)
    gradient = np.array([0.5, 0.6, 0.1, -0.2], np.float32)
    assert sent_places(ends, gradient) == [1, 2]
    assert sent_places(ends, gradient) == [0, 1, 2], "0.5 and 0.5 are more than the threshold"


def test_kkt_takes_off_the_gradient_that_a_row_says_the_server_has():
    ends = Ends([wf.KKT(gradient_column=1)], width=2)
    ids = np.array([4, 5, 6, 7])
    rows = np.array([[0, 0.2], [0, -0.4], [0, 0.9], [0.1, 0]], np.float32)  # (weight, gradient)
    ends.sender.note_pulled(rows.reshape(-1), 0.5, ids=ids)
    pushed = np.array([[0.2, 9], [0.2, 9], [0.01, 0], [0, 0]], np.float32)  # what is in column 1 never matters
    assert ends.receiver.decode(ends.send(pushed, ids=ids)).ids.tolist() == [5, 6, 7]


def test_kkt_says_that_a_row_has_no_such_column():
    with pytest.raises(wl.UsageError, match="needs a table with that column"):
        wf.Chain([wf.KKT(gradient_column=2)], wf.Target("w", width=2))
    with pytest.raises(wl.UsageError, match="a column beside the first"):
        wf.KKT(gradient_column=0)


def test_kkt_sends_whatever_was_never_pulled():
    ends = Ends([wf.KKT()], width=1)
    ends.sender.note_pulled(np.zeros((2, 1), np.float32), np.array([0.5, 5.0]), ids=np.array([3, 4], np.int64))
    ids = np.array([2, 3, 4], np.int64)
    decoded = ends.receiver.decode(ends.send(np.full((3, 1), 1, np.float32), ids=ids))
    assert decoded.ids.tolist() == [2, 3]


def test_kkt_sends_what_was_never_pulled_however_many_were():
    ends = Ends([wf.KKT()], width=1)
    for known in (256, 10, 1024):  # 256 fill the first memory
        ends.sender.note_pulled(np.zeros((known, 1), np.float32), 5.0, ids=np.arange(known, dtype=np.int64))
        ids = np.array([0, -7, known - 1], np.int64)
        assert ends.receiver.decode(ends.send(np.ones((3, 1), np.float32), ids=ids)).ids.tolist() == [-7]
        ends.sender.take_residual()


@pytest.mark.parametrize("width", [None, 2])
def test_kkt_compares_the_rows_that_others_left_with_their_own_slack(width):
    """Rows 2 and 3 are left by the first filter; only row 2 has a slack that keeps it back."""
    ends = Ends([wf.SmallGradient(0.5), wf.KKT()], width=width)
    shape = (4, width) if width else 4
    slack = np.broadcast_to(np.array([0, 0, 9, 0.1]).reshape(4, *[1] * bool(width)), shape)
    values = np.broadcast_to(np.array([0.1, 0.1, 1, 1]).reshape(4, *[1] * bool(width)), shape).astype(np.float32)
    where = {"ids": np.array([3, 1, 2, 0], np.int64)} if width else {}
    ends.sender.note_pulled(np.zeros(shape, np.float32), slack, **where)
    assert np.flatnonzero(ends.deliver(values, **where).reshape(4, -1)[:, 0]).tolist() == [3]


def test_kkt_without_feedback_forgets_what_it_did_not_send():
    ends = Ends([wf.KKT(feedback=False)])
    ends.sender.note_pulled(np.zeros(2, np.float32), 1.0)
    for _ in range(5):
        assert sent_places(ends, np.array([0.9, 1.1], np.float32)) == [1]


def test_ftrl_with_kkt_has_the_same_zeros_and_sends_less():
    """A linear model by FTRL: what is kept back until it would move a weight moves it no later."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((400, 30)).astype(np.float32)
    labels = data[:, :3] @ np.array([2, -1, 1], np.float32)
    zeros, sent = {}, {}
    for use_kkt in (False, True):
        ends = Ends([wf.KKT()])
        z, n, w = np.zeros(30), np.zeros(30), np.zeros(30)
        sent[use_kkt] = 0
        for step in range(400):
            if use_kkt:
                ends.sender.note_pulled(w, wf.ftrl_threshold(z, 5.0))
            gradient = (data[step] * (data[step] @ w - labels[step])).astype(np.float32)
            payload = ends.send(gradient)
            sent[use_kkt] += payload.meta["arrays"][-1][2]
            arrived = ends.receiver.decode(payload, size=30).values.astype(float)
            sigma = (np.sqrt(n + arrived**2) - np.sqrt(n)) / 0.5
            z, n = z + arrived - sigma * w, n + arrived**2
            w = np.where(np.abs(z) <= 5.0, 0, -(z - np.sign(z) * 5.0) / ((1 + np.sqrt(n)) / 0.5))
        zeros[use_kkt] = w == 0
        assert np.allclose(w[:3], [2, -1, 1], atol=0.4)
    assert zeros[True].sum() >= zeros[False].sum() - 3
    assert sent[True] < 0.7 * sent[False]


# --- coders -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_rounds_to_the_nearest_and_halves_the_bytes(dtype):
    ends = Ends([wf.Cast(dtype)])
    values = numbers(500, 4).clip(-60000, 60000)
    payload = ends.send(values)
    assert payload.nbytes == values.nbytes // 2
    bits = values.view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16  # ties to even
    expected = values.astype(np.float16) if dtype == "float16" else nearest.view(np.float32)
    assert np.array_equal(ends.receiver.decode(payload, size=500).values, expected)


def test_what_float16_cannot_hold_is_sent_in_several_pushes():
    ends = Ends([wf.Cast("float16")])
    assert ends.deliver(np.array([150_000.0], np.float32)).tolist() == [65504]
    assert ends.deliver(np.zeros(1, np.float32)).tolist() == [65504]
    assert ends.deliver(np.zeros(1, np.float32)).tolist() == [150_000 - 2 * 65504]
    assert Ends([wf.Cast("float16", feedback=False)]).deliver(np.array([1e6], np.float32)).tolist() == [np.inf]


@pytest.mark.parametrize("stochastic", [True, False])
def test_int8_is_off_by_at_most_a_step_of_its_block(stochastic):
    values = numbers(1000, 3)
    ends = Ends([wf.Int8(block=50, stochastic=stochastic)])
    payload = ends.send(values)
    assert payload.nbytes == 1000 + 4 * 20
    off = np.abs(ends.receiver.decode(payload, size=1000).values - values).reshape(20, 50)
    step = np.abs(values).reshape(20, 50).max(axis=1, keepdims=True) / 127
    assert np.all(off <= step * (1 if stochastic else 0.5) * 1.001)


def test_int8_rounds_to_the_true_value_on_average():
    values = np.linspace(-1, 1, 101).astype(np.float32)
    ends = Ends([wf.Int8(feedback=False)])
    mean = sum(ends.deliver(values).astype(float) for _ in range(2000)) / 2000
    assert np.all(np.abs(mean - values) < 5 * 0.5 / 127 / 2000**0.5)


@pytest.mark.parametrize("values", [np.zeros(10), np.full(10, 1e-38), np.full(10, -3e38)], ids=str)
def test_int8_and_one_bit_send_finite_numbers_whatever_they_are_given(values):
    for each in (wf.Int8(), wf.OneBit()):
        assert np.isfinite(Ends([each]).deliver(values.astype(np.float32))).all()


def test_one_bit_sends_signs_and_mean_magnitudes():
    ends = Ends([wf.OneBit(block=8)])
    values = np.array([1, -1, 2, -2, 3, -3, 0, 0, 5, -7], np.float32)
    payload = ends.send(values)
    assert payload.nbytes == 2 + 2 * 4
    arrived = ends.receiver.decode(payload, size=10).values
    assert arrived.tolist() == [1.5, -1.5, 1.5, -1.5, 1.5, -1.5, 1.5, 1.5, 6, -6]


def test_zstd_loses_nothing_and_never_makes_it_longer():
    ends = Ends([wf.Zstd()], dtype="int64")
    repeated, random = np.arange(1000) % 7, np.random.default_rng(0).integers(-(2**62), 2**62, 1000)
    for values in (repeated, random):
        payload = ends.send(values)
        assert np.array_equal(ends.receiver.decode(payload, size=1000).values, values)
        assert payload.nbytes <= values.nbytes
    assert ends.send(repeated).nbytes < repeated.nbytes / 10


def test_a_selection_travels_as_bits_or_as_gaps_whichever_is_shorter():
    few, many = Ends([wf.TopK(0.01)]), Ends([wf.TopK(0.6)])
    values = numbers(10_000, 1)
    short = few.send(values)
    assert short.meta["arrays"][0][0] == "gaps"
    assert short.nbytes <= 100 * 4 + 100 * 2
    long = many.send(values)
    assert long.meta["arrays"][0][0] == "bits"
    assert long.nbytes == 6000 * 4 + 10_000 // 8


# --- counts, and pulls ------------------------------------------------------------------------------------------------


def test_bytes_are_counted_before_and_after_each_filter():
    ends = Ends([wf.RandomK(0.5), wf.Int8(block=100), wf.Zstd()])
    for _ in range(2):
        ends.send(np.ones(1000, np.float32))
    traffic = ends.sender.traffic()
    assert [each.filter for each in traffic] == ["RandomK(fraction=0.5)", "Int8(block=100)", "Zstd()"]
    assert [each.bytes_before for each in traffic] == [8000, 4000, 1040]
    assert traffic[0].bytes_after == 4000
    assert traffic[2].bytes_after < 300
    status = ends.sender.status()
    assert status["filters"][1] == {"filter": "Int8(block=100)", "before": 4000, "after": 1040}
    assert status["residual_norm"] == pytest.approx(ends.sender.residual_norm)


def test_answers_of_pulls_pass_the_filters_that_were_asked_to_and_keep_nothing():
    chain = wf.Chain([wf.TopK(0.1), wf.Int8(pull=True), wf.Zstd(pull=True)], wf.Target("w"))
    answers = chain.for_pull()
    assert answers.filters == (wf.Int8(stochastic=False, pull=True, feedback=False), wf.Zstd(pull=True))
    server, worker = wf.Sender(answers), wf.Receiver(answers)
    weights = numbers(1000, 1)
    first, second = (server.encode(weights) for _ in range(2))
    assert bytes(first.buffers[0]) == bytes(second.buffers[0])
    assert server.residual_norm == 0
    pulled = worker.decode(first, size=1000).values
    assert np.allclose(pulled, weights, atol=np.abs(weights).max() / 100)


def test_rows_that_were_pulled_travel_without_their_ids():
    chain = wf.Chain([wf.IdCache(), wf.Cast("float16", pull=True)], wf.Target("t", width=4))
    answers = chain.for_pull()
    rows = numbers(40, 1).reshape(10, 4).clip(-100, 100)
    payload = wf.Sender(answers).encode(rows)
    assert payload.nbytes == rows.nbytes // 2
    pulled = wf.Receiver(answers).decode(payload, size=40).values.reshape(10, 4)
    assert np.array_equal(pulled, rows.astype(np.float16).astype(np.float32))


def test_a_dense_range_is_decoded_into_memory_that_is_there():
    ends = Ends([wf.TopK(0.5)])
    out = np.full(4, 7, np.float32)
    decoded = ends.receiver.decode(ends.send(np.array([1, 2, 3, 4], np.float32)), size=4, out=out)
    assert decoded.values is out
    assert out.tolist() == [0, 0, 3, 4]


def test_an_array_that_cannot_travel_is_refused_where_it_was_made():
    class Strings(wf.Filter):
        def encode(self, parcel):
            return parcel.pass_on(parcel.values.astype("U8"))

    with pytest.raises(wl.UsageError, match="a filter gave an array of <U8; what travels is of float16"):
        Ends([Strings()]).send(np.ones(3, np.float32))


# --- declaring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: wf.Cast("float8"), "dtype must be 'float16' or 'bfloat16'"),
        (lambda: wf.Int8(block=3), "block must be an even number"),
        (lambda: wf.OneBit(block=12), "block must be a multiple of 8"),
        (lambda: wf.TopK(0), "fraction must be above 0"),
        (lambda: wf.RandomK(1.5), "fraction must be above 0 and at most 1"),
        (lambda: wf.RandomSkip(1.0), "p must be at least 0 and below 1"),
        (lambda: wf.SmallGradient(float("nan")), "eps must be a number above 0"),
        (lambda: wf.KKT(margin=2), "margin must be above 0"),
        (lambda: wf.Zstd(level="fast"), "level must be a whole number"),
        (lambda: Ends([wf.IdCache()]), "IdCache is for tables"),
        (lambda: Ends([wf.Int8()], dtype="int32"), "needs a floating-point key, got int32"),
        (lambda: Ends([wf.TopK()], reduce="max"), "needs reduce='sum' or 'mean', got 'max'"),
        (lambda: Ends([wf.Zstd(), wf.Int8()]), r"Int8\(\) cannot go on with what Zstd\(\) leaves"),
        (lambda: Ends([wf.Int8(), wf.TopK()]), r"TopK\(\) cannot go on with what Int8\(\) leaves"),
        (lambda: Ends([wf.IdCache(), wf.IdCache()], width=1), "IdCache stands in a chain once"),
        (lambda: Ends([wf.Int8]), r"did you mean Int8\(...\)\?"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_declared(make, text):
    with pytest.raises(wl.UsageError, match=text):
        make()
