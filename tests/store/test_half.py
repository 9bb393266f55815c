"""16-bit floats: the bits are right, and the float32 master keeps what the bits cannot."""

from __future__ import annotations

import numpy as np
import pytest

from tests.store.slots import bfloat16, make_slot, push, value
from windlass.store import kernels
from windlass.store.reduce import Reducer
from windlass.store.update import SGD, Adam
from windlass.types import Array

ENCODINGS = [kernels.FLOAT16, kernels.BFLOAT16]


def widen(bits: Array, encoding: int) -> Array:
    """By numpy, for comparison."""
    if encoding == kernels.FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode(numbers: Array, encoding: int) -> Array:
    bits = np.empty(numbers.size, np.uint16)
    kernels.publish(bits, numbers, 0, numbers.size, encoding)
    return bits


def elements(numbers: list[float], dtype: str) -> Array:
    return np.array(numbers, np.float16) if dtype == "float16" else bfloat16(np.array(numbers))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_pattern_is_read_right_and_comes_back_the_same(encoding: int) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    numbers = np.empty(bits.size, np.float32)
    kernels.decode(numbers, bits.ctypes.data, encoding)
    expected = widen(bits, encoding)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(np.signbit(numbers), np.signbit(expected))
    back, is_nan = encode(numbers, encoding), np.isnan(numbers)
    np.testing.assert_array_equal(back[~is_nan], bits[~is_nan])
    assert np.isnan(widen(back[is_nan], encoding)).all()


def test_rounding_to_float16_is_numpys() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = rng.standard_normal(200_000).astype(np.float32) * np.float32(2.0) ** rng.integers(-26, 17, 200_000)
    ties = np.arange(-40_000, 40_000).astype(np.float32) / 2 + np.float32(2048)
    for each in (numbers[~np.isnan(numbers)], near.astype(np.float32), ties):
        with np.errstate(over="ignore", under="ignore"):
            expected = each.astype(np.float16).view(np.uint16)
        np.testing.assert_array_equal(encode(each, kernels.FLOAT16), expected)


def test_rounding_to_bfloat16_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    numbers = numbers[~np.isnan(numbers)]
    expected = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(encode(numbers, kernels.BFLOAT16), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("reduce", "expected"), [("sum", [6, 0.5]), ("mean", [2, 1 / 6]), ("min", [1, -2])])
def test_reducing_is_done_in_float32(dtype: str, reduce: str, expected: list[float]) -> None:
    slot = make_slot(2, dtype, reduce)
    push(slot, *(elements(row, dtype) for row in ([1, 2], [2, -2], [3, 0.5])), divisor=3)
    assert value(slot).tolist() == pytest.approx(expected, rel=1e-2)
    assert slot.dump()[0]["master"].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_steps_add_up_in_the_master_though_each_rounds_to_nothing(dtype: str) -> None:
    slot = make_slot(3000, dtype, update=SGD(lr=1e-5))
    slot.write(0, 3000, elements([1.0] * 3000, dtype))
    gradient = elements([1.0] * 3000, dtype)
    push(slot, gradient)
    assert (value(slot) == 1).all()
    for step in range(1999):
        push(slot, gradient, is_pinned=step % 2 == 0)
    np.testing.assert_allclose(value(slot), 0.98, atol=4e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_partial_push_to_a_pinned_block_keeps_the_rest(dtype: str) -> None:
    slot = make_slot(5, dtype, update="merge")
    slot.write(0, 5, elements([1, 2, 3, 4, 5], dtype))
    before = slot.block
    assert push(slot, (1, elements([1, 1], dtype)), (2, elements([2], dtype)), is_pinned=True) is before
    assert value(slot).tolist() == [1, 3, 6, 4, 5]
    assert push(slot, elements([1] * 5, dtype)) is None
    assert value(slot).tolist() == [2, 4, 7, 5, 6]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_users_code_sees_float32(dtype: str) -> None:
    seen = []

    def add(a: Array, b: Array) -> Array:
        seen.append(a.dtype)
        return a + b

    slot = make_slot(2, dtype, Reducer("add", add, 0), Adam(lr=1.0))
    seen.clear()
    push(slot, elements([1, 2], dtype), elements([1, 2], dtype))
    assert set(seen) == {np.dtype(np.float32)}
    assert value(slot).tolist() == [-1, -1]
