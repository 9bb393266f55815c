"""Windlass: a parameter server and gradient-synchronisation library. Push gradients, pull parameters."""

import importlib
from typing import Any

from windlass import filters as filters
from windlass.chaos.api import Chaos
from windlass.collectives import Group, allreduce, allreduce_many
from windlass.engines._run import LostWorker
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
from windlass.store.initial import Constant, Normal, Uniform
from windlass.store.reduce import Reducer
from windlass.store.update import FTRL, SGD, Adagrad, Adam, AdamW, RowwiseAdagrad, Updater
from windlass.types import Bounded, Eventual, Node, Sequential
from windlass.worker.batches import Batch
from windlass.worker.tables import Table
from windlass.worker.task import Task

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Batch",
    "Bounded",
    "Chaos",
    "Cluster",
    "ClusterError",
    "Constant",
    "DamagedCheckpoint",
    "Eventual",
    "Group",
    "LostRange",
    "LostWorker",
    "Node",
    "Normal",
    "PeerError",
    "Reducer",
    "RowwiseAdagrad",
    "Sequential",
    "Store",
    "Table",
    "Task",
    "TimeoutError",
    "Uniform",
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
