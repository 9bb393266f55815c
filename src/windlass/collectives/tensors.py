"""The caller's tensors as something to compute on, and back.

A *holder* is one flat copy of the tensor, in the type that arithmetic is done in: the element type itself, float32 for
16-bit floats. It is the caller's own memory where that can be, else a copy that `finish` writes back. What is in main
memory is a numpy array, whichever framework it came from; what is on another device is a torch tensor there. torch is
never imported here: whoever gives a tensor has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from windlass.errors import UsageError
from windlass.store.reduce import Op, Reducer, divide
from windlass.types import STORAGE, Array

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Kind:
    """What all members must agree on."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def work_type(self) -> np.dtype[Any]:
        """The type that arithmetic is done in."""
        return np.dtype(np.float32) if self.dtype in HALVES else STORAGE[self.dtype]


class Holder(Protocol):
    """One flat copy of the tensor. Spans are given as lo, hi."""

    def copy(self, lo: int, hi: int, source: Holder) -> None:
        """Elements lo to hi become the source's."""
        ...

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer) -> None:
        """Elements lo to hi are reduced with the source's."""
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

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer) -> None:
        fold_into(self.work[lo:hi], source.numbers(lo, hi), reducer)

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

    def fold(self, lo: int, hi: int, source: Holder, reducer: Reducer) -> None:
        torch = sys.modules["torch"]
        into, other = self.work[lo:hi], self._brought(lo, hi, source)
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


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def kind_of(tensor: Any, what: str) -> Kind:
    """What the tensor is. UsageError for what cannot be written in place."""
    if is_torch(tensor):
        if tensor.layout is not sys.modules["torch"].strided:
            raise UsageError(f"{what}: expected a dense tensor, got layout {tensor.layout}")
        name = str(tensor.dtype).removeprefix("torch.")
    elif isinstance(tensor, np.ndarray):
        name = str(tensor.dtype)
        if not tensor.flags.writeable:
            raise UsageError(f"{what}: expected a writable array, got a read-only one")
    else:
        raise UsageError(
            f"{what}: expected a torch tensor or a numpy array, which can be written in place, "
            f"got {type(tensor).__name__}"
        )
    if name not in STORAGE:
        raise UsageError(f"{what}: expected a dtype among {', '.join(STORAGE)}, got {name}")
    return Kind(name, tuple(tensor.shape))


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


def host_view(tensor: Any, kind: Kind) -> tuple[Array, Callable[[], None] | None]:
    """A tensor's elements as a flat array of the storage type; and what writes it back, if it is a copy."""
    if is_torch(tensor):
        plain = tensor.detach()
        whole = plain.cpu().contiguous().view(-1)
        bits = whole.view(sys.modules["torch"].int16) if kind.dtype == "bfloat16" else whole
        flat = bits.numpy().view(STORAGE[kind.dtype])
        is_own = plain.device.type == "cpu" and plain.is_contiguous()
        return flat, None if is_own else lambda: plain.copy_(whole.view(tensor.shape))
    if tensor.flags.c_contiguous:
        return tensor.reshape(-1).view(STORAGE[kind.dtype]), None
    gathered = np.ascontiguousarray(tensor)
    return gathered.reshape(-1).view(STORAGE[kind.dtype]), lambda: np.copyto(tensor, gathered)


def widened(flat: Array, dtype: str) -> Array:
    """16-bit floats as float32."""
    if dtype == "float16":
        return flat.astype(np.float32)
    wide: Array = flat.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def narrowed(wide: Array, dtype: str) -> Array:
    """float32 as 16-bit floats, rounded to the nearest, ties to even."""
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return wide.astype(np.float16)
    bits = wide.view(np.uint32)
    rounded: Array = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), (bits >> 16 | 0x0040).astype(np.uint16), rounded)
