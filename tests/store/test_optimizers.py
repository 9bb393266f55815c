"""Every optimizer agrees with torch's over a hundred steps, learning-rate schedule included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.store.slots import make_slot, push, value
from windlass.store.update import FTRL, SGD, Adagrad, Adam, AdamW, Updater
from windlass.types import Array

torch = pytest.importorskip("torch")

SIZE, STEPS = 3001, 100  # more than a block, and no multiple of one


def schedule(step: int) -> float:
    return 0.05 * (1 + math.cos(step / 15)) + 1e-3


CASES: list[tuple[Updater, str, dict[str, Any]]] = [
    (SGD(), "SGD", {}),
    (SGD(weight_decay=0.01), "SGD", {"weight_decay": 0.01}),
    (SGD(momentum=0.9), "SGD", {"momentum": 0.9}),
    (SGD(momentum=0.9, dampening=0.3, weight_decay=1e-3), "SGD",
     {"momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3}),
    (SGD(momentum=0.8, nesterov=True), "SGD", {"momentum": 0.8, "nesterov": True}),
    (Adam(), "Adam", {}),
    (Adam(betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01), "Adam",
     {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.01}),
    (AdamW(), "AdamW", {}),
    (AdamW(weight_decay=0.1), "AdamW", {"weight_decay": 0.1}),
    (Adagrad(), "Adagrad", {}),
    (Adagrad(lr_decay=0.05, weight_decay=0.01, initial_accumulator_value=0.1), "Adagrad",
     {"lr_decay": 0.05, "weight_decay": 0.01, "initial_accumulator_value": 0.1}),
]  # fmt: skip


@pytest.mark.parametrize(("updater", "name", "options"), CASES, ids=str)
def test_a_hundred_scheduled_steps_agree_with_torch(updater: Updater, name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    start = rng.standard_normal(SIZE).astype(np.float32)
    slot = make_slot(SIZE, update=updater)
    slot.write(0, SIZE, start)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = getattr(torch.optim, name)([parameter], lr=schedule(0), **options)
    for step in range(STEPS):
        grads = rng.standard_normal((2, SIZE)).astype(np.float32)
        lr = schedule(step)
        push(slot, *grads, hyper={"lr": lr}, is_pinned=step % 3 == 0)
        optimizer.param_groups[0]["lr"] = lr
        parameter.grad = torch.from_numpy(grads[0] + grads[1])
        optimizer.step()
    np.testing.assert_allclose(value(slot), parameter.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("updater", "name", "options"), CASES, ids=str)
def test_float64_agrees_with_torch_to_float64(updater: Updater, name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    slot = make_slot(50, "float64", update=updater)
    parameter = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **options)
    for _ in range(20):
        grad = rng.standard_normal(50)
        push(slot, grad, hyper={"lr": 0.1})
        parameter.grad = torch.from_numpy(grad)
        optimizer.step()
    np.testing.assert_allclose(value(slot), parameter.detach().numpy(), rtol=1e-10, atol=1e-12)


def ftrl_reference(w: Array, grads: Array, alpha: float, beta: float, l1: float, l2: float) -> Array:
    """McMahan et al. 2013, algorithm 1, in double precision."""
    z, n = np.zeros_like(w), np.zeros_like(w)
    for g in grads:
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / alpha
        z += g - sigma * w
        n += g * g
        w = np.where(np.abs(z) <= l1, 0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2))
    return w


@pytest.mark.parametrize("config", [(0.1, 1.0, 0.0, 0.0), (0.3, 0.5, 2.0, 0.1), (0.05, 0.0, 1.0, 1.0)])
def test_ftrl_agrees_with_its_paper_and_makes_exact_zeros(config: tuple[float, float, float, float]) -> None:
    grads = np.random.default_rng(3).standard_normal((STEPS, SIZE)).astype(np.float32)
    lr, beta, l1, l2 = config
    slot = make_slot(SIZE, update=FTRL(lr=lr, beta=beta, l1=l1, l2=l2))
    for grad in grads:
        push(slot, grad)
    expected = ftrl_reference(np.zeros(SIZE), grads.astype(np.float64), lr, beta, l1, l2)
    np.testing.assert_allclose(value(slot), expected, rtol=1e-3, atol=1e-4)
    assert (value(slot) == 0).any() == (l1 > 0)


@pytest.mark.parametrize("updater", [SGD(momentum=0.9), Adam(), Adagrad(), FTRL()], ids=str)
def test_update_on_plain_arrays_is_what_a_slot_does(updater: Updater) -> None:
    rng = np.random.default_rng(5)
    slot = make_slot(60, update=updater)
    plain = np.zeros((3, 20), np.float32)
    state = {name: np.full_like(plain, updater.initial_state(name)) for name in updater.state_names()}
    for step in range(1, 6):
        grad = rng.standard_normal(60).astype(np.float32)
        push(slot, grad)
        updater.update(plain, grad.reshape(3, 20), state, step)
    np.testing.assert_array_equal(plain.ravel(), value(slot))
