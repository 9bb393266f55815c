"""LeNet on Fashion-MNIST, trained alone or by many workers with the same result.

In a step a worker gives the gradient of

    (sum of the losses of its share) × workers / (images in the batch)

whose mean over the workers is the gradient of the batch's mean loss, also when the shares are not of equal size.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from windlass.apps.fashion import Data, Split
from windlass.apps.plan import ALONE, Plan, Rows, Seat
from windlass.apps.report import Report, Share, Steps, StoreReport
from windlass.torch.data_parallel import DataParallel
from windlass.torch.devices import resolve
from windlass.torch.optimizer import Optimizer
from windlass.worker.store import Store

INITIAL_DEVIATION = 0.01
TEST_BLOCK = 500


def lenet(seed: int) -> nn.Sequential:
    """The network of the textbook: weights from N(0, 0.01), biases zero."""
    network = nn.Sequential(
        nn.Conv2d(1, 20, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=INITIAL_DEVIATION, generator=generator)
        else:
            nn.init.zeros_(parameter)
    return network


def train(store: Store, plan: Plan) -> dict[str, torch.Tensor]:
    """One worker's part of the training; gives the parameters it ends with. For `cluster.run(train, plan)`."""
    seat = Seat(store.rank, store.num_workers)
    data = plan.source.load()
    plan.check(data, seat.workers)
    network = lenet(plan.seed)
    devices = resolve(seat.devices(plan))
    model = DataParallel(network, devices) if len(devices) > 1 else network.to(devices[0])
    optimizer = Optimizer(
        torch.optim.SGD(model.parameters(), lr=plan.lr),
        store,
        mode=plan.mode,
        named_parameters=network.named_parameters(),
    )
    report = StoreReport(store, epochs=plan.epochs)
    _Loop(model, optimizer, seat, report).run(plan, data)
    report.finish()
    return _copied(network)


def train_alone(plan: Plan, report: Report) -> dict[str, torch.Tensor]:
    """The same training in this process, on the first device, without Windlass: what to compare with."""
    data = plan.source.load()
    plan.check(data, ALONE.workers)
    network = lenet(plan.seed).to(resolve(plan.devices)[0])
    _Loop(network, torch.optim.SGD(network.parameters(), lr=plan.lr), ALONE, report).run(plan, data)
    return _copied(network)


def _copied(network: nn.Module) -> dict[str, torch.Tensor]:
    """Its parameters in memory of their own: those of a model in training may be the store's."""
    return {name: value.to("cpu", copy=True) for name, value in network.state_dict().items()}


class _Loop:
    """An ordinary training loop that takes its share of each batch and of the test."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, seat: Seat, report: Report) -> None:
        self._model, self._optimizer, self._seat, self._report = model, optimizer, seat, report
        self._device = next(model.parameters()).device

    def run(self, plan: Plan, data: Data) -> None:
        train, test = _Tensors.of(data.train), _Tensors.of(data.test)
        for epoch in range(plan.epochs):
            began = time.perf_counter()
            done = [self._step(train, batch) for batch in plan.batches(len(train.labels), epoch)]
            seconds = time.perf_counter() - began
            correct, tested = self._test(test)
            loss, images = sum(step.loss for step in done), sum(step.images for step in done)
            self._report.epoch(epoch + 1, Share(loss, images, correct, tested, seconds))

    def _step(self, train: _Tensors, batch: Rows) -> Steps:
        rows = self._seat.share(batch)
        images, labels = train.take(rows, self._device)
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self._model(images), labels, reduction="sum")
        (loss * (self._seat.workers / len(batch))).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        done = Steps(1, loss.item(), len(rows))
        self._report.step(done)
        return done

    @torch.no_grad()
    def _test(self, test: _Tensors) -> tuple[int, int]:
        """How many images of the own share get the right label, and how many images that is."""
        rows = self._seat.share(np.arange(len(test.labels)))
        correct = 0
        for block in np.array_split(rows, -(-len(rows) // TEST_BLOCK)):
            images, labels = test.take(block, self._device)
            correct += int((self._model(images).argmax(1) == labels).sum())
        return correct, len(rows)


class _Tensors(NamedTuple):
    """A split as torch has it: images of shape (n, 1, 28, 28), still bytes, which become floats batch by batch."""

    images: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def of(cls, split: Split) -> _Tensors:
        return cls(torch.tensor(split.images).unsqueeze(1), torch.tensor(split.labels, dtype=torch.int64))

    def take(self, rows: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.from_numpy(rows)
        return self.images[index].to(device).float().div_(255), self.labels[index].to(device)
