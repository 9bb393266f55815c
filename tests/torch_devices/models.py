"""Small models and batches, the same for the same seed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

STRATEGIES = ["auto", "root", "cpu", "sharded", "ring", "bidirectional_ring", "tree", "hierarchical"]


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def normed(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))


def batch(size: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=made), torch.randint(0, 4, (size,), generator=made)


def train(model: nn.Module, steps: int, size: int, lr: float = 0.1, momentum: float = 0.9) -> list[float]:
    """Plain training, as a user writes it; the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    for step in range(steps):
        x, y = batch(size, seed=step)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def close(found: nn.Module, expected: nn.Module, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    ours, theirs = dict(found.named_parameters()), dict(expected.named_parameters())
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=rtol, atol=atol)
