"""One bucket between the model and the store: gradients go in, a value comes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from windlass.errors import UsageError
from windlass.filters import Filter
from windlass.store.reduce import Reducer
from windlass.store.updater import Updater
from windlass.torch.buckets import Bucket, Parameter
from windlass.types import Consistency
from windlass.worker.entry import PAST_CACHE_BYTES, copier
from windlass.worker.store import Store
from windlass.worker.task import Task


class Lane:
    """A bucket's key and the shared buffer that its gradients are copied into, once, as they are produced.

    `stage` takes a gradient; when it says that the bucket is full, `send` starts it on its way and `take` waits for
    what the store makes of it. Not thread-safe.

    Where it `gives_views`, a gradient that was copied becomes a view of the buffer, and what autograd then adds to it
    is not copied any more. The buffer is the store's from `send` to `take`.
    """

    def __init__(self, store: Store, key: str, bucket: Bucket, tensors: Sequence[torch.Tensor]) -> None:
        self.key, self.bucket = key, bucket
        self.tensors = {number: tensors[number] for number in bucket.members}
        self.task: Task | None = None
        self.hyper: dict[str, float] | None = None  # what it was sent with
        self.gives_views = False
        self._store = store
        self._staged: dict[int, tuple[torch.Tensor, int]] = {}  # the gradient, and its version when it was staged
        self._buffer: torch.Tensor | None = None
        self._other: torch.Tensor | None = None  # where the value lands, if by turns in the key's two buffers
        self._views: dict[int, torch.Tensor] = {}

    def declare(
        self,
        *,
        reduce: str | Reducer = "mean",
        update: str | Updater = "assign",
        consistency: Consistency | None = None,
        filters: Sequence[str | Filter] = (),
        gives: bool | None = None,
        together: str = "",
    ) -> None:
        """Make the key; its first value is what the parameters are now, in the lowest rank, or in whoever `gives` it.
        Every worker calls it; blocks until the value is there."""
        value = torch.cat([self.tensors[number].detach().reshape(-1).cpu() for number in self.bucket.members])
        self._store._create(
            self.key,
            value,
            reduce=reduce,
            update=update,
            consistency=consistency,
            filters=filters,
            priority=self.bucket.priority,
            gives=gives,
            together=together,
        )
        self._use(self._store.buffer(self.key))

    def land_in_buffers(self) -> None:
        """From now on the value lands in the key's other buffer, from which the next gradients then leave."""
        self._other = self._store.buffer(self.key)

    def _use(self, buffer: torch.Tensor) -> None:
        self._buffer, self._views = buffer, dict(self._cut(buffer))

    def _cut(self, flat: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """The parameters' parts of a flat bucket, in their shapes."""
        parts = []
        for number, offset in zip(self.bucket.members, self.bucket.offsets, strict=True):
            tensor = self.tensors[number]
            parts.append((number, flat[offset : offset + tensor.numel()].view(tensor.shape)))
        return parts

    @property
    def missing(self) -> list[int]:
        return [number for number in self.bucket.members if number not in self._staged]

    def is_staged(self, number: int) -> bool:
        return number in self._staged

    def stage(self, number: int) -> bool:
        """Copy a parameter's gradient into the buffer, unless it is there; whether the bucket is full now."""
        grad, view = self.tensors[number].grad, self._views[number]
        assert grad is not None
        if not (self.gives_views and _is_at(grad, view)):
            copy_gradient(view, grad)
            if self.gives_views and grad.device.type == "cpu" and not grad.requires_grad:
                # By `.data`, because views would share one version counter.
                grad = self.tensors[number].grad = view.data
        self._staged[number] = (grad, grad._version)
        return len(self._staged) == len(self.bucket.members)

    def stage_zeros(self) -> None:
        """Nobody here used these parameters: the mean counts them as 0."""
        for number in self.missing:
            self._views[number].zero_()
            self._staged[number] = (self._views[number], self._views[number]._version)

    def touched(self) -> int | None:
        """A parameter whose gradient is not what was staged any more, or None."""
        for number, (grad, version) in self._staged.items():
            if self.tensors[number].grad is not grad or grad._version != version:
                return number
        return None

    def send(self, hyper: dict[str, float] | None = None, *, is_skipped: bool = False) -> None:
        """Push what is staged, all or nothing of it, and ask for the value. A step that `is_skipped` completes no
        batch."""
        self.hyper = hyper
        begun = None if is_skipped else self._store.begun_batches or None
        if self._staged:
            self.task = self._store.pushpull(
                self.key, self._buffer, hyper=hyper, out=self._other, wait=False, completes=begun
            )
        else:  # nothing to contribute; the round still needs a word from every member
            assert self._buffer is not None
            self._store.push(self.key, self._buffer[:0], range=(0, 0), hyper=hyper, completes=begun)
            self.task = self._store.pull(self.key, wait=False)

    def rest(self) -> None:
        """Let nobody wait for this worker here until it sends something. Blocks."""
        self._store._rest(self._store._entries[self.key])

    def ask(self) -> None:
        """Ask for the value, without a push."""
        self.task = self._store.pull(self.key, wait=False)

    def send_share(self, span: tuple[int, int], count: int, hyper: dict[str, float] | None) -> None:
        """Push elements lo to hi of what is staged, which none of the `count` workers of this step but this one pushes,
        and ask for the whole value."""
        assert self._buffer is not None
        self.hyper = hyper
        self._buffer[slice(*span)] *= count  # the servers divide by as many
        self._store.push(self.key, self._buffer[slice(*span)], range=span, hyper=hyper)
        self.task = self._store.pull(self.key, wait=False)

    def take(self) -> list[tuple[int, torch.Tensor]]:
        """Wait for the value; each parameter's part of it. The next gradients may then be staged."""
        assert self.task is not None
        flat = self.task.wait()
        self.task = None
        if self._other is not None:
            assert self._buffer is not None
            self._other = self._buffer
            self._use(flat)
        self._staged.clear()
        return self._cut(flat)

    def drop(self) -> None:
        """Forget what was staged and not sent."""
        self._staged.clear()


def _is_at(grad: torch.Tensor, view: torch.Tensor) -> bool:
    return grad.data_ptr() == view.data_ptr() and grad.stride() == view.stride()


def copy_gradient(into: torch.Tensor, grad: torch.Tensor) -> None:
    grad = grad.detach()  # with create_graph=True it is part of a graph
    if grad.nbytes >= PAST_CACHE_BYTES and grad.device.type == "cpu" and grad.is_contiguous():
        copier(grad.nbytes)(_bytes(into), _bytes(grad))
    else:
        into.copy_(grad)


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def check_gradient(store: Store, parameter: Parameter, grad: torch.Tensor) -> None:
    """UsageError for a gradient that cannot go into a bucket."""
    if grad.layout is not torch.strided:
        raise UsageError(
            f"worker-{store.rank}: the gradient of '{parameter.name}' is sparse ({grad.layout}); "
            "make the layer that uses it with sparse=False"
        )
    if str(grad.dtype) != parameter.dtype:
        raise UsageError(
            f"worker-{store.rank}: the gradient of '{parameter.name}' is {grad.dtype}, expected {parameter.dtype}"
        )
