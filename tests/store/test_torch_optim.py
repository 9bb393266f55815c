"""torch's own optimizers, run by slots on the parts they hold."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.store.slots import make_slot, push, value  # noqa: E402
from windlass.errors import UsageError  # noqa: E402
from windlass.store.update import resolve_updater, updater_rule  # noqa: E402
from windlass.torch.optim import Optim  # noqa: E402
from windlass.types import Rule  # noqa: E402

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}), ("Adam", {"amsgrad": True}),
    ("RMSprop", {"momentum": 0.5, "centered": True}), ("Adadelta", {}), ("Adamax", {}), ("NAdam", {"lr": 0.1}),
    ("RAdam", {}), ("Rprop", {}), ("ASGD", {"t0": 3}), ("Adagrad", {"initial_accumulator_value": 0.5}),
]  # fmt: skip


def reference(name: str, options: dict[str, Any], start: Any, grads: list[Any], lrs: list[float | None]) -> Any:
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = getattr(torch.optim, name)([parameter], **options)
    for grad, lr in zip(grads, lrs, strict=True):
        if lr is not None:
            optimizer.param_groups[0]["lr"] = lr
        parameter.grad = torch.from_numpy(grad.copy())
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_an_optimizer_on_a_slot_is_the_optimizer_itself(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    start, grads = rng.standard_normal(20).astype(np.float32), list(rng.standard_normal((30, 20)).astype(np.float32))
    slot = make_slot(20, update=Optim(getattr(torch.optim, name), **options))
    slot.write(0, 20, start)
    for step, grad in enumerate(grads):
        push(slot, grad, hyper={"lr": 0.01} if step >= 15 else None, is_pinned=step % 2 == 0)
    lrs = [None] * 15 + [0.01] * 15
    np.testing.assert_allclose(value(slot), reference(name, options, start, grads, lrs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_parts_with_different_histories_are_stepped_each_by_its_own(name: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    slot = make_slot(10, update=Optim(getattr(torch.optim, name), **options))
    histories: list[list[Any]] = [[] for _ in range(10)]
    for lo, hi in [(0, 6), (4, 10), (0, 10), (2, 3), (0, 10), (0, 10)]:
        grad = rng.standard_normal(hi - lo).astype(np.float32)
        push(slot, (lo, grad))
        for i in range(lo, hi):
            histories[i].append(grad[i - lo : i - lo + 1])
    expected = [
        reference(name, options, np.zeros(1, np.float32), grads, [None] * len(grads))[0] for grads in histories
    ]
    np.testing.assert_allclose(value(slot), expected, rtol=1e-5, atol=1e-6)


def test_it_is_named_on_the_wire_by_its_path_and_plain_arguments() -> None:
    optim = Optim(torch.optim.Adam, lr=0.5, betas=(0.5, 0.75))
    rule = updater_rule(optim)
    assert rule == Rule(
        "windlass.torch.optim:Optim",
        {"optimizer": "torch.optim.adam:Adam", "options": {"lr": 0.5, "betas": [0.5, 0.75]}},
    )
    travelled = msgspec.msgpack.decode(msgspec.msgpack.encode(rule), type=Rule)
    assert resolve_updater(travelled, {}) == optim


def test_a_dumped_slot_goes_on_bit_for_bit() -> None:
    slots = [make_slot(6, "bfloat16", update=Optim(torch.optim.NAdam, lr=0.1)) for _ in range(2)]
    ones = np.full(6, 0x3F80, np.uint16)
    for lo, hi in [(0, 6), (1, 3), (0, 6)]:
        push(slots[0], (lo, ones[lo:hi]))
    slots[1].restore(*slots[0].dump())
    for slot in slots:
        push(slot, ones)
    first, second = (slot.dump()[0] for slot in slots)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor", "SparseAdam"])
def test_an_optimizer_that_is_not_element_wise_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"Optim\({name}, ...\) (is not element-wise|cannot step a vector)"):
        Optim(getattr(torch.optim, name))


def test_bad_arguments_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="Invalid learning rate"):
        Optim(torch.optim.SGD, lr=-1.0)
    with pytest.raises(UsageError, match=r"Optim\(SGD, lr=...\) must be a plain value"):
        Optim(torch.optim.SGD, lr=torch.tensor(0.1))
    with pytest.raises(UsageError, match=r"expects a torch.optim.Optimizer class, got int 3"):
        Optim(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="hyper-parameter 'rate' is unknown to torch's SGD; it has 'lr', 'momentum'"):
        push(make_slot(1, update=Optim(torch.optim.SGD)), np.ones(1, np.float32), hyper={"rate": 1.0})

    class Mine(torch.optim.SGD):
        pass

    with pytest.raises(UsageError, match="Mine has no import path"):
        Optim(Mine, lr=0.1)
