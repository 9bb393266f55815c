"""One flat copy of a tensor, in the type that arithmetic is done in, wherever it is.

That type is the element type itself, float32 for 16-bit floats. A holder is the caller's own memory where that can be,
else a copy that `finish` writes back. What is in main memory is a numpy array, whichever framework it came from; what
is on another device is a torch tensor there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

from windlass.collectives.tensors import HALVES, Kind, host_view, is_torch, narrowed, widened
from windlass.store.reduce import Op, Reducer, divide
from windlass.types import Array


class Holder(Protocol):
    """One flat copy of the tensor. Spans are given as lo, hi."""

    def copy(self, lo: int, hi: int, source: Holder) -> None:
        """Elements lo to hi become the source's."""
        ...

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer, at: int | None = None) -> None:
        """Elements lo to hi are reduced with the source's; those begin at `at` there, if not at lo too."""
        ...

    def divide(self, lo: int, hi: int, count: int) -> None:
        """Elements lo to hi of a sum become a mean."""
        ...

    def finish(self) -> None:
        """Write the caller's tensor, if this is not its own memory."""
        ...

    def numbers(self, lo: int, hi: int) -> Array:
        """Elements lo to hi in main memory, to be read at once."""
        ...


class HostHolder:
    """A copy in main memory."""

    def __init__(self, work: Array, finish: Callable[[], None] | None = None) -> None:
        self.work = work
        self._finish = finish

    def copy(self, lo: int, hi: int, source: Holder) -> None:
        self.work[lo:hi] = source.numbers(lo, hi)

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer, at: int | None = None) -> None:
        start = lo if at is None else at
        fold_into(self.work[lo:hi], source.numbers(start, start + hi - lo), reducer)

    def divide(self, lo: int, hi: int, count: int) -> None:
        span = self.work[lo:hi]
        span[:] = divide(span, span.dtype.type(count))

    def finish(self) -> None:
        if self._finish is not None:
            self._finish()

    def numbers(self, lo: int, hi: int) -> Array:
        return self.work[lo:hi]


class DeviceHolder:
    """A copy on an accelerator, worked on there by torch."""

    def __init__(self, work: Any, finish: Callable[[], None] | None = None) -> None:
        self.work = work
        self._finish = finish

    def _brought(self, lo: int, hi: int, source: Holder) -> Any:
        if isinstance(source, DeviceHolder):
            return source.work[lo:hi].to(self.work.device, non_blocking=True)
        return sys.modules["torch"].from_numpy(source.numbers(lo, hi)).to(self.work.device)

    def copy(self, lo: int, hi: int, source: Holder) -> None:
        self.work[lo:hi].copy_(self._brought(lo, hi, source))

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer, at: int | None = None) -> None:
        torch, start = sys.modules["torch"], lo if at is None else at
        into, other = self.work[lo:hi], self._brought(start, start + hi - lo, source)
        match reducer.op:
            case Op.SUM | Op.MEAN:
                into.add_(other)
            case Op.MIN:
                torch.minimum(into, other, out=into)
            case Op.MAX:
                torch.maximum(into, other, out=into)
            case Op.ANY:
                into.logical_or_(other)
            case Op.ALL:
                into.logical_and_(other)
            case _:
                merged = reducer.merge(self.numbers(lo, hi), other.cpu().numpy())
                into.copy_(torch.from_numpy(merged))

    def divide(self, lo: int, hi: int, count: int) -> None:
        self.work[lo:hi].copy_(divide(self.work[lo:hi], count))

    def finish(self) -> None:
        if self._finish is not None:
            self._finish()

    def numbers(self, lo: int, hi: int) -> Array:
        found: Array = self.work[lo:hi].cpu().numpy()
        return found


def fold_into(into: Array, other: Array, reducer: Reducer) -> None:
    """into = into op other, in place."""
    if reducer.op is Op.CUSTOM:
        into[:] = reducer.merge(into, other)
    else:
        reducer.combine(into, other, out=into)  # type: ignore[call-arg]  # the built-in ones are numpy's ufuncs


def holder_of(tensor: Any, kind: Kind) -> Holder:
    """The tensor's own memory where it is contiguous and can be computed on, else a copy in the work type."""
    if not is_torch(tensor) or tensor.device.type == "cpu":
        flat, write_back = host_view(tensor, kind)
        if kind.dtype not in HALVES:
            return HostHolder(flat, write_back)
        wide = widened(flat, kind.dtype)

        def narrow() -> None:
            flat[:] = narrowed(wide, kind.dtype)
            if write_back is not None:
                write_back()

        return HostHolder(wide, narrow)
    return device_holder(tensor, kind)


def device_holder(tensor: Any, kind: Kind) -> DeviceHolder:
    flat = tensor.detach()
    work = flat.float() if kind.dtype in HALVES else flat
    work = work.reshape(-1)
    is_own = tensor.numel() == 0 or work.data_ptr() == tensor.data_ptr()
    return DeviceHolder(work, None if is_own else lambda: flat.copy_(work.view(tensor.shape)))
