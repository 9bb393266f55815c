"""Data parallelism from scratch, in functions: parameters are lists of tensors, a network is a function of them.

    device_params = [get_params(params, device) for device in devices]
    for X, y in batches:
        train_batch(X, y, device_params, devices, lr, net=lenet)
    accuracy = evaluate([lambda X, W=W: lenet(X, W) for W in device_params], test_batches, devices)

`DataParallel` does the same for a torch.nn.Module and any optimizer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from windlass.collectives import allreduce_many
from windlass.errors import UsageError
from windlass.torch import devices as on
from windlass.torch.data_parallel import DataParallel

Params = Sequence[torch.Tensor]
Net = Callable[[torch.Tensor, Params], torch.Tensor]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Model = Callable[[torch.Tensor], torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]

cross_entropy: Loss = partial(functional.cross_entropy, reduction="none")


def get_params(params: Params, device: on.Device) -> list[torch.Tensor]:
    """Copies of the parameters on the device, ready to have gradients; memory of their own on any device."""
    (found,) = on.resolve([device])
    return [parameter.detach().to(found, copy=True).requires_grad_() for parameter in params]


def split_batch(
    X: torch.Tensor, y: torch.Tensor, devices: Sequence[on.Device]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Samples and labels, cut into one part per device, on it; the sizes of parts differ by at most one."""
    if len(X) != len(y):
        raise UsageError(f"a batch has as many labels as samples, got {len(X)} samples and {len(y)} labels")
    found = on.resolve(devices)
    return on.split(X, found), on.split(y, found)


def train_batch(
    X: torch.Tensor,
    y: torch.Tensor,
    device_params: Sequence[Params],
    devices: Sequence[on.Device],
    lr: float,
    *,
    net: Net,
    loss: Loss = cross_entropy,
    strategy: str = "auto",
) -> torch.Tensor:
    """One step of stochastic gradient descent on one batch, on all devices at once; returns the mean loss.

    Each device computes `loss(net(X_part, params), y_part)` for its part, where `loss` gives one number per sample,
    and the gradient of their sum. The gradients are all-reduced by the strategy, and every device makes the same step,
    `lr` times the sum divided by the size of the whole batch. The devices' parameters stay equal.
    """
    X_parts, y_parts = split_batch(X, y, devices)
    found = on.resolve(devices)
    if len(device_params) != len(found):
        raise UsageError(
            f"device_params has the parameters of {len(device_params)} devices, devices names {len(found)}"
        )
    calls = [partial(_backward, *each, net, loss) for each in zip(X_parts, y_parts, device_params, strict=True)]
    losses = on.Crew(found).run(calls)
    grads = [_together(same) for same in zip(*device_params, strict=True)]
    allreduce_many([each for each in grads if each], strategy=strategy)
    with torch.no_grad():
        for same, each in zip(zip(*device_params, strict=True), grads, strict=True):
            for parameter, grad in zip(same, each, strict=False):
                parameter -= lr * grad / len(X)
                parameter.grad = None
    return torch.stack([each.to(found[0]) for each in losses]).sum() / len(X)


def _backward(X: torch.Tensor, y: torch.Tensor, params: Params, net: Net, loss: Loss) -> torch.Tensor:
    each = loss(net(X, params), y)
    if each.dim() == 0 or len(each) != len(X):
        raise UsageError(
            f"loss gave shape {tuple(each.shape)} for {len(X)} samples, and must give one number for each: a mean over "
            "a part is not the mean over the batch; use reduction='none'"
        )
    total = each.sum()
    total.backward()  # type: ignore[no-untyped-call]
    return total.detach()


def _together(same: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One parameter's gradients on all devices; none if no device used it."""
    if all(parameter.grad is None for parameter in same):
        return []
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in same]


def evaluate(
    model: nn.Module | Model | Sequence[Model],
    data: Iterable[Batch] | Batch,
    devices: Sequence[on.Device] | None = None,
) -> float:
    """The part of the samples whose label has the highest score, computed on all devices at once.

    The model is a module (of which every device gets a copy in eval mode; the module itself is left as it is), a
    `DataParallel`, a function from samples to scores of shape (samples, classes, ...), or one such function for each
    device. By default a module runs where it is and a function on the CPU. `data` gives batches `(X, y)`, or is one.
    Each batch is cut over the devices; it may be smaller than their number.
    """
    found = on.resolve(_devices_of(model) if devices is None else devices)
    models, crew = _models(model, found), on.Crew(found)
    batches = [data] if isinstance(data, tuple) and isinstance(data[0], torch.Tensor) else data
    right = total = 0
    with torch.no_grad():
        for X, y in batches:
            right += _count(models, (X, y), crew)
            total += y.numel()
    if not total:
        raise UsageError("evaluate got no samples: data is empty, or an iterator that was used up")
    return right / total


def _devices_of(model: Any) -> Sequence[on.Device]:
    if isinstance(model, DataParallel):
        return model.devices
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return ["cpu" if parameter is None else parameter.device]


def _models(model: Any, devices: Sequence[torch.device]) -> list[Model]:
    """For each device what maps samples to scores there."""
    if isinstance(model, DataParallel):
        model = model.module
    if isinstance(model, nn.Module):
        return [_evaluated(model, device) for device in devices]
    if callable(model):
        return [model] * len(devices)
    if not isinstance(model, Sequence) or not all(callable(each) for each in model):
        raise UsageError(f"evaluate expects a module, a function, or a list of functions; got {type(model).__name__}")
    if len(model) != len(devices):
        raise UsageError(f"evaluate got {len(model)} functions for {len(devices)} devices: one is needed for each")
    return list(model)


def _evaluated(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy in eval mode; it shares the parameters if they are on the device already."""
    shared = {id(each): each for each in model.parameters() if each.device == device}
    copied = copy.deepcopy(model, dict(shared))
    return (copied if shared else copied.to(device)).eval()


def _count(models: Sequence[Model], batch: Batch, crew: on.Crew) -> int:
    """How many of the batch's samples are labelled right."""
    X, y = batch
    used = crew.devices[: len(y)]
    if not used:
        return 0
    calls = [partial(_right, *each) for each in zip(models, *split_batch(X, y, used), strict=False)]
    return sum(int(each) for each in crew.run(calls))


def _right(model: Model, X: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scores = model(X)
    if scores.dim() != y.dim() + 1:
        raise UsageError(
            f"the model gave shape {tuple(scores.shape)} for labels of shape {tuple(y.shape)}: "
            "evaluate needs a score for each class, in dim 1"
        )
    return (scores.argmax(dim=1) == y).sum()
