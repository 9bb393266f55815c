"""Windlass: a parameter server and gradient-synchronisation library. Push gradients, pull parameters."""

import importlib
from typing import Any

from windlass import filters as filters
from windlass.collectives import Group, allreduce, allreduce_many
from windlass.engines.cluster import Cluster, connect
from windlass.engines.embedded import Store
from windlass.errors import (
    ClusterError,
    DamagedCheckpoint,
    LostRange,
    PeerError,
    TimeoutError,
    UsageError,
    WindlassError,
)
from windlass.store.reduce import Reducer
from windlass.store.update import FTRL, SGD, Adagrad, Adam, AdamW, Updater
from windlass.types import Bounded, Eventual, Node, Sequential
from windlass.worker.task import Task

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Bounded",
    "Cluster",
    "ClusterError",
    "DamagedCheckpoint",
    "Eventual",
    "Group",
    "LostRange",
    "Node",
    "PeerError",
    "Reducer",
    "Sequential",
    "Store",
    "Task",
    "TimeoutError",
    "Updater",
    "UsageError",
    "WindlassError",
    "allreduce",
    "allreduce_many",
    "connect",
]


def __getattr__(name: str) -> Any:
    """`windlass.torch` is imported when it is first named, because torch is an extra and takes seconds to import."""
    if name == "torch":
        return importlib.import_module("windlass.torch")
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")
