"""How much of the communication is hidden behind backward on a slow link, from the trace."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import windlass as wl
from windlass import trace

LAYERS = 20
WIDTH = 1000  # 4 MB a layer
LINK_BYTES_PER_SECOND = 200_000_000
STEPS = 6


@dataclass(frozen=True, slots=True)
class Found:
    """Medians over the steps after the first two. `is_early`: pushes left before backward ended, in every step."""

    share_hidden: float
    communication_seconds: float
    step_seconds: float
    compute_seconds: float
    is_early: bool


def measure_overlap() -> Found:
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
        path = str(Path(folder) / "trace.json")
        with wl.Cluster(
            servers=1, workers=2, transport="tcp", link_bytes_per_second=LINK_BYTES_PER_SECOND, trace=path
        ) as cluster:
            [early, _] = cluster.run(_train)
        rows = [row for row in trace.overlap(path) if row.step is not None and 2 <= row.step < STEPS]
    return Found(
        share_hidden=trace.share_hidden(rows),
        communication_seconds=statistics.median(row.communication_seconds for row in rows),
        step_seconds=statistics.median(row.seconds for row in rows),
        compute_seconds=statistics.median(row.compute_seconds for row in rows),
        is_early=early,
    )


def _train(store: wl.Store) -> bool:
    """Backward of each layer takes as long as its gradient takes on the link, there and back, and half as much more:
    by sleeping, because two workers and a server on two cores would otherwise measure each other."""
    torch.set_num_threads(1)
    seconds = 1.5 * 2 * 4 * WIDTH * WIDTH / LINK_BYTES_PER_SECOND
    model = nn.Sequential(*(Slow(seconds) for _ in range(LAYERS)))
    optimizer = wl.torch.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-3), store)
    inputs = torch.randn(8, WIDTH)
    is_early = True
    for step in range(STEPS):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        if step >= 2:
            is_early = is_early and any(lane.task is not None for lane in optimizer._serving.lanes)
        optimizer.step()
    return is_early


class Slow(nn.Module):
    """A layer whose backward takes at least so long."""

    def __init__(self, seconds: float, width: int = WIDTH) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width) * 0.5)
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Slow.apply(x, self.weight, self._seconds)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.save_for_backward(x, weight)
        ctx.seconds = seconds
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        time.sleep(ctx.seconds)
        return grad @ weight.T, x.T @ grad, None
