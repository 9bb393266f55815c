"""The chapter's functions: parameters as lists, a network as a function of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import windlass as wl
from tests.torch_devices.models import STRATEGIES, batch, mlp, normed


def net(X, params):
    W1, b1, W2, b2, *_ = params
    return torch.tanh(X @ W1 + b1) @ W2 + b2


def start() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    shapes = [(6, 8), (8,), (8, 4), (4,)]
    return [torch.randn(shape, generator=made) * 0.3 for shape in shapes]


def test_get_params_copies_and_prepares_for_gradients():
    params = start()
    copies = wl.torch.get_params(params, "cpu")
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(copies, params, strict=True))
    assert all(mine.requires_grad and mine.grad is None and mine.is_leaf for mine in copies)
    with torch.no_grad():
        copies[0].add_(1)
    assert not torch.equal(copies[0], params[0])


@given(size=st.integers(1, 60), count=st.integers(1, 8))
def test_split_batch_gives_every_sample_once_in_order_and_in_nearly_equal_parts(size, count):
    X, y = batch(size)
    if size < count:
        with pytest.raises(wl.UsageError, match=f"batch of {size} cannot be split over {count} devices"):
            wl.torch.split_batch(X, y, ["cpu"] * count)
        return
    X_parts, y_parts = wl.torch.split_batch(X, y, ["cpu"] * count)
    lengths = [len(part) for part in X_parts]
    assert lengths == [len(part) for part in y_parts]
    assert len(lengths) == count
    assert max(lengths) - min(lengths) <= 1
    assert torch.equal(torch.cat(X_parts), X)
    assert torch.equal(torch.cat(y_parts), y)


@settings(deadline=None, max_examples=20)
@given(size=st.integers(4, 30), count=st.integers(1, 4), strategy=st.sampled_from(STRATEGIES))
def test_train_batch_makes_the_step_of_one_device_on_every_device(size, count, strategy):
    devices = ["cpu"] * count
    device_params = [wl.torch.get_params(start(), device) for device in devices]
    plain = [each.requires_grad_() for each in start()]
    for step in range(5):
        X, y = batch(size, seed=step)
        expected = functional.cross_entropy(net(X, plain), y)
        grads = torch.autograd.grad(expected, plain)
        with torch.no_grad():
            for parameter, grad in zip(plain, grads, strict=True):
                parameter -= 0.2 * grad
        found = wl.torch.train_batch(X, y, device_params, devices, 0.2, net=net, strategy=strategy)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    for params in device_params:
        for mine, theirs, same in zip(params, plain, device_params[0], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
            assert torch.equal(mine, same)
            assert mine.grad is None


def test_train_batch_leaves_an_unused_parameter_alone():
    device_params = [wl.torch.get_params([*start(), torch.ones(3)], "cpu") for _ in range(2)]
    wl.torch.train_batch(*batch(6), device_params, ["cpu", "cpu"], 0.1, net=net)
    assert [params[4].tolist() for params in device_params] == [[1.0] * 3] * 2


def test_train_batch_refuses_a_loss_that_is_a_mean_and_the_wrong_number_of_parameters():
    device_params = [wl.torch.get_params(start(), "cpu") for _ in range(2)]
    with pytest.raises(wl.UsageError, match="use reduction='none'"):
        wl.torch.train_batch(*batch(6), device_params, ["cpu"] * 2, 0.1, net=net, loss=functional.cross_entropy)
    with pytest.raises(wl.UsageError, match="parameters of 2 devices, devices names 3"):
        wl.torch.train_batch(*batch(6), device_params, ["cpu"] * 3, 0.1, net=net)
    with pytest.raises(wl.UsageError, match="6 samples and 5 labels"):
        wl.torch.split_batch(batch(6)[0], batch(5)[1], ["cpu"])


@given(size=st.integers(1, 50), length=st.integers(1, 20), count=st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_evaluate_counts_every_sample_once_whatever_the_batches_and_devices(size, length, count):
    model = mlp()
    X, y = batch(size)
    expected = (model(X).argmax(dim=1) == y).float().mean().item()
    devices = ["cpu"] * count
    batches = list(zip(X.split(length), y.split(length), strict=True))
    assert wl.torch.evaluate(model, batches, devices) == pytest.approx(expected)
    assert wl.torch.evaluate(model, (X, y), devices) == pytest.approx(expected)
    assert wl.torch.evaluate(lambda part: model(part), iter(batches), devices) == pytest.approx(expected)


def test_evaluate_uses_eval_mode_and_leaves_the_model_as_it_was():
    model = nn.Sequential(normed(), nn.Dropout(0.9))
    model[0][1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    X, y = batch(40)
    expected = wl.torch.evaluate(model, (X, y))
    assert all(wl.torch.evaluate(model, (X, y), ["cpu"] * 3) == expected for _ in range(5))
    assert [each.training for each in (model, model[0], model[0][1], model[1])] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_evaluate_takes_a_data_parallel_model_and_one_function_for_each_device():
    X, y = batch(20)
    model = wl.torch.DataParallel(normed(), ["cpu"] * 2)
    model(X)
    plain = normed()
    plain.load_state_dict(model.state_dict())
    assert wl.torch.evaluate(model, (X, y)) == wl.torch.evaluate(plain, (X, y))
    seen = []

    def zeros(part, number):
        seen.append((number, len(part)))
        assert not torch.is_grad_enabled()
        return torch.zeros(len(part), 4)

    functions = [lambda part, i=i: zeros(part, i) for i in range(2)]
    assert wl.torch.evaluate(functions, (X, y), ["cpu"] * 2) == (y == 0).sum().item() / len(y)
    assert sorted(seen) == [(0, 10), (1, 10)]


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (mlp(), [], "no samples"),
        (3, [], "expects a module, a function"),
        ([mlp()] * 3, [batch(4)], "3 functions for 2 devices"),
        (lambda X: X[:, 0], [batch(4)], "needs a score for each class"),
    ],
)
def test_evaluate_says_what_it_cannot_use(model, data, said):
    with pytest.raises(wl.UsageError, match=said):
        wl.torch.evaluate(model, data, ["cpu"] * 2)
