"""Arrays of other frameworks than numpy and torch, in an embedded store."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import windlass as wl


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.int32])
def test_jax_in_gives_jax_out(dtype):
    store = wl.Store()
    store.create("w", jnp.zeros((3, 4), dtype), update="add")
    got = store.pushpull("w", jnp.full((3, 4), 2, dtype))
    assert type(got) is type(jnp.zeros(1))
    assert got.dtype == dtype
    assert got.shape == (3, 4)
    again = store.pushpull("w", jnp.full((3, 4), 2, dtype))
    assert bool((got == 2).all())  # a jax array is immutable: the store does not reuse its memory
    assert bool((again == 4).all())


def test_jax_arrays_cannot_be_out():
    store = wl.Store()
    store.create("w", np.zeros(3, np.float32))
    with pytest.raises(wl.UsageError, match="jax array, which is immutable"):
        store.pull("w", out=jnp.zeros(3))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_buffer_of_a_key_of_jax_arrays_is_numpys_and_can_be_filled(dtype):
    store = wl.Store()
    store.create("w", jnp.zeros((3, 4), dtype), update="add")
    for value in (1, 2, 3):
        buffer = store.buffer("w")
        buffer[:] = value
        got = store.pushpull("w", buffer)
    assert (buffer.dtype, buffer.shape) == (np.dtype(dtype), (3, 4))
    assert type(got) is type(jnp.zeros(1))
    assert bool((got == 6).all())


def test_numpy_has_bfloat16_through_ml_dtypes():
    store = wl.Store()
    store.create("w", np.zeros(5, ml_dtypes.bfloat16))
    got = store.pushpull("w", np.full(5, 1.5, ml_dtypes.bfloat16))
    assert got.dtype == ml_dtypes.bfloat16
    assert (got == 1.5).all()


def test_kinds_mix_and_each_gets_its_own_back():
    store = wl.Store()
    store.create("w", torch.zeros(4))
    got = store.pushpull("w", np.full(4, 3, np.float32))
    assert isinstance(got, torch.Tensor)
    out = np.empty(4, np.float32)
    assert store.pull("w", out=out) is out
    assert out.tolist() == [3.0] * 4


def test_gradients_and_byte_order_and_scalars_do_not_matter():
    store = wl.Store()
    store.create("w", torch.zeros(4, requires_grad=True), update="add")
    store.push("w", torch.ones(4, requires_grad=True) * 2)
    store.push("w", np.ones(4, ">f4"))
    assert store.pull("w").tolist() == [3.0] * 4
    store.create("n", 0.0, update="add")
    store.push("n", 1.5)
    assert store.pull("n").shape == ()
    assert float(store.pull("n")) == 1.5


def test_a_masked_element_is_an_error_and_not_what_lies_under_the_mask():
    store = wl.Store()
    store.create("w", np.zeros(2, np.float32), update="add")
    with pytest.raises(wl.UsageError, match=r"'w'.*masked elements have no value; fill them first"):
        store.push("w", np.ma.masked_array(np.ones(2, np.float32), [False, True]))
    store.push("w", np.ma.masked_array(np.ones(2, np.float32)))
    assert store.pull("w").tolist() == [1.0, 1.0]
