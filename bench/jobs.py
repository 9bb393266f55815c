"""What is trained in the benchmark, and one process's loop over it: the same code under every contender."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from windlass.apps.lenet import lenet


def mlp() -> nn.Sequential:
    """784-4096-4096-10: 20 million parameters, little to compute."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "lenet": (lambda: lenet(0), (1, 28, 28), 128),
    "mlp": (mlp, (784,), 32),
}
"""By name: how it is made, the shape of a sample, and the batch of each of two processes."""


class Job:
    """One process's part of training one network. `step` is forward, backward and the optimizer's step."""

    def __init__(self, name: str, size: int, *, steps_optimizer: bool = True) -> None:
        make, shape, batch = NETWORKS[name]
        self.model = make()
        generator = torch.Generator().manual_seed(1)
        batch = batch * 2 // size
        self._inputs = torch.randn(batch, *shape, generator=generator)
        self._labels = torch.randint(0, 10, (batch,), generator=generator)
        self._loss = nn.CrossEntropyLoss()
        self._steps = steps_optimizer
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self._loss(self.model(self._inputs), self._labels).backward()
        if self._steps:
            self.optimizer.step()

    def seconds(self, steps: int, barrier: Callable[[], object]) -> float:
        """Seconds per step of a loop that everybody begins together."""
        barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        return (time.perf_counter() - begin) / steps
