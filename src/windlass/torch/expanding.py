"""Rows of different ids, laid out for every id of an input, and the gradient summed back.

torch's own backward of an embedding adds row by row, each by a call; for the rows of a batch that takes ten times as
long as all else that an embedding does. The store's kernel adds them in one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from windlass.store.batch import reduce_rows
from windlass.store.reduce import BUILT_IN


def expand(rows: torch.Tensor, indices: torch.Tensor, *, scale_grad_by_freq: bool = False) -> torch.Tensor:
    """`rows[indices]`, which torch can differentiate by rows."""
    if rows.dtype != torch.float32 or rows.device.type != "cpu" or scale_grad_by_freq:
        return F.embedding(indices, rows, scale_grad_by_freq=scale_grad_by_freq)
    found: torch.Tensor = _Expand.apply(rows, indices)  # type: ignore[no-untyped-call]
    return found


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.count = len(rows)
        ctx.save_for_backward(indices)
        return rows.index_select(0, indices)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (indices,) = ctx.saved_tensors
        total = np.zeros((ctx.count, grad.shape[1]), np.float32)  # rows of other inputs get nothing from this one
        given = grad.detach().contiguous().numpy()
        reduce_rows(total, [(indices.numpy(), given)], dtype="float32", reducer=BUILT_IN["sum"])
        return torch.from_numpy(total), None
