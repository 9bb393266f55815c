"""Arrays of any framework, as the flat bytes the store moves, and back to the same kind.

numpy arrays and torch CPU tensors are viewed, never copied, when they are contiguous; a jax array comes in through
DLPack and goes out as a new jax array, because jax's are immutable. torch and jax are never imported here unless the
caller has imported them already.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from typing import Any

import msgspec
import numpy as np

from windlass.errors import UsageError
from windlass.types import STORAGE, Array, Bytes


class Like(msgspec.Struct, frozen=True):
    """What a caller's array is: enough to make another of its kind."""

    kind: str  # "numpy", "torch" or "jax"
    dtype: str
    shape: tuple[int, ...]

    @property
    def fillable(self) -> Like:
        """The nearest kind whose arrays can be written to."""
        return msgspec.structs.replace(self, kind="numpy") if self.kind == "jax" else self


MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_size(like: Like, what: str) -> None:
    """UsageError where this machine, on which all servers are, cannot hold so much: a view may be far larger than the
    memory it shows, and what is too large for all is better refused than begun."""
    nbytes = math.prod(like.shape) * STORAGE[like.dtype].itemsize
    if nbytes > MACHINE_BYTES:
        has = f"this machine has {MACHINE_BYTES / 2**30:,.1f} GiB of memory"
        raise UsageError(f"{what}: {like.dtype} of shape {like.shape} is {nbytes / 2**30:,.1f} GiB, and {has}")


def look(value: Any, what: str) -> tuple[Like, Array]:
    """Describe a caller's array and give its elements as a flat, contiguous array of the storage dtype. The result
    shares the caller's memory where it can; a non-contiguous array is gathered into a new one."""
    if type(value) is np.ndarray:
        name = _NAMES.get(value.dtype)
        if name is not None and value.flags.c_contiguous:
            return Like("numpy", name, value.shape), value.reshape(-1)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _look_torch(torch, value, what)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        dtype = str(value.dtype)
        like = Like("jax", _known(dtype, what), tuple(value.shape))
        host = np.asarray(value) if dtype == "bfloat16" else np.from_dlpack(value)
        return like, _flat(host, dtype)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise UsageError(f"{what}: masked elements have no value; fill them first, by value.filled(0), say")
    array = np.asarray(value)
    dtype = _known(str(array.dtype.newbyteorder("=")), what)
    like = Like("numpy", dtype, array.shape)
    check_size(like, what)
    return like, _flat(array.astype(array.dtype.newbyteorder("="), copy=False), dtype)


_NAMES = {dtype: name for name, dtype in STORAGE.items() if name != "bfloat16"}


def _flat(array: Array, dtype: str) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(STORAGE[dtype])


def _look_torch(torch: Any, value: Any, what: str) -> tuple[Like, Array]:
    if value.layout is not torch.strided:
        raise UsageError(f"{what}: expected a dense tensor, got layout {value.layout}")
    dtype = _known(str(value.dtype).removeprefix("torch."), what)
    like = Like("torch", dtype, tuple(value.shape))
    check_size(like, what)
    tensor = value.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    tensor = tensor.contiguous().view(-1)
    if dtype == "bfloat16":
        tensor = tensor.view(torch.int16)
    return like, tensor.numpy().view(STORAGE[dtype])


def _known(dtype: str, what: str) -> str:
    if dtype not in STORAGE:
        raise UsageError(f"{what}: expected a dtype among {', '.join(STORAGE)}, got {dtype}")
    return dtype


def target(out: Any, like: Like, what: str) -> Array | None:
    """The caller's `out` as flat storage to write into, or None when it is not contiguous and must be filled by
    `fill` afterwards. Raises when its shape or dtype does not fit."""
    if type(out) is np.ndarray:
        flags = out.flags
        if _NAMES.get(out.dtype) == like.dtype and out.shape == like.shape and flags.c_contiguous and flags.writeable:
            return out.reshape(-1)
    found, flat = look(out, what)
    if (found.dtype, found.shape) != (like.dtype, like.shape):
        raise UsageError(
            f"{what}: out expected {like.dtype} of shape {like.shape}, got {found.dtype} of shape {found.shape}"
        )
    if found.kind == "jax":
        raise UsageError(f"{what}: out expected a writable array, got a jax array, which is immutable")
    if found.kind == "numpy":
        if not isinstance(out, np.ndarray) or not out.flags.writeable:
            raise UsageError(f"{what}: out expected a writable array, got a read-only one")
        return flat if np.shares_memory(flat, out) or flat.size == 0 else None
    return flat if out.device.type == "cpu" and out.is_contiguous() else None


def fill(out: Any, like: Like, flat: Array) -> None:
    """Copy a flat result into a non-contiguous `out`."""
    made = wrap(flat, like)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        with torch.no_grad():
            out.copy_(made if isinstance(made, torch.Tensor) else torch.as_tensor(made))
    else:
        np.copyto(out, np.asarray(made))


def wrap(flat: Array, like: Like) -> Any:
    """The flat storage as an array of the caller's kind, sharing its memory (jax: a copy)."""
    if like.kind == "torch":
        return _wrap_torch(flat, like)
    if like.kind == "jax":
        jnp = sys.modules["jax"].numpy
        array = jnp.array(flat.reshape(like.shape))
        return array.view(jnp.bfloat16) if like.dtype == "bfloat16" else array
    if like.dtype == "bfloat16":
        bfloat16 = sys.modules.get("ml_dtypes")
        if bfloat16 is not None:
            flat = flat.view(bfloat16.bfloat16)
    return flat.reshape(like.shape)


def _wrap_torch(flat: Array, like: Like) -> Any:
    import torch

    if flat.size == 0:
        return torch.empty(like.shape, dtype=getattr(torch, like.dtype))
    if not flat.flags.writeable:  # torch has no read-only tensors; going by address spares a warning on every view
        flat = _by_address(flat)
    tensor = torch.from_numpy(flat.view(np.int16) if like.dtype == "bfloat16" else flat)
    if like.dtype == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.view(like.shape)


def _by_address(flat: Array) -> Array:
    memory = (ctypes.c_char * flat.nbytes).from_address(flat.__array_interface__["data"][0])
    memory._keep_alive = flat  # type: ignore[attr-defined]
    made: Array = np.frombuffer(memory, dtype=flat.dtype)  # type: ignore[call-overload]
    return made


def find_not_finite(flat: Array, dtype: str) -> int | None:
    """Where the first element is that is NaN or infinite; None if none is, as no integer can be."""
    if dtype == "bfloat16":
        is_finite = (flat & 0x7F80) != 0x7F80
    elif flat.dtype.kind == "f":
        is_finite = np.isfinite(flat)
    else:
        return None
    return None if is_finite.all() else int(is_finite.argmin())


def as_bytes(flat: Array) -> Bytes:
    return flat.view(STORAGE["uint8"])
