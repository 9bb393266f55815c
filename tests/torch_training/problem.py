"""A small problem that one process and several workers solve alike: each worker takes its part of every batch."""

from __future__ import annotations

import torch
from torch import nn

import windlass as wl

BATCH = 12


class Net(nn.Module):
    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 3)
        generator = torch.Generator().manual_seed(seed)  # torch's own is shared by workers that are threads
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.4, 0.4, generator=generator)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def batches(steps: int, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(BATCH, 6, generator=generator).to(dtype),
            torch.randint(0, 3, (BATCH,), generator=generator),
        )
        for _ in range(steps)
    ]


def share(store: wl.Store | None, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """This worker's part of a batch; all of it without a store."""
    if store is None:
        return x, y
    size = BATCH // store.num_workers
    part = slice(store.rank * size, (store.rank + 1) * size)
    return x[part], y[part]


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def assert_close(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], atol: float = 2e-6) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], atol=atol, rtol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
