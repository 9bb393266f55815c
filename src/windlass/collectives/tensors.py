"""The caller's tensors: what they are, where their elements lie, and new ones of the same kind.

What is in main memory is seen as a flat numpy array of the storage type, whichever framework it came from. torch is
never imported here: whoever gives a tensor has.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from windlass.errors import UsageError
from windlass.types import STORAGE, Array, Bytes

HALVES = ("float16", "bfloat16")


class Kind:
    """What all members' tensors must agree on. Made by `kind`."""

    __slots__ = ("_hash", "dtype", "itemsize", "nbytes", "shape", "size", "work_type")

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.size, self.itemsize = math.prod(shape), STORAGE[dtype].itemsize
        self.nbytes = self.size * self.itemsize
        self.work_type: np.dtype[Any] = np.dtype(np.float32) if dtype in HALVES else STORAGE[dtype]
        """What arithmetic is done in."""
        self._hash = hash((dtype, shape))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Kind) and (self.dtype, self.shape) == (other.dtype, other.shape)
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{self.dtype} of shape {self.shape}"


@lru_cache(1024)
def kind(dtype: str, shape: tuple[int, ...]) -> Kind:
    """A kind is asked for in every call: each is made once."""
    return Kind(dtype, shape)


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def kind_of(tensor: Any, what: str) -> Kind:
    """What the tensor is. UsageError for what cannot be written in place."""
    if isinstance(tensor, np.ndarray):
        name = _NAMES.get(tensor.dtype) or str(tensor.dtype)
        if not tensor.flags.writeable:
            raise UsageError(f"{what}: expected a writable array, got a read-only one")
    elif is_torch(tensor):
        if tensor.layout is not sys.modules["torch"].strided:
            raise UsageError(f"{what}: expected a dense tensor, got layout {tensor.layout}")
        name = str(tensor.dtype)[6:]  # behind "torch."
    else:
        raise UsageError(
            f"{what}: expected a torch tensor or a numpy array, which can be written in place, "
            f"got {type(tensor).__name__}"
        )
    if name not in STORAGE:
        raise UsageError(f"{what}: expected a dtype among {', '.join(STORAGE)}, got {name}")
    return kind(name, tuple(tensor.shape))


_NAMES = {dtype: name for name, dtype in STORAGE.items() if name != "bfloat16"}


class Flat:
    """A tensor's elements in main memory, adjacent, by address. The caller's own memory where that can be; else a copy,
    which `write_back` puts where it came from."""

    __slots__ = ("_kept", "address", "write_back")

    def __init__(self, address: int, kept: Any, write_back: Callable[[], None] | None = None) -> None:
        self.address, self._kept, self.write_back = address, kept, write_back


def flat_of(tensor: Any, kind: Kind) -> Flat:
    if not kind.size:
        return Flat(0, None)
    if isinstance(tensor, np.ndarray):
        if tensor.flags.c_contiguous and kind.dtype != "bfloat16":
            return Flat(_address_of(_first_byte(tensor)), tensor)
    elif tensor.is_cpu and tensor.is_contiguous():
        return Flat(tensor.data_ptr(), tensor)
    array, write_back = host_view(tensor, kind)
    return Flat(array.ctypes.data, array, write_back)


_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address_of = ctypes.addressof


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


# --- making new ones --------------------------------------------------------------------------------------------------


def buffer_kind(shape: Any, dtype: Any) -> Kind:
    """The kind of a buffer that is asked for by shape and dtype: a name, a numpy type or a torch one."""
    name = str(dtype).removeprefix("torch.") if is_torch_type(dtype) else str(dtype)
    if name not in STORAGE:
        try:
            name = str(np.dtype(dtype))
        except TypeError:
            pass
    if name not in STORAGE:
        raise UsageError(f"buffer: expected a dtype among {', '.join(STORAGE)}, got {dtype!r:.60}")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(not isinstance(each, int | np.integer) or each < 0 for each in lengths):
        raise UsageError(f"buffer: expected a shape of whole numbers that are not negative, got {shape!r:.60}")
    return kind(name, tuple(int(each) for each in lengths))


def is_torch_type(dtype: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(dtype, torch.dtype)


def new_tensor(kind: Kind, dtype: Any, device: Any = "cpu") -> Any:
    """Zeros in private memory: a torch tensor if it was asked for by a torch dtype, else a numpy array."""
    if is_torch_type(dtype):
        return sys.modules["torch"].zeros(kind.shape, dtype=dtype, device=device)
    return np.zeros(kind.shape, _numpy_type(kind, dtype))


def tensor_over(memory: Bytes, kind: Kind, dtype: Any) -> Any:
    """Memory as a tensor of a kind, torch's or numpy's as asked."""
    if is_torch_type(dtype):
        torch = sys.modules["torch"]
        if not kind.size:
            return torch.empty(kind.shape, dtype=dtype)
        return torch.from_numpy(memory).view(dtype).view(kind.shape)
    return memory.view(_numpy_type(kind, dtype)).reshape(kind.shape)


def _numpy_type(kind: Kind, dtype: Any) -> np.dtype[Any]:
    if kind.dtype != "bfloat16":
        return STORAGE[kind.dtype]
    if str(getattr(dtype, "name", "")) == "bfloat16":
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    raise UsageError("buffer: numpy has no bfloat16 of its own; ask for torch.bfloat16, or ml_dtypes.bfloat16")


def stacked(tensor: Any, rank: int, size: int) -> Any:
    """A new tensor with a place for each of `size` such tensors, this one in place `rank`."""
    if is_torch(tensor):
        made = tensor.detach().new_empty((size, *tensor.shape))
        made[rank].copy_(tensor.detach())
        return made
    made = np.empty((size, *tensor.shape), tensor.dtype)
    made[rank] = tensor
    return made
