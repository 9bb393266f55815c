"""What numba lacks to wait on another process: ordered loads and stores by address, a clock, and ways to idle.

A flag is an int64 at an address in shared memory. It is stored with *release*, loaded with *acquire*: who sees the flag
sees everything that its owner wrote before.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numba  # noqa: F401, whole before its parts: another thread may be importing it
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_CLOCK_MONOTONIC = 1
_declared: Any = cgutils.get_or_insert_function
_stack_room: Any = cgutils.alloca_once


def _builtin(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_builtin
def load(_: Any, address: Any) -> Any:
    """The flag at this address."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), build


@_builtin
def store(_: Any, address: Any, value: Any) -> Any:
    """Set the flag at this address, after everything written before; what was written past the cache included."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        builder.store_atomic(args[1], builder.inttoptr(args[0], _I64.as_pointer()), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@_builtin
def pause(_: Any) -> Any:
    """Tell the core that it is spinning."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(_declared(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), build


@_builtin
def give_way(_: Any) -> Any:
    """Let another process that is ready have the core."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [])
        builder.call(_declared(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), build


@_builtin
def sleep(_: Any, microseconds: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32])
        builder.call(_declared(builder.module, kind, "usleep"), [args[0]])
        return context.get_dummy_value()

    return types.void(types.int32), build


@_builtin
def nanoseconds(_: Any) -> Any:
    """A clock that never goes back."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32, _I64.as_pointer()])
        read = _declared(builder.module, kind, "clock_gettime")
        pair = _stack_room(builder, ir.ArrayType(_I64, 2))
        seconds = builder.bitcast(pair, _I64.as_pointer())
        builder.call(read, [ir.Constant(_I32, _CLOCK_MONOTONIC), seconds])
        rest = builder.gep(seconds, [ir.Constant(_I32, 1)])
        return builder.add(builder.mul(builder.load(seconds), ir.Constant(_I64, 1_000_000_000)), builder.load(rest))

    return types.int64(), build
