"""`wl.torch.wrap`: a model whose gradients are averaged over the workers, shaped as DistributedDataParallel's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from windlass.errors import UsageError, options_checked
from windlass.torch.averaging import Averaging
from windlass.torch.backward import Backward
from windlass.torch.buckets import BUCKET_BYTES
from windlass.torch.joining import store_for
from windlass.torch.row_gradients import RowGradients
from windlass.torch.shared_model import SharedModel, TrainingOptions
from windlass.types import Sequential
from windlass.worker.store import Store


@options_checked
def wrap(
    model: nn.Module,
    store: Store | None = None,
    *,
    name: str | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    find_unused_parameters: bool = False,
    gradient_as_bucket_view: bool = False,
) -> Wrapped:
    """The model, data parallel: after `backward()` every parameter's gradient is the mean over all workers, and any
    torch optimizer steps on it, in every worker alike. Parameters and buffers begin as rank 0's.

    Every worker calls it, with the same model. Without a store it joins the cluster that this process was started in
    (`wl.connect()`). `name` begins the names of the keys; without one it is "model", then "model-2" and so on.
    With `gradient_as_bucket_view=True` gradients are views of memory that the servers read: see `wl.torch.Optimizer`.
    """
    options = TrainingOptions(name or "", bucket_bytes, True, find_unused_parameters, gradient_as_bucket_view)
    return Wrapped(model, store_for(store, "wl.torch.wrap(model{})"), options)


class Wrapped(nn.Module):
    """What `wrap` returns. `module` is the model; the names of parameters begin with "module.", as under
    DistributedDataParallel. Batch-norm statistics are each worker's own after the start."""

    def __init__(self, model: nn.Module, store: Store, options: TrainingOptions) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise UsageError(f"wrap expects a torch.nn.Module, got {type(model).__name__}")
        if not isinstance(store.options.consistency, Sequential):
            raise UsageError(f"wrap expects a store with Sequential(), got {store.options.consistency}")
        self.module = model
        named = [(name, tensor, 0) for name, tensor in model.named_parameters() if tensor.requires_grad]
        if not named:
            raise UsageError("the model has no parameter that takes gradients")
        self._shared = SharedModel(store, named, options, default="model", mode="wrap")
        frozen = [tensor for tensor in model.parameters() if not tensor.requires_grad]
        self._shared.share([*frozen, *(each for each in model.buffers() if each.numel())])
        self._averaging = Averaging(self._shared, gives_views=options.gradient_as_bucket_view)
        self._backward = Backward(self._shared.tensors, self._averaging.on_gradient, self._averaging.finish)
        self._shared.backward = self._backward

    @property
    def store(self) -> Store:
        return self._shared.store

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._averaging.check_complete()
        if self._shared.is_replaced and torch.is_grad_enabled():
            raise UsageError(f"another model took over the name '{self._shared.options.name}': give each its own name=")
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Any:
        """Inside it, backward only accumulates gradients, those of the store's tables, too. The next backward outside
        averages their sum."""
        with self._backward.quiet(), RowGradients.of(self.store).hold():
            yield

    def share_buffers(self) -> None:
        """Give every worker rank 0's buffers (batch-norm statistics). Every worker calls it; blocks."""
        self._shared.share([each for each in self.module.buffers() if each.numel()])

    def close(self) -> None:
        """Take the hooks off the parameters, and leave the name to another. Safe to repeat."""
        self._shared.close()

    def __deepcopy__(self, memo: Any) -> Any:
        raise UsageError("a wrapped model belongs to its store: copy `model.module` instead")

    def extra_repr(self) -> str:
        return f"{self._shared.who} of {self.store.num_workers}"
