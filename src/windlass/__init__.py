"""Windlass: a parameter server and gradient-synchronisation library. Push gradients, pull parameters."""

from windlass.engines.cluster import Cluster, connect
from windlass.engines.embedded import Store
from windlass.errors import ClusterError, LostRange, PeerError, TimeoutError, UsageError, WindlassError
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
    "Eventual",
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
    "connect",
]
